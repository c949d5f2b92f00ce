"""Two results of the same benchmark: what became slower by more than a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layactl.bench.kpi import Measurement, quantile
from layactl.errors import UsageError
from layactl.reporting.text_table import TextTable


@dataclass(frozen=True)
class Change:
    """p50 in milliseconds; `ratio` above 1: slower. spread: relative, of the old cycles' medians."""

    label: str
    group: str
    old: float
    new: float
    spread: float

    @property
    def ratio(self) -> float:
        return self.new / self.old

    def regressed(self, threshold: float) -> bool:
        """Slower by more than the threshold, and by more than cycles of the old run differ among themselves."""
        return self.ratio > 1.0 + max(threshold, self.spread)


def compare(old: Sequence[Measurement], new: Sequence[Measurement]) -> list[Change]:
    """Changes of what both hold. Raises UsageError where nothing can be compared: other suites, other labels, another
    CPU.
    """
    before = {one.label: one for one in old}
    changes = []
    for one in new:
        earlier = before.get(one.label)
        if earlier is None:
            continue
        if earlier.record["suite"]["sha256"] != one.record["suite"]["sha256"]:
            raise UsageError(f"{one.label}: the two runs asked different suites", where=str(one.path))
        if earlier.record["machine"]["cpu"] != one.record["machine"]["cpu"]:
            raise UsageError(f"{one.label}: the two runs were made on different CPUs", where=str(one.path))
        for group in one.groups:
            was, now = earlier.times(group), one.times(group)
            if was and now:
                cycles = [quantile(earlier.times(group, block=block), 0.5) for block in earlier.blocks]
                median = quantile(was, 0.5)
                spread = (max(cycles) - min(cycles)) / median
                changes.append(Change(one.label, group, median, quantile(now, 0.5), spread))
    if not changes:
        raise UsageError("the two runs have no configuration and group in common")
    return changes


def compare_table(changes: Sequence[Change], threshold: float) -> TextTable:
    rows = [
        [
            change.label,
            change.group,
            f"{change.old:.2f}",
            f"{change.new:.2f}",
            f"{100 * (change.ratio - 1):+.1f} %",
            f"{100 * change.spread:.1f} %",
            "SLOWER" if change.regressed(threshold) else "",
        ]
        for change in changes
    ]
    columns = ["configuration", "group", "old p50 ms", "new p50 ms", "change", "old spread", ""]
    return TextTable(f"Changes, threshold {100 * threshold:g} %", columns, rows)
