"""Logits -> a calibration, with the proof: what it was worth before and after, on answers it was not fitted on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layactl import __version__
from layactl.calib.bootstrap import Bootstrap, Estimate, estimate
from layactl.calib.calibrator import Calibrator
from layactl.calib.fit_file import FIT_FORMAT, fitted_split
from layactl.calib.judged import Judged, judge_answers, judge_scores, statistics_of
from layactl.calib.logits import LabelledAnswer, LabelledScore, LogitsFile
from layactl.calib.platt import PlattFit, fit_platt
from layactl.calib.statistic import Difference, Statistic
from layactl.calib.temperature import CLAMP, Cell, fit_temperatures, temperature_block
from layactl.core.calibration import Calibration, platt
from layactl.errors import InputError
from layactl.labelled.outcomes import KIND as ROUTER
from layactl.labelled.split import EVAL, FIT
from layactl.layouts.laya import LAYA

# What a calibration can change, with accuracy as the witness that it did not.
METRICS = ("ece", "brier", "nll", "auc", "accuracy")


@dataclass(frozen=True)
class Minimums:
    """Fewest answers that a fit is made from and judged by.

    examples: of the fit split; per_class: of either outcome there (router); held_out: of the eval split; cell: of a
    temperature's own cell (decisions).
    """

    examples: int
    per_class: int
    held_out: int
    cell: int


ROUTER_MINIMUMS = Minimums(examples=1000, per_class=50, held_out=200, cell=0)
DECISION_MINIMUMS = Minimums(examples=100, per_class=0, held_out=100, cell=100)


@dataclass(frozen=True)
class Comparison:
    """Before and after on one split; delta: after - before, over the same draws."""

    split: str
    answers: int
    clusters: int
    before: Mapping[str, Estimate]
    after: Mapping[str, Estimate]
    delta: Mapping[str, Estimate]

    def to_json(self) -> dict[str, Any]:
        parts = {"before": self.before, "after": self.after, "delta": self.delta}
        return {
            "split": self.split,
            "in_sample": self.split == FIT,
            "answers": self.answers,
            "clusters": self.clusters,
        } | {name: {metric: value.to_json() for metric, value in part.items()} for name, part in parts.items()}


@dataclass(frozen=True)
class Fit:
    """A fitted calibration.

    cells: of temperatures; platt: of the router, None for temperatures; comparisons: held out, then in sample;
    base: the calibration that the fitted one goes into the place of, None where it is not known.
    """

    logits: LogitsFile
    before: Calibrator
    cells: Sequence[Cell]
    platt: PlattFit | None
    comparisons: Sequence[Comparison]
    bootstrap: Bootstrap
    base: Calibration | None = None

    @property
    def unasked(self) -> list[str]:
        """Question types that no answer was there for; none of a router."""
        asked = {cell.type for cell in self.cells}
        return [] if self.platt else [name for name in LAYA.question_types if name not in asked]

    @property
    def kept(self) -> dict[str, dict[str, float]]:
        """The base's temperatures of the types that nothing was fitted for, as it applies them."""
        base = self.base or Calibration()
        found = {name: dict(base.buckets_for(name)) for name in self.unasked}
        return {name: {b: base.clamped(t) for b, t in buckets.items()} for name, buckets in found.items() if buckets}

    @property
    def warnings(self) -> list[str]:
        """What the block does to question types it was not fitted on."""
        stays = [f"{', '.join(self.kept)}: no answers, the temperatures of the base stay"] if self.kept else []
        if not (lost := [name for name in self.unasked if name not in self.kept]):
            return stays
        base = "" if self.base else "; what the model ships for them is lost unless --spec or --stamp names it"
        return [*stays, f"{', '.join(lost)}: no answers, 'all' of the other types speaks for them{base}"]

    @property
    def block(self) -> dict[str, Any]:
        """What goes into the spec: `router.calibration`, or `calibration`."""
        if self.platt is not None:
            return self.platt.block()
        table = self.kept | temperature_block(self.cells)
        kept = [value for buckets in self.kept.values() for value in buckets.values()]
        clamp = [min(CLAMP[0], *kept), max(CLAMP[1], *kept)] if kept else list(CLAMP)
        return {"method": "temperature", "clamp": clamp, "temperature": table}

    def to_json(self) -> dict[str, Any]:
        found = self.logits
        fitted = self.platt.to_json() if self.platt else [_cell_json(cell) for cell in self.cells]
        return {
            "format": FIT_FORMAT,
            "layactl": __version__,
            "kind": found.kind,
            "logits": found.counts,
            "engine": found.one_engine(),
            "split": fitted_split(found).to_json(),
            "calibration": self.block,
            "before": self.before.to_json(),
            "warnings": self.warnings,
            "platt" if self.platt else "cells": fitted,
            "quality": [comparison.to_json() for comparison in self.comparisons],
            "bootstrap": self.bootstrap.to_json(self.comparisons[0].clusters),
            "states_in_both_splits": found.shared_states(),
        }


