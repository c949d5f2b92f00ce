"""Tables of text on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from layactl.cli.output import one_line, plain_line, raw_text

if TYPE_CHECKING:
    from layactl.reporting.text_table import TextTable

# Where no terminal sets the width: nothing is ever wrapped.
_UNBOUNDED = 10_000


def print_tables(tables: Iterable[TextTable]) -> None:
    """On stdout, one below the other; every text is harmless to a terminal, whatever a file held."""
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _UNBOUNDED)
    for table in tables:
        plain_line(table.title)
        drawn = Table(box=box.SIMPLE, highlight=False, pad_edge=False)
        for i, name in enumerate(table.columns):
            drawn.add_column(Text(one_line(name)), justify="left" if i == 0 else "right")
        for row in table.rows:
            drawn.add_row(*(Text(one_line(cell)) for cell in row))
        with console.capture() as text:
            console.print(drawn)
        for line in text.get().splitlines():
            if line.strip():
                raw_text(line.rstrip())
        if table.note:
            plain_line(f"  ({table.note})")
        raw_text("")
