"""What a page draws: reliability, risk against coverage, confusion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from layactl.calib.judged import Judged
from layactl.calib.logits import LabelledAnswer
from layactl.calib.statistic import BINS, Doubles, bin_of

_QUANTILE_975 = 1.959963984540054
_MOST_POINTS = 200


@dataclass(frozen=True)
class ReliabilityBin:
    """Answers whose probability is in (low, high]. mean: of it; share: of events; share_low, share_high: Wilson's 95 %
    interval of the share, as if the answers were independent.
    """

    low: float
    high: float
    count: int
    mean: float | None
    share: float | None
    share_low: float | None
    share_high: float | None


def reliability(p: Doubles, event: Doubles) -> list[ReliabilityBin]:
    """The ten bins of the calibration error."""
    which, edges = bin_of(p), np.linspace(0.0, 1.0, BINS + 1)
    found = []
    for b in range(BINS):
        rows = which == b
        count = int(rows.sum())
        if not count:
            found.append(ReliabilityBin(float(edges[b]), float(edges[b + 1]), 0, None, None, None, None))
            continue
        share = float(event[rows].mean())
        low, high = wilson(share, count)
        found.append(
            ReliabilityBin(float(edges[b]), float(edges[b + 1]), count, float(p[rows].mean()), share, low, high)
        )
    return found


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % score interval of a share (Wilson, JASA 22, 1927)."""
    z2 = _QUANTILE_975**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _QUANTILE_975 * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True)
class RiskCoverage:
    """What share is answered (coverage) and what share of that is wrong (risk), as the threshold falls.

    thresholds, coverage, risk: one point for every distinct confidence, thinned; aurc: the area below, over all points
    (Geifman and El-Yaniv, NeurIPS 2017): the mean risk over all coverages, ties acted on together.
    """

    thresholds: list[float]
    coverage: list[float]
    risk: list[float]
    aurc: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def risk_coverage(confidence: Doubles, right: Doubles) -> RiskCoverage:
    """confidence, right: (n,), n at least 1."""
    order = np.argsort(-confidence, kind="stable")
    ranked, wrong = confidence[order], 1.0 - right[order]
    last = np.flatnonzero(np.concatenate([np.diff(ranked) != 0, [True]]))  # the last answer of each threshold
    coverage = (last + 1) / len(ranked)
    risk = np.cumsum(wrong)[last] / (last + 1)
    aurc = float(np.diff(coverage, prepend=0.0) @ risk)
    shown = np.unique(np.linspace(0, len(last) - 1, min(_MOST_POINTS, len(last))).round().astype(np.int64))
    return RiskCoverage(ranked[last][shown].tolist(), coverage[shown].tolist(), risk[shown].tolist(), aurc)


@dataclass(frozen=True)
class Confusion:
    """counts[i][j]: answers of the question whose gold is options[i] and which say options[j]."""

    question: str
    options: list[str]
    counts: list[list[int]]


def confusions(answers: Sequence[LabelledAnswer], judged: Judged, most: int = 20) -> list[Confusion]:
    """Of the questions asked most often, those with the same options throughout. judged: the same answers."""
    rows: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for row, answer in enumerate(answers):
        rows.setdefault((answer.question, answer.options), []).append(row)
    asked = [question for question, _ in rows]
    found: list[Confusion] = []
    for question, options in sorted(rows, key=lambda key: -len(rows[key])):
        if asked.count(question) > 1 or len(found) == most:
            continue
        counts = np.zeros((len(options), len(options)), np.int64)
        for row in rows[question, options]:
            counts[answers[row].gold.label, judged.said[row]] += 1
        found.append(Confusion(question, list(options), counts.tolist()))
    return found
