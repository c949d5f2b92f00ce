"""Results as tables of text, which the terminal, Markdown and the HTML page show alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TextTable:
    """columns: heads, the first column being names and the others numbers; rows: as long as columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """A heading, the table, and the note under it."""
        lines = [f"## {_plain(self.title)}", "", _row(self.columns), _row(["---", *["---:"] * (len(self.columns) - 1)])]
        lines += [_row(row) for row in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_plain, cells)) + " |"


def _plain(text: str) -> str:
    """A text that is neither markup nor anything a terminal would act on."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
