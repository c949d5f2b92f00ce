"""95 % percentile intervals of a cluster bootstrap: whole clusters are drawn, since what is in one is not independent.

Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13; Field and Welsh, JRSS B 69 (2007), for
clusters. A calibration error is biased upward by resampling, so its interval may lie above the number itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from layactl.calib.statistic import Doubles, Statistic

LEVEL = 0.95
RESAMPLES = 1000
_CHUNK = 2_000_000
# An interval of fewer defined resamples than this would be made of the lucky ones.
_DEFINED = 0.5


@dataclass(frozen=True)
class Bootstrap:
    """resamples: how often; 0 gives no intervals. The same seed draws the same clusters, so results repeat."""

    resamples: int = RESAMPLES
    seed: int = 0

    def to_json(self, clusters: int) -> dict[str, Any]:
        return {
            "interval": f"{LEVEL:.0%} percentile, clusters resampled",
            "resamples": self.resamples,
            "seed": self.seed,
            "clusters": clusters,
        }


@dataclass(frozen=True)
class Estimate:
    """A number and its interval; None where it is not defined, or where one cluster allows no interval."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def excludes_zero(self) -> bool:
        """Of a difference: whether it is a convincing one."""
        return self.low is not None and self.high is not None and not self.low <= 0.0 <= self.high

    def to_json(self) -> dict[str, Any]:
        interval = None if self.low is None or self.high is None else [self.low, self.high]
        return {"value": self.value, "interval": interval}


def estimate(statistics: Mapping[str, Statistic], clusters: int, bootstrap: Bootstrap) -> dict[str, Estimate]:
    """Every statistic and its interval, all over the same draws. clusters: how many there are."""
    points = {name: _defined(float(statistic(np.ones((1, clusters)))[0])) for name, statistic in statistics.items()}
    if clusters < 2 or bootstrap.resamples < 1:
        return {name: Estimate(value) for name, value in points.items()}
    drawn: dict[str, list[Doubles]] = {name: [] for name in statistics}
    for weights in _draws(clusters, bootstrap):
        for name, statistic in statistics.items():
            drawn[name].append(statistic(weights))
    return {name: _interval(points[name], np.concatenate(values)) for name, values in drawn.items()}


def _draws(clusters: int, bootstrap: Bootstrap) -> Iterator[Doubles]:
    """(b, G) counts of how often each cluster is drawn, `resamples` rows in all."""
    rng = np.random.default_rng(bootstrap.seed)
    shares = np.full(clusters, 1.0 / clusters)
    rows = max(1, _CHUNK // clusters)
    for start in range(0, bootstrap.resamples, rows):
        yield rng.multinomial(clusters, shares, size=min(rows, bootstrap.resamples - start)).astype(np.float64)


def _interval(point: float | None, values: Doubles) -> Estimate:
    defined = values[~np.isnan(values)]
    if point is None or len(defined) < _DEFINED * len(values):
        return Estimate(point)
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(point, float(low), float(high))


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else value
