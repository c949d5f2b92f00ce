"""What the commands print: records on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layactl.core import strict_json
from layactl.errors import LayactlError, RequestError

if TYPE_CHECKING:
    from rich.progress import Progress


def record(value: Any) -> None:
    """One JSON object on one line of stdout, UTF-8 whatever the locale says."""
    raw_text(strict_json.dumps(value))


def raw_text(text: str) -> None:
    """Text on stdout as it is, with a line end, UTF-8 whatever the locale says."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8") + b"\n")
    sys.stdout.buffer.flush()


def path_line(path: Path) -> None:
    """One path on one line of stdout, in the very bytes it is made of."""
    sys.stdout.flush()
    sys.stdout.buffer.write(os.fsencode(path) + b"\n")
    sys.stdout.buffer.flush()


def plain_line(text: str) -> None:
    """A line for people on stdout, harmless to a terminal whatever a file holds."""
    raw_text(one_line(text))


def note(message: str, quiet: bool = False) -> None:
    if not quiet:
        print(f"note: {one_line(message)}", file=sys.stderr)  # noqa: T201


def error_line(error: LayactlError | str, *, hint: str | None = None) -> None:
    """`error: WHAT (WHERE)` and, where there is one, `hint: ...`."""
    text = str(error)
    if isinstance(error, RequestError):
        text = f"{error.reason}: {text}"
    if isinstance(error, LayactlError):
        hint = error.hint
    print(f"error: {one_line(text)}", file=sys.stderr)  # noqa: T201
    if hint:
        print(f"hint: {one_line(hint)}", file=sys.stderr)  # noqa: T201


def one_line(text: str) -> str:
    """No line breaks and nothing a terminal would act on, whatever a file name or a token held."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextmanager
def progress(description: str, total: float | None, *, unit: str, quiet: bool) -> Iterator[Any]:
    """A progress bar on stderr; yields `update(done, total=None, detail="")`. Silent unless stderr is a terminal.

    unit: "bytes" shows amounts and a rate in bytes, "share" the percentage only.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda done, total=None, detail="": None
        return
    with _bar(unit) as bar:
        task = bar.add_task(description, total=total, detail="")
        yield lambda done, total=None, detail="": bar.update(task, completed=done, total=total, detail=detail)


def _bar(unit: str) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amounts = [DownloadColumn(), TransferSpeedColumn()] if unit == "bytes" else [TaskProgressColumn()]
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *amounts,
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
