"""The table of a benchmark while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from layactl.cli.output import note

if TYPE_CHECKING:
    from rich.table import Table

    from layactl.bench.run import Plan, Progress


@contextmanager
def live(labels: Sequence[str], plan: Plan, *, quiet: bool) -> Iterator[Progress]:
    """Yields what takes the events of a run. On a terminal a table; elsewhere one note a block."""
    board = _Board(labels, plan)
    if quiet:
        yield lambda label, done, total, event: None
        return
    if not sys.stderr.isatty():
        yield board.noted
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), get_renderable=board.table, refresh_per_second=4, transient=True):
        yield board.shown


class _Board:
    def __init__(self, labels: Sequence[str], plan: Plan) -> None:
        self._plan = plan
        self._started = time.monotonic()
        self._blocks = dict.fromkeys(labels, 0)
        self._state = dict.fromkeys(labels, "")
        self._p50 = dict.fromkeys(labels, "")
        self._left = "?"

    def shown(self, label: str, done: int, total: int, event: dict[str, Any]) -> None:
        for other in self._state:
            self._state[other] = ""
        if event["event"] == "loaded":
            self._state[label] = "warming up"
        elif event["event"] == "repeat":
            self._state[label] = f"round {event['done']} of {self._plan.repeat}"
        elif event["event"] == "phase":
            self._state[label] = event["what"]
        else:
            self._finished(label, done, total, event)

    def noted(self, label: str, done: int, total: int, event: dict[str, Any]) -> None:
        if event["event"] == "phase":
            note(f"{label}: {event['what']}")
        elif event["event"] == "block":
            self._finished(label, done, total, event)
            disturbed = f", {event['disturbed']}" if event["disturbed"] else ""
            note(f"{label}: block {event['cycle'] + 1} of {self._plan.cycles}{disturbed}; {self._left} left")

    def _finished(self, label: str, done: int, total: int, block: dict[str, Any]) -> None:
        import statistics

        self._blocks[label] = block["cycle"] + 1
        times = [ms for row in block["requests"].values() for ms in row.get("ms", {}).get("total", ())]
        self._p50[label] = f"{statistics.median(times):.1f}" if times else "-"
        self._state[label] = block["disturbed"] or ""
        seconds = (time.monotonic() - self._started) / (done + 1) * (total - done - 1)
        self._left = f"{int(seconds // 60)}:{int(seconds % 60):02d}"

    def table(self) -> Table:
        from rich.table import Table

        table = Table(title=f"about {self._left} left", title_justify="left")
        for name in ("configuration", "blocks", "p50 ms of all", "now"):
            table.add_column(name)
        for label in self._blocks:
            table.add_row(label, f"{self._blocks[label]} of {self._plan.cycles}", self._p50[label], self._state[label])
        return table
