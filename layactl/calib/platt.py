"""The router's calibration p = sigmoid(a z + b), with Platt's prior-corrected targets.

Platt, Advances in Large Margin Classifiers (1999); Lin, Lin and Weng, Machine Learning 68 (2007): the targets
(N+ + 1) / (N+ + 2) and 1 / (N- + 2) keep the optimum finite, so Newton's method with a trust region always finds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from layactl.calib.extra import scientific
from layactl.calib.statistic import Doubles
from layactl.errors import InputError

_QUANTILE_975 = 1.959963984540054
_GRADIENT = 1e-9


@dataclass(frozen=True)
class PlattFit:
    """intervals: 95 %, cluster-robust, of a and b, None from one cluster; count, positives: what it was fitted on."""

    a: float
    b: float
    intervals: tuple[tuple[float, float], tuple[float, float]] | None
    count: int
    positives: int

    def block(self) -> dict[str, Any]:
        """The `router.calibration` of a spec."""
        return {"method": "platt", "a": self.a, "b": self.b}

    def to_json(self) -> dict[str, Any]:
        intervals = None if self.intervals is None else {"a": list(self.intervals[0]), "b": list(self.intervals[1])}
        return self.block() | {"intervals": intervals, "candidates": self.count, "successes": self.positives}


def fit_platt(logits: Sequence[float], outcomes: Sequence[int], clusters: Sequence[int], where: str = "") -> PlattFit:
    """a and b of the likeliest sigmoid.

    clusters: numbers from 0, what shares one is not taken as independent; where: what errors name.
    Raises InputError for logits that are all equal, which leave a undetermined.
    """
    z, y = np.array(logits, np.float64), np.array(outcomes, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        centre, scale = float(np.mean(z)), float(np.std(z))
    if not math.isfinite(scale) or scale <= 1e-12 * max(1.0, abs(centre)):
        raise InputError("the logits are all equal, or too large, to fit a slope to", where=where or None)
    positives = int(y.sum())
    target = np.where(y == 1, (positives + 1.0) / (positives + 2.0), 1.0 / (len(y) - positives + 2.0))
    # Columns of the standardised logit and of 1: the optimum is where they were, and the search never ill-conditioned.
    x = np.stack([(z - centre) / scale, np.ones(len(z))], axis=1)
    w = _newton(x, target)
    to_raw = np.array([[1.0 / scale, 0.0], [-centre / scale, 1.0]])
    a, b = to_raw @ w
    return PlattFit(float(a), float(b), _intervals(x, target, w, to_raw, clusters), len(y), positives)


def _newton(x: Doubles, target: Doubles) -> Doubles:
    def loss(w: Doubles) -> float:
        f = x @ w
        return float(np.mean(np.logaddexp(0.0, f) - target * f))

    def gradient(w: Doubles) -> Doubles:
        slope: Doubles = x.T @ (_sigmoid(x @ w) - target) / len(x)
        return slope

    def hessian(w: Doubles) -> Doubles:
        p = _sigmoid(x @ w)
        curvature: Doubles = (x * (p * (1.0 - p))[:, None]).T @ x / len(x)
        return curvature

    share = float(np.mean(target))
    start = np.array([0.0, math.log(share / (1.0 - share))])
    found = scientific("scipy.optimize").minimize(
        loss, start, jac=gradient, hess=hessian, method="trust-exact", options={"gtol": _GRADIENT, "maxiter": 1000}
    )
    result: Doubles = found.x
    # The last step that rounding allows may stop short of the tolerance the search was given.
    if float(np.abs(gradient(result)).max()) > 1e-6:
        raise InputError(f"no sigmoid fits the logits: {found.message}")
    return result


def _intervals(
    x: Doubles, target: Doubles, w: Doubles, to_raw: Doubles, clusters: Sequence[int]
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """The sandwich estimate of the covariance, summed over clusters."""
    cluster = np.array(clusters)
    groups = int(cluster.max()) + 1
    if groups < 2:
        return None
    p = _sigmoid(x @ w)
    residual = (p - target)[:, None] * x
    scores = np.stack([np.bincount(cluster, residual[:, i], groups) for i in range(2)], axis=1)
    bread = np.linalg.pinv((x * (p * (1.0 - p))[:, None]).T @ x)
    covariance = to_raw @ bread @ (scores.T @ scores) @ bread @ to_raw.T * groups / (groups - 1)
    half = _QUANTILE_975 * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    a, b = to_raw @ w
    return (float(a - half[0]), float(a + half[0])), (float(b - half[1]), float(b + half[1]))


def _sigmoid(x: Doubles) -> Doubles:
    small = np.exp(-np.abs(x))
    result: Doubles = np.where(x >= 0, 1.0, small) / (1.0 + small)
    return result
