"""Numbers that say how good probabilities are, each as a function of how often every cluster is counted.

A statistic takes weights (B, G): row b counts cluster g that many times. A row of ones gives the number itself, rows
drawn with replacement its bootstrap distribution. It returns (B,) doubles, NaN where it is not defined (a class is
absent, nothing was drawn).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]

BINS = 10
# Weights times items that are held at once.
_MOST_AT_ONCE = 2_000_000


class Statistic(Protocol):
    """(B, G) weights of clusters -> (B,) values."""

    def __call__(self, weights: Doubles, /) -> Doubles: ...


class Mean:
    """The mean of `values`, or of those that `among` counts: a ratio of two sums over the drawn clusters.

    values, among: (n,), NaN-free; cluster: (n,) in 0..clusters-1.
    """

    def __init__(self, values: Doubles, cluster: Integers, clusters: int, among: Doubles | None = None) -> None:
        among = np.ones(len(values)) if among is None else among
        self._sums = _cluster_sums([values * among, among], cluster, clusters)

    def __call__(self, weights: Doubles) -> Doubles:
        total, count = (weights @ self._sums).T
        return _ratio(total, count)


class CalibrationError:
    """Expected calibration error: sum over bins of |mean p - share of events| times the bin's share of all.

    Ten equal-width bins (0, 0.1], (0.1, 0.2], ..., with 0 in the first, as in sklearn.calibration.calibration_curve.
    p, event: (n,), event 0 or 1, or the probability of it where only that is known (Naeini et al., AAAI 2015).
    """

    def __init__(self, p: Doubles, event: Doubles, cluster: Integers, clusters: int, bins: int = BINS) -> None:
        # In a bin, count * |mean p - share| is |sum (p - event)|: one column a bin and one for the count.
        which = bin_of(p, bins)
        columns = [np.where(which == b, p - event, 0.0) for b in range(bins)]
        self._sums = _cluster_sums([*columns, np.ones(len(p))], cluster, clusters)

    def __call__(self, weights: Doubles) -> Doubles:
        sums = weights @ self._sums
        return _ratio(np.abs(sums[:, :-1]).sum(axis=1), sums[:, -1])


class MacroF1:
    """The mean F1 of the classes, each 2 tp / (2 tp + fp + fn), over those that are predicted or true at all.

    predicted, true: (n,) class numbers.
    """

    def __init__(self, predicted: Integers, true: Integers, cluster: Integers, clusters: int) -> None:
        classes = np.union1d(predicted, true)
        columns = []
        for c in classes:
            columns += [(predicted == c) & (true == c), (predicted == c).astype(np.int64) + (true == c)]
        self._sums = _cluster_sums([column.astype(np.float64) for column in columns], cluster, clusters)

    def __call__(self, weights: Doubles) -> Doubles:
        sums = weights @ self._sums
        hits, counted = sums[:, 0::2], sums[:, 1::2]
        return _mean_defined(_ratio(2.0 * hits, counted), axis=1)


class Auc:
    """Area under the ROC curve: how often an event has the higher score than a non-event, ties counting half.

    score: (n,); event: (n,), 0 or 1. Not defined where one of the two is absent.
    """

    def __init__(self, score: Doubles, event: Doubles, cluster: Integers, clusters: int) -> None:
        order = np.argsort(score, kind="stable")
        self._cluster, self._event = cluster[order], event[order]
        self._starts = np.flatnonzero(np.concatenate([[True], np.diff(score[order]) != 0])) if len(score) else order

    def __call__(self, weights: Doubles) -> Doubles:
        if not len(self._event):
            return np.full(len(weights), np.nan)
        rows = max(1, _MOST_AT_ONCE // len(self._event))
        return np.concatenate([self._part(weights[i : i + rows]) for i in range(0, len(weights), rows)])

    def _part(self, weights: Doubles) -> Doubles:
        drawn = weights[:, self._cluster]  # (B, n), by rising score
        events = np.add.reduceat(drawn * self._event, self._starts, axis=1)  # (B, distinct scores)
        others = np.add.reduceat(drawn * (1.0 - self._event), self._starts, axis=1)
        below = np.cumsum(others, axis=1) - others
        return _ratio((events * (below + 0.5 * others)).sum(axis=1), events.sum(axis=1) * others.sum(axis=1))


@dataclass(frozen=True)
class MeanOf:
    """The mean of several statistics, over those that are defined."""

    parts: Sequence[Statistic]

    def __call__(self, weights: Doubles) -> Doubles:
        if not self.parts:
            return np.full(len(weights), np.nan)
        return _mean_defined(np.stack([part(weights) for part in self.parts]), axis=0)


@dataclass(frozen=True)
class Difference:
    """after - before, both over the same draws: a paired comparison."""

    before: Statistic
    after: Statistic

    def __call__(self, weights: Doubles) -> Doubles:
        return self.after(weights) - self.before(weights)


def bin_of(p: Doubles, bins: int = BINS) -> Integers:
    """The bin, from 0, of every probability; an edge belongs to the bin below it."""
    return np.searchsorted(np.linspace(0.0, 1.0, bins + 1)[1:-1], p, side="left").astype(np.int64)


def _cluster_sums(columns: Sequence[Doubles], cluster: Integers, clusters: int) -> Doubles:
    """(n,) columns -> (G, columns), each summed over the items of a cluster."""
    sums = np.zeros((clusters, len(columns)))
    for i, column in enumerate(columns):
        sums[:, i] = np.bincount(cluster, column, clusters)
    return sums


def _ratio(top: Doubles, bottom: Doubles) -> Doubles:
    result: Doubles = np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=bottom > 0)
    return result


def _mean_defined(values: Doubles, axis: int) -> Doubles:
    defined = ~np.isnan(values)
    return _ratio(np.where(defined, values, 0.0).sum(axis=axis), defined.sum(axis=axis).astype(np.float64))
