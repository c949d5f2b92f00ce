"""Bounds from runs: twice the largest value seen over pairs of CPU runs, rounded up to one significant digit.

Source: specification, Backend parity tiers, Derivation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

from layactl.errors import InputError
from layactl.parity.fit import mismatches
from layactl.parity.gate import judge
from layactl.parity.run_file import read_run
from layactl.parity.tiers import BOUNDS, PUBLISHED, STATISTICAL, Row, Tier, Tiers


def bound_of(largest: float) -> float:
    """2 x largest, rounded up to one significant digit (0.00444 -> 0.009, 0.193 -> 0.4, 0 -> 0)."""
    doubled = 2 * Decimal(repr(largest))
    if not doubled:
        return 0.0
    step = Decimal(1).scaleb(doubled.adjusted())
    return float((doubled / step).to_integral_value(ROUND_CEILING) * step)


def seen_of(tier: Tier, tiers: Tiers, baseline: Path, candidate: Path) -> dict[str, float]:
    """The largest value of each statistic between two runs, whatever the tier says of it today.

    Raises InputError for runs that are no pair of this tier, or that differ in more than numbers.
    """
    b, c = read_run(baseline), read_run(candidate)
    if problems := mismatches(tier, b.identity, c.identity):
        raise InputError(f"is no pair of {tier.name}: {problems[0]}", where=f"{baseline} and {candidate}")
    # Under bounds that everything finite keeps, what still fails is no number.
    free = Row((), (), dict.fromkeys(BOUNDS[tier.rule], float("inf")), "derived", "", ())
    unbounded = replace(tier, registered=True, rows=(free,))
    report = judge(b, c, unbounded, tiers, allow_mismatch=True)
    if report.failures:
        failure = report.failures[0]
        where = f"{baseline} and {candidate}, item {failure.item}"
        raise InputError(f"differ in more than numbers: {failure.rule}, {failure.what}", where=where)
    return {bound.name: bound.value for bound in report.bounds}


def derived_bounds(seen: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Bounds of a row from what its pairs showed."""
    return {name: bound_of(max(values[name] for values in seen)) for name in BOUNDS[STATISTICAL]}


def check_tiers(tiers: Tiers, runs: Path | None) -> Iterator[str]:
    """What is wrong with a tiers file, in words: published rows that were edited, derived rows that their pairs do not
    give.

    runs: folder of the run files that the pairs name; None: hold the rows to the values recorded for their pairs only.
    """
    for name, rows in PUBLISHED.items():
        found = [row for row in tiers[name].rows if row.source == "published"] if name in tiers.tiers else []
        recorded = [{"weights": [*row.weights], "activations": [*row.activations], **row.bounds} for row in found]
        if recorded != [dict(row) for row in rows]:
            yield f"{name}: the published rows were edited"
    for tier in tiers.tiers.values():
        for row in tier.rows:
            if row.source == "published" and tier.name not in PUBLISHED:
                yield f"{tier.name}, {row.name}: nobody published this row"
            if row.source == "derived":
                yield from _check_derived(tier, tiers, row, runs)


def _check_derived(tier: Tier, tiers: Tiers, row: Row, runs: Path | None) -> Iterator[str]:
    seen: list[Mapping[str, float]] = []
    for pair in row.pairs:
        if missing := sorted(set(BOUNDS[tier.rule]) - set(pair.seen)):
            yield f"{tier.name}, {row.name}: the pair {pair.candidate} records no {missing[0]}"
            return
        seen.append(pair.seen)
        if runs is not None:
            measured = seen_of(tier, tiers, runs / pair.baseline, runs / pair.candidate)
            for name, value in measured.items():
                if value != pair.seen[name]:
                    yield f"{tier.name}, {row.name}: {pair.candidate} shows {name} {value!r}, not {pair.seen[name]!r}"
            seen[-1] = measured
    for name, value in derived_bounds(seen).items():
        if value != row.bounds[name]:
            yield f"{tier.name}, {row.name}: {name} is {row.bounds[name]!r}; its pairs give {value!r}"


def row_from_pairs(tier: Tier, tiers: Tiers, pairs: list[tuple[str, str]], runs: Path) -> dict[str, object]:
    """The row, as tiers.json holds one, that pairs of run files in the folder `runs` give."""
    recorded, weights, activations, all_seen = [], [], [], []
    for baseline, candidate in pairs:
        model = read_run(runs / candidate).identity
        weights.append(str(model.get("model", {}).get("weights")))
        activations.append(str(model.get("activations")))
        seen = seen_of(tier, tiers, runs / baseline, runs / candidate)
        all_seen.append(seen)
        recorded.append({"baseline": baseline, "candidate": candidate, "seen": seen})
    return {
        "weights": sorted(set(weights)),
        "activations": sorted(set(activations)),
        **derived_bounds(all_seen),
        "source": "derived",
        "pairs": recorded,
    }
