"""Bounds from runs: twice the largest value seen over pairs of CPU runs, rounded up to one significant digit.

Source: specification, Backend parity tiers, Derivation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

from layactl.errors import InputError
from layactl.parity.fit import mismatches, model_of
from layactl.parity.gate import judge
from layactl.parity.run_file import read_run
from layactl.parity.tiers import BOUNDS, PUBLISHED, Row, Tier, Tiers


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
    if b.path.resolve() == c.path.resolve():
        raise InputError("is compared with itself, which shows nothing", where=str(candidate))
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
    if report.known["server_no_act_head"]:
        raise InputError("has no act logits to derive a bound from", where=f"{baseline} or {candidate}")
    return {bound.name: bound.value for bound in report.bounds}


def derived_bounds(rule: str, seen: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Bounds of a row from what its pairs showed. rule: of its tier."""
    return {name: bound_of(max(values[name] for values in seen)) for name in BOUNDS[rule]}


def check_tiers(tiers: Tiers, runs: Path | None) -> Iterator[str]:
    """What is wrong with a tiers file, in words: published rows that were edited, derived rows that their pairs do not
    give.

    runs: folder of the run files that the pairs name; None: hold the rows to the values recorded for their pairs only.
    """
    for name, published in PUBLISHED.items():
        if name not in tiers.tiers:
            yield f"{name}: the published tier is gone"
        elif (found := published_part(tiers[name])) != published:
            changed = next(key for key in published if found[key] != published[key])
            verb = "were" if changed in ("rows", "known_differences") else "was"
            yield f"{name}: the published {changed} {verb} edited"
    for tier in tiers.tiers.values():
        for row in tier.rows:
            if row.source == "published" and tier.name not in PUBLISHED:
                yield f"{tier.name}, {row.name}: nobody published this row"
            if row.source == "derived":
                yield from _check_derived(tier, tiers, row, runs)


def published_part(tier: Tier) -> dict[str, object]:
    """What of a tier others have published, in the form of `tiers.PUBLISHED`."""
    return {
        "rule": tier.rule,
        "baseline": {key: list(values) for key, values in tier.baseline.items()},
        "candidate": {key: list(values) for key, values in tier.candidate.items()},
        "same": tier.same,
        "known_differences": list(tier.known_differences),
        "rows": [
            {"weights": [*row.weights], "activations": [*row.activations], **row.bounds, "citation": row.citation}
            for row in tier.rows
            if row.source == "published"
        ],
    }


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
    for name, value in derived_bounds(tier.rule, seen).items():
        if value != row.bounds[name]:
            yield f"{tier.name}, {row.name}: {name} is {row.bounds[name]!r}; its pairs give {value!r}"


def row_from_pairs(tier: Tier, tiers: Tiers, pairs: list[tuple[str, str]], runs: Path) -> dict[str, object]:
    """The row, as tiers.json holds one, that pairs of run files in the folder `runs` give."""
    recorded, weights, activations, all_seen = [], [], [], []
    for baseline, candidate in pairs:
        identity = read_run(runs / candidate).identity
        weights.append(str(model_of(identity).get("weights")))
        activations.append(str(identity.get("activations")))
        seen = seen_of(tier, tiers, runs / baseline, runs / candidate)
        all_seen.append(seen)
        recorded.append({"baseline": baseline, "candidate": candidate, "seen": seen})
    return {
        "weights": sorted(set(weights)),
        "activations": sorted(set(activations)),
        **derived_bounds(tier.rule, all_seen),
        "source": "derived",
        "pairs": recorded,
    }