def fit(
    logits: LogitsFile, before: Calibrator, minimums: Minimums, bootstrap: Bootstrap, base: Calibration | None = None
) -> Fit:
    """Fit on the fit split and compare on the eval split.

    before: what is in force now; base: as `Fit` has it. Raises InputError: mixed engine identities, too few answers,
    logits that are missing or say nothing.
    """
    logits.one_engine()
    logits.require_logits()
    if logits.kind == ROUTER:
        return _fit_router(logits, before, minimums, bootstrap)
    fitted = [answer for answer in logits.answers if answer.split == FIT]
    _check_counts(logits, len(fitted), len(logits.answers) - len(fitted), minimums)
    cells = fit_temperatures(fitted, minimums.cell)
    if not any(cell.fit for cell in cells):
        raise InputError(
            f"no temperature can be fitted to its {cells[0].count} answers: {cells[0].why}",
            where=str(logits.path),
            hint="--min-count says how few will do" if cells[0].count < minimums.cell else None,
        )
    after = Calibration("fit", temperature_block(cells), CLAMP)
    comparisons = [
        compare(
            split,
            judge_answers(answers, before.temperature),
            judge_answers(answers, lambda a: after.temperature_for(a.type, len(a.options))),
            bootstrap,
        )
        for split in (EVAL, FIT)
        if (answers := [answer for answer in logits.answers if answer.split == split])
    ]
    return Fit(logits, before, cells, None, comparisons, bootstrap, base)


def _fit_router(logits: LogitsFile, before: Calibrator, minimums: Minimums, bootstrap: Bootstrap) -> Fit:
    fitted = [score for score in logits.scores if score.split == FIT]
    _check_counts(logits, len(fitted), len(logits.scores) - len(fitted), minimums)
    successes = sum(score.outcome for score in fitted)
    if (fewest := min(successes, len(fitted) - successes)) < max(1, minimums.per_class):
        raise InputError(
            f"the fit split holds {successes} successes and {len(fitted) - successes} failures: fewer than "
            f"{max(1, minimums.per_class)} of one" + (", which no sigmoid can be fitted to" if not fewest else ""),
            where=str(logits.path),
            hint="--min-per-class says how few will do" if fewest else None,
        )
    found = fit_scores(fitted, str(logits.path))
    comparisons = [
        compare(
            split,
            judge_scores(scores, before.probability),
            judge_scores(scores, lambda s: platt(found.a, found.b, s.logit or 0.0)),
            bootstrap,
        )
        for split in (EVAL, FIT)
        if (scores := [score for score in logits.scores if score.split == split])
    ]
    return Fit(logits, before, (), found, comparisons, bootstrap)


def fit_scores(scores: Sequence[LabelledScore], where: str) -> PlattFit:
    """Platt over scored candidates; those of one task are a cluster. Raises InputError."""
    return fit_platt(
        [0.0 if score.logit is None else score.logit for score in scores],
        [score.outcome for score in scores],
        cluster_numbers(scores),
        where,
    )


def cluster_numbers(items: Sequence[LabelledAnswer] | Sequence[LabelledScore]) -> list[int]:
    """A number from 0 for every item, equal where they share a cluster."""
    numbers: dict[tuple[str, str], int] = {}
    return [numbers.setdefault(item.member.cluster, len(numbers)) for item in items]


def compare(split: str, before: Judged, after: Judged, bootstrap: Bootstrap) -> Comparison:
    """Two calibrations of the same answers. split: what they are."""
    old, new = statistics_of(before), statistics_of(after)
    wanted: dict[str, Statistic] = {}
    for metric in METRICS:
        wanted |= {
            f"before {metric}": old[metric],
            f"after {metric}": new[metric],
            f"delta {metric}": Difference(old[metric], new[metric]),
        }
    found = estimate(wanted, before.clusters, bootstrap)
    parts = [{metric: found[f"{part} {metric}"] for metric in METRICS} for part in ("before", "after", "delta")]
    return Comparison(split, len(before), before.clusters, *parts)


def _check_counts(logits: LogitsFile, fitted: int, held_out: int, minimums: Minimums) -> None:
    """Raises InputError naming the split and the option that decides."""
    counts = (("fit", fitted, minimums.examples, "--min-examples"), ("eval", held_out, minimums.held_out, "--min-eval"))
    for split, count, least, option in counts:
        if count < max(1, least):
            raise InputError(
                f"the {split} split holds {count} answers; at least {max(1, least)} are needed",
                where=str(logits.path),
                hint=f"{option} says how few will do"
                if count
                else "all records are of one group, all state one split, or --heldout-frac leaves none",
            )


def _cell_json(cell: Cell) -> dict[str, Any]:
    fitted = {"answers": cell.count, "why": cell.why} if cell.fit is None else cell.fit.to_json()
    return {"type": cell.type, "options": cell.bucket, "fitted": cell.fit is not None} | fitted
