"""Platt's sigmoid: the published algorithm's optimum, and the parameters that made the outcomes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from layactl.calib.platt import fit_platt
from layactl.errors import InputError
from tests.calib.simulated import scores


def lin_lin_weng(deci: list[float], label: list[int]) -> tuple[float, float]:
    """Pseudo code of Lin, Lin and Weng (2007), appendix: P = 1 / (1 + exp(A f + B)), Newton with backtracking."""
    prior1, prior0 = sum(label), len(label) - sum(label)
    hi, lo = (prior1 + 1) / (prior1 + 2), 1 / (prior0 + 2)
    t = [hi if y else lo for y in label]

    def value(a: float, b: float) -> float:
        total = 0.0
        for f, t_i in zip(deci, t, strict=True):
            s = f * a + b
            total += t_i * s + math.log1p(math.exp(-s)) if s >= 0 else (t_i - 1) * s + math.log1p(math.exp(s))
        return total

    a, b = 0.0, math.log((prior0 + 1) / (prior1 + 1))
    current = value(a, b)
    for _ in range(100):
        h11 = h22 = 1e-12
        h21 = g1 = g2 = 0.0
        for f, t_i in zip(deci, t, strict=True):
            s = f * a + b
            p, q = (
                (math.exp(-s) / (1 + math.exp(-s)), 1 / (1 + math.exp(-s)))
                if s >= 0
                else (1 / (1 + math.exp(s)), math.exp(s) / (1 + math.exp(s)))
            )
            d2, d1 = p * q, t_i - p
            h11, h22, h21, g1, g2 = h11 + f * f * d2, h22 + d2, h21 + f * d2, g1 + f * d1, g2 + d1
        if abs(g1) < 1e-10 and abs(g2) < 1e-10:
            break
        det = h11 * h22 - h21 * h21
        da, db = -(h22 * g1 - h21 * g2) / det, -(-h21 * g1 + h11 * g2) / det
        gd, step = g1 * da + g2 * db, 1.0
        while step >= 1e-10:
            if (new := value(a + step * da, b + step * db)) < current + 1e-4 * step * gd:
                a, b, current = a + step * da, b + step * db, new
                break
            step /= 2
        else:
            break
    return a, b


@pytest.mark.parametrize(
    ("a", "b", "n"), [(1.0, 0.0, 300), (0.3, -1.5, 300), (-0.7, 0.4, 200), (4.0, 6.0, 100), (1.0, 5.0, 60)]
)
def test_the_optimum_is_the_one_of_the_published_algorithm(a: float, b: float, n: int):
    items = scores(np.random.default_rng(n), n, a, b)
    z, y = [item.logit or 0.0 for item in items], [item.outcome for item in items]
    found = fit_platt(z, y, range(n))
    reference = lin_lin_weng(z, y)
    # Theirs is 1 / (1 + exp(A f + B)).
    assert (found.a, found.b) == pytest.approx((-reference[0], -reference[1]), rel=1e-5, abs=1e-6)


def test_separated_classes_have_a_finite_slope():
    z, y = [-2.0, -1.0, 1.0, 2.0], [0, 0, 1, 1]
    found = fit_platt(z, y, range(4))
    a, b = lin_lin_weng(z, y)
    assert (found.a, found.b) == pytest.approx((-a, -b), rel=1e-5, abs=1e-6)
    assert math.isfinite(found.a)


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (0.4, -1.0), (2.5, 1.5)])
def test_the_parameters_that_made_the_outcomes_are_recovered(a: float, b: float):
    items = scores(np.random.default_rng(7), 6000, a, b)
    found = fit_platt([item.logit or 0.0 for item in items], [item.outcome for item in items], range(6000))
    assert found.intervals is not None
    for value, (low, high) in zip((a, b), found.intervals, strict=True):
        assert low < value < high
        assert high - low < 0.5


def test_the_intervals_are_the_sandwich_in_the_logits_own_units():
    items = scores(np.random.default_rng(3), 90, 0.8, -0.4, per_task=3)
    z = 100.0 + 7.0 * np.array([item.logit for item in items], float)
    y = np.array([item.outcome for item in items])
    found = fit_platt(z.tolist(), y.tolist(), [i // 3 for i in range(90)])
    hits = int(y.sum())
    target = np.where(y == 1, (hits + 1) / (hits + 2), 1 / (90 - hits + 2))
    x = np.stack([z, np.ones(90)], axis=1)
    p = 1 / (1 + np.exp(-x @ [found.a, found.b]))
    scored = ((p - target)[:, None] * x).reshape(30, 3, 2).sum(axis=1)
    bread = np.linalg.inv((x * (p * (1 - p))[:, None]).T @ x)
    errors = np.sqrt(np.diag(bread @ scored.T @ scored @ bread) * 30 / 29)
    for value, error, interval in zip((found.a, found.b), errors, found.intervals or (), strict=True):
        assert interval == pytest.approx((value - 1.959964 * error, value + 1.959964 * error), rel=1e-4)


@pytest.mark.parametrize("draws", [50, pytest.param(1000, marks=pytest.mark.full)])
def test_the_intervals_hold_the_true_parameters_as_often_as_they_say(draws: int):
    rng = np.random.default_rng(17)
    held = np.zeros(2)
    for _ in range(draws):
        items = scores(rng, 1500, 0.8, -0.5, per_task=5)
        found = fit_platt([i.logit or 0.0 for i in items], [i.outcome for i in items], [n // 5 for n in range(1500)])
        assert found.intervals is not None
        held += [low < true < high for true, (low, high) in zip((0.8, -0.5), found.intervals, strict=True)]
    spread = 3 * math.sqrt(0.95 * 0.05 / draws)
    assert (held / draws >= 0.95 - spread - 0.02).all() and (held / draws <= 0.95 + spread).all()


def test_the_scale_of_the_logits_does_not_matter():
    items = scores(np.random.default_rng(1), 500, 1.0, 0.2)
    z, y = [item.logit or 0.0 for item in items], [item.outcome for item in items]
    plain = fit_platt(z, y, range(500))
    for scale, shift in ((1e6, 0.0), (1e-6, 0.0), (1.0, 1000.0)):
        moved = fit_platt([scale * v + shift for v in z], y, range(500))
        assert moved.a * scale == pytest.approx(plain.a, rel=1e-5)
        assert moved.b + moved.a * shift == pytest.approx(plain.b, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("logits", [[1.5] * 10, [1e308, -1e308] * 5])
def test_logits_without_a_slope_are_refused(logits: list[float]):
    with pytest.raises(InputError, match="all equal, or too large"):
        fit_platt(logits, [0, 1] * 5, range(10), "logits.jsonl")
