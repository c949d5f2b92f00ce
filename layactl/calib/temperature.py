"""Temperatures that make probabilities mean what they say, per question type and number of options.

Temperature scaling (Guo et al., ICML 2017): softmax(z / T), T chosen by the likelihood of held-back answers. In
beta = 1 / T the log likelihood of a softmax is concave, so its derivative has one root at most and no starting point
matters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from layactl.calib.extra import scientific
from layactl.calib.logits import LabelledAnswer
from layactl.calib.statistic import Doubles
from layactl.core.calibration import TEMPERATURE_MAX, TEMPERATURE_MIN, bucket_span

BUCKETS = ("2", "3-5", "6-10", "11+")
CLAMP = (TEMPERATURE_MIN, TEMPERATURE_MAX)
MIN_COUNT = 100

_BETA_RANGE = (1e-6, 1e6)
_QUANTILE_975 = 1.959963984540054
# A logit so far below the best one has probability 0 at every temperature of the clamp; more would only overflow.
_FARTHEST = 1e5
_WIDEST = 100.0


@dataclass(frozen=True)
class TemperatureFit:
    """One fitted temperature.

    likeliest: before the clamp: 0 or infinity where the likelihood has no maximum between them; interval: of it, 95 %,
    None where it is not defined; count, clusters: of the answers it was fitted on.
    """

    likeliest: float
    interval: tuple[float, float] | None
    count: int
    clusters: int
    clamp: tuple[float, float] = CLAMP

    @property
    def temperature(self) -> float:
        low, high = self.clamp
        return min(high, max(low, self.likeliest))

    @property
    def clamped(self) -> bool:
        return self.temperature != self.likeliest

    def to_json(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            "clamped": self.clamped,
            "likeliest": self.likeliest if math.isfinite(self.likeliest) else None,
            "interval": None if self.interval is None else list(self.interval),
            "answers": self.count,
            "clusters": self.clusters,
        }


@dataclass(frozen=True)
class Cell:
    """The answers of one question type ("all": of every type) and bucket of option counts ("*": any).

    fit: None where there are fewer than the minimum, or where their logits say nothing, and the next wider cell is
    used; why: it is None.
    """

    type: str
    bucket: str
    count: int
    fit: TemperatureFit | None
    why: str = ""


def fit_temperatures(answers: Sequence[LabelledAnswer], min_count: int = MIN_COUNT) -> list[Cell]:
    """Every cell that could have a temperature of its own, the widest first.

    A cell with fewer than min_count answers, or whose logits are all equal, has no fit: a bucket falls back to its
    type, a type to "all", "all" to 1. Questions with one option say nothing about a temperature and are left out. A
    bucket that holds all answers of its type is no cell beside it.
    """
    answers = [answer for answer in answers if len(answer.options) > 1]
    wanted: list[tuple[str, str, list[LabelledAnswer]]] = [("all", "*", answers)]
    for question_type in dict.fromkeys(answer.type for answer in answers):
        of_type = [answer for answer in answers if answer.type == question_type]
        wanted.append((question_type, "*", of_type))
        parts = [(bucket, [a for a in of_type if _holds(bucket, len(a.options))]) for bucket in BUCKETS]
        wanted += [(question_type, bucket, part) for bucket, part in parts if 0 < len(part) < len(of_type)]
    return [_cell(kind, bucket, part, min_count) for kind, bucket, part in wanted]


def _cell(question_type: str, bucket: str, answers: Sequence[LabelledAnswer], min_count: int) -> Cell:
    if len(answers) < max(1, min_count):
        return Cell(question_type, bucket, len(answers), None, "too few")
    found = fit_temperature(answers)
    return Cell(question_type, bucket, len(answers), found, "" if found else "all logits are equal, any T is as likely")


def temperature_block(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """The `calibration.temperature` of a spec: buckets before "*", types without a fit of their own left to "all"."""
    table: dict[str, dict[str, float]] = {}
    types = {cell.type for cell in cells if cell.bucket == "*" and cell.fit is not None}
    for cell in sorted(cells, key=lambda cell: cell.bucket == "*"):
        if cell.fit is not None and cell.type in types:
            table.setdefault(cell.type, {})[cell.bucket] = cell.fit.temperature
    return {kind: table[kind] for kind in sorted(table, key=lambda kind: kind == "all")}


def fit_temperature(answers: Sequence[LabelledAnswer], clamp: tuple[float, float] = CLAMP) -> TemperatureFit | None:
    """The temperature under which the answers are likeliest; a soft label counts as so many parts of labels.

    None where the logits of every answer are equal: the likelihood is then the same at any temperature.

    The interval is the cluster-robust (sandwich) one of log T: answers of one cluster are not taken as independent.
    """
    z, y, real = _padded(answers)
    if not z.any():
        return None
    clusters: dict[tuple[str, str], int] = {}
    cluster = np.array([clusters.setdefault(a.member.cluster, len(clusters)) for a in answers])
    wanted = (z * y).sum(axis=1)

    def slope(log_beta: float) -> float:
        """The derivative of the log likelihood with respect to beta; it falls as beta grows."""
        return float((wanted - _expectation(z, real, math.exp(log_beta))).sum())

    low, high = map(math.log, _BETA_RANGE)
    if slope(low) <= 0.0:
        return TemperatureFit(math.inf, None, len(answers), len(clusters), clamp)
    if slope(high) >= 0.0:
        return TemperatureFit(0.0, None, len(answers), len(clusters), clamp)
    log_beta = float(scientific("scipy.optimize").brentq(slope, low, high, xtol=1e-13, rtol=1e-14))
    beta = math.exp(log_beta)
    scores = wanted - _expectation(z, real, beta)
    information = float((_expectation(z, real, beta, square=True) - _expectation(z, real, beta) ** 2).sum())
    interval = _interval(beta, information, np.bincount(cluster, scores).astype(np.float64))
    return TemperatureFit(1.0 / beta, interval, len(answers), len(clusters), clamp)


def _interval(beta: float, information: float, cluster_scores: Doubles) -> tuple[float, float] | None:
    groups = len(cluster_scores)
    if groups < 2 or information <= 0.0:
        return None
    spread = float((cluster_scores**2).sum()) * groups / (groups - 1)
    half = _QUANTILE_975 * math.sqrt(spread) / information / beta
    # Wider than any number is no interval.
    return (math.exp(-half) / beta, math.exp(half) / beta) if half < _WIDEST else None


def _padded(answers: Sequence[LabelledAnswer]) -> tuple[Doubles, Doubles, Doubles]:
    """Logits below the best one, gold, and 1 where an option is: each (n, most options), 0 beyond an answer's own."""
    width = max(len(answer.options) for answer in answers)
    z, y, real = (np.zeros((len(answers), width)) for _ in range(3))
    for n, answer in enumerate(answers):
        top, count = max(answer.logits), len(answer.options)
        z[n, :count] = [max(logit - top, -_FARTHEST) for logit in answer.logits]
        y[n, :count] = answer.gold.probabilities
        real[n, :count] = 1.0
    return z, y, real


def _expectation(z: Doubles, real: Doubles, beta: float, *, square: bool = False) -> Doubles:
    """(n,): the mean of z, or of z squared, under softmax(beta z)."""
    p = np.exp(beta * z) * real
    p /= p.sum(axis=1, keepdims=True)
    result: Doubles = (p * (z**2 if square else z)).sum(axis=1)
    return result


def _holds(bucket: str, options: int) -> bool:
    span = bucket_span(bucket)
    assert span is not None
    low, high = span
    return low <= options and (high is None or options <= high)
