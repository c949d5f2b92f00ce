"""A gate's report for people: what was compared, each bound, what failed, and one verdict line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from layactl.cli.output import one_line, plain_line, raw_text

if TYPE_CHECKING:
    from layactl.parity.gate import Bound, Report

_COLOURS = {"pass": "bold green", "fail": "bold red", "refused": "bold yellow"}
_SHOWN_FAILURES = 3
# Where no terminal sets the width: no item id is ever wrapped.
_UNBOUNDED = 10_000


def print_gate(report: Report) -> None:
    """On stdout; the last line is the verdict."""
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _UNBOUNDED)
    statistics = report.statistics
    title = f"{report.candidate.path.name} against {report.baseline.path.name}: {report.tier}, {report.row}"
    console.print(Text(one_line(title), style="bold"))
    for message in [*dict.fromkeys([*report.refusals, *report.mismatches])]:
        console.print(Text(one_line(f"  identity: {message}"), style="yellow"))
    if not report.refusals:
        plain_line(
            f"  {statistics.compared:,} questions with equal inputs, {statistics.numbers:,} public numbers, "
            f"{statistics.acts:,} act heads, {statistics.refused_by_both:,} items refused by both, "
            f"{len(statistics.flips):,} flips"
        )
        with console.capture() as drawn:
            console.print(_table([*report.bounds, *statistics.diagnostics.values()]))
        for line in drawn.get().splitlines():
            raw_text(line.rstrip())
        for name, count in report.known.items():
            plain_line(f"  known difference {name}: {count:,}")
        for rule, count in report.failed_rules().most_common():
            console.print(Text(f"  failed {rule}: {count:,}", style="red"))
            first = [failure for failure in report.failures if failure.rule == rule][:_SHOWN_FAILURES]
            for failure in first:
                place = "/".join(one_line(part) for part in (failure.item, failure.question) if part)
                plain_line(f"    {place or 'the whole run'}: {failure.what}")
    console.print(Text(_verdict(report), style=_COLOURS[report.verdict]))


def _table(bounds: list[Bound]) -> Table:
    table = Table(box=box.SIMPLE, highlight=False, pad_edge=False)
    table.add_column("statistic", no_wrap=True)
    for name in ("largest", "limit", "of limit"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("where", overflow="fold")
    for bound in bounds:
        limited = bound.limit != float("inf")
        where = "/".join(part for part in (bound.item, bound.question) if part)
        table.add_row(
            bound.name,
            f"{bound.value:.3g}",
            f"{bound.limit:g}" if limited else "",
            Text(f"{bound.margin:,.3g}x", style="green" if bound.passed else "red") if limited else "",
            Text(one_line(where)),
        )
    return table


def _verdict(report: Report) -> str:
    if report.verdict == "refused":
        return one_line(f"REFUSED {report.tier}: {report.refusals[0]}")
    if report.verdict == "pass":
        ignored = f", {len(report.mismatches)} identity mismatches ignored" if report.mismatches else ""
        scope = f" of {report.scope}" if report.scope else ""
        return one_line(f"PASS {report.tier}: {report.statistics.compared:,} questions{scope}{ignored}")
    rules = ", ".join(f"{rule} {count:,}" for rule, count in report.failed_rules().most_common(4))
    return f"FAIL {report.tier}: {rules}"
