"""Results as tables of text, which the terminal and the HTML page show alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from layactl.calib.bootstrap import Estimate
from layactl.calib.fit import Comparison, Fit
from layactl.calib.split import FIT


@dataclass(frozen=True)
class TextTable:
    """columns: heads, the first column being names and the others numbers; rows: as long as columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def number(value: float | None, digits: int = 4) -> str:
    """A number of a table; a dash where it is not defined."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def with_interval(estimate: Estimate, *, signed: bool = False) -> str:
    """ "0.1234 [0.1000, 0.1500]"."""
    if estimate.value is None:
        return "-"
    spec = "+.4f" if signed else ".4f"
    interval = f" [{estimate.low:{spec}}, {estimate.high:{spec}}]" if estimate.low is not None else ""
    return f"{estimate.value:{spec}}{interval}"


def fit_tables(fit: Fit) -> list[TextTable]:
    """What was fitted, and what it is worth."""
    fitted = _platt_table(fit) if fit.platt else _cells_table(fit)
    return [fitted, *map(_comparison_table, fit.comparisons)]


def _comparison_table(comparison: Comparison) -> TextTable:
    rows = [
        [
            metric,
            with_interval(comparison.before[metric]),
            with_interval(comparison.after[metric]),
            with_interval(delta, signed=True),
            "yes" if delta.excludes_zero else "",
        ]
        for metric, delta in comparison.delta.items()
    ]
    in_sample = comparison.split == FIT
    title = "fit split, IN SAMPLE: no proof of anything" if in_sample else "eval split, held out"
    return TextTable(
        f"{title}: {comparison.answers:,} answers of {comparison.clusters:,} clusters",
        ["metric", "before", "after", "after - before", "convincing"],
        rows,
        "95 % percentile intervals, whole clusters resampled; convincing: the interval of the difference holds no zero",
    )


def _cells_table(fit: Fit) -> TextTable:
    rows = []
    for cell in fit.cells:
        found = cell.fit
        if found is None:
            wider = "1" if cell.type == "all" else "all" if cell.bucket == "*" else f"{cell.type} *"
            rows.append([f"{cell.type} {cell.bucket}", f"{cell.count:,}", "-", "-", f"too few: {wider} is used"])
            continue
        interval = "-" if found.interval is None else f"[{found.interval[0]:.4g}, {found.interval[1]:.4g}]"
        clamped = f"clamped from {found.likeliest:.4g}: treat as uncalibrated" if found.clamped else ""
        rows.append([f"{cell.type} {cell.bucket}", f"{cell.count:,}", f"{found.temperature:.4f}", interval, clamped])
    return TextTable("temperatures", ["type and options", "answers", "T", "95 % of T", "note"], rows)


def _platt_table(fit: Fit) -> TextTable:
    found = fit.platt
    assert found is not None
    spans = found.intervals or (None, None)
    rows = [
        [name, f"{value:.6g}", "-" if span is None else f"[{span[0]:.4g}, {span[1]:.4g}]"]
        for name, value, span in (("a", found.a, spans[0]), ("b", found.b, spans[1]))
    ]
    note = "" if found.a > 0 else "a is not positive: the logits rank failures above successes"
    title = f"p = sigmoid(a z + b), of {found.count:,} candidates, {found.positives:,} successes"
    return TextTable(title, ["parameter", "value", "95 %"], rows, note)
