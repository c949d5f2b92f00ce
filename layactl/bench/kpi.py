"""Result files -> the numbers of a report: quantiles a group, ratios a cycle, memory, load, determinism.

Disturbed blocks are left out wherever an undisturbed attempt of the same cycle exists.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.bench.run import FORMAT
from layactl.core import strict_json
from layactl.durable import read_limited
from layactl.errors import InputError, RequestError

_MAX_BYTES = 512 * 2**20
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Measurement:
    """One result file, checked. blocks: those that count, in the order of the cycles."""

    label: str
    path: Path
    record: dict[str, Any]

    @property
    def blocks(self) -> list[dict[str, Any]]:
        cycles: dict[int, dict[str, Any]] = {}
        for block in self.record["blocks"]:
            # The last attempt, unless an earlier one was undisturbed (then there is no later one).
            cycles[block["cycle"]] = block
        return [cycles[cycle] for cycle in sorted(cycles)]

    @property
    def identity(self) -> dict[str, Any]:
        return self.record["identity"] or {}

    @property
    def groups(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = self.record["suite"]["groups"]
        return groups

    def times(self, group: str, phase: str = "total", block: Mapping[str, Any] | None = None) -> list[float]:
        """Milliseconds of every repeat of every request of a group, of one block or of all; empty where refused."""
        values: list[float] = []
        for one in self.blocks if block is None else [block]:
            for request_id in self.groups[group]:
                row = one["requests"].get(request_id, {})
                values += row.get("ms", {}).get(phase, ())
        return values

    def refusals(self, group: str) -> list[str]:
        """Why requests of a group were not answered."""
        rows = (block["requests"].get(request_id, {}) for block in self.blocks for request_id in self.groups[group])
        return sorted({row["refusal"] for row in rows if "refusal" in row})

    @property
    def deterministic(self) -> bool | None:
        """Whether every request had the same raw outputs in all repeats of all blocks; None where none are shown."""
        known = False
        for request_id in (one for ids in self.groups.values() for one in ids):
            rows = [block["requests"][request_id] for block in self.blocks if request_id in block["requests"]]
            shown = [row for row in rows if row.get("deterministic") is not None]
            known |= bool(shown)
            if any(not row["deterministic"] for row in shown) or len({row["logits"] for row in shown}) > 1:
                return False
        return True if known else None

    def logits(self) -> dict[str, str | None]:
        """Hash of the raw outputs by request, to compare thread counts with."""
        block = self.blocks[0] if self.blocks else {"requests": {}}
        return {request_id: row.get("logits") for request_id, row in block["requests"].items()}


def read_measurements(folder: Path) -> list[Measurement]:
    """One result file, or those of a folder by name. Raises InputError naming the file, also where there is none."""
    paths = sorted(folder.glob("*.json"), key=lambda path: path.stem) if folder.is_dir() else [folder]
    found = [measurement for path in paths if (measurement := _read(path)) is not None]
    if not found:
        raise InputError("holds no result of a benchmark", where=str(folder))
    return found


def _read(path: Path) -> Measurement | None:
    """None for a JSON file of another kind."""
    try:
        record = strict_json.loads_strict(read_limited(path, _MAX_BYTES))
    except RequestError as error:
        raise InputError(error.message, where=str(path)) from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return None
    try:
        measurement = Measurement(str(record["label"]), path, record)
        for block in measurement.blocks:
            _ = block["load_ms"], block["memory"], block["foreign_cores"]
        for group in measurement.groups:
            if not all(isinstance(value, float) for value in measurement.times(group)):
                raise TypeError
    except (KeyError, TypeError, AttributeError, ValueError):
        raise InputError("is no whole result of a benchmark", where=str(path)) from None
    return measurement


def quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics (Hyndman and Fan 1996, type 7), as numpy does it."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * q
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@dataclass(frozen=True)
class Ratio:
    """How many times faster than the reference configuration: median, smallest and largest over `cycles` cycles."""

    median: float
    low: float
    high: float
    cycles: int


def ratio(measurement: Measurement, reference: Measurement, group: str) -> Ratio | None:
    """p50 of the reference over p50 of the measurement, of the same cycle each; None where one has no such cycle."""
    theirs = {block["cycle"]: block for block in reference.blocks}
    values = []
    for block in measurement.blocks:
        if block["cycle"] not in theirs or group not in reference.groups:
            continue
        own, other = measurement.times(group, block=block), reference.times(group, block=theirs[block["cycle"]])
        if own and other:
            values.append(quantile(other, 0.5) / quantile(own, 0.5))
    return Ratio(statistics.median(values), min(values), max(values), len(values)) if values else None


def latency_rows(measurement: Measurement) -> Iterator[tuple[str, dict[str, float]]]:
    """(group, {"p50", "p95", "p99", "n"}) in milliseconds, of the groups that were answered."""
    for group in measurement.groups:
        values = measurement.times(group)
        if values:
            row = {f"p{q * 100:g}": quantile(values, q) for q in QUANTILES}
            yield group, row | {"n": float(len(values))}


def phase_medians(measurement: Measurement, group: str, phases: Sequence[str]) -> dict[str, float]:
    """p50 of each phase in milliseconds."""
    found = {phase: measurement.times(group, phase) for phase in phases}
    return {phase: quantile(values, 0.5) for phase, values in found.items() if values}


def cpu_seconds(measurement: Measurement, group: str) -> float | None:
    """Mean CPU seconds of a request of a group."""
    values: list[float] = []
    for block in measurement.blocks:
        for request_id in measurement.groups[group]:
            values += block["requests"].get(request_id, {}).get("cpu_seconds", ())
    return statistics.fmean(values) if values else None


def memory_row(measurement: Measurement) -> dict[str, int | None]:
    """Resident bytes (medians over blocks) when started, loaded, warm and at the end, and the highest peak."""
    row: dict[str, int | None] = {}
    for phase in ("start", "loaded", "warm", "end"):
        values = [b["memory"][phase]["rss"] for b in measurement.blocks if b["memory"].get(phase, {}).get("rss")]
        row[phase] = round(statistics.median(values)) if values else None
    peaks = [b["memory"]["end"]["peak"] for b in measurement.blocks if b["memory"].get("end", {}).get("peak")]
    row["peak"] = max(peaks) if peaks else None
    return row
