"""Temperatures: the one that generated the answers is found again; clamps and small counts are said, not hidden."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from layactl.calib.temperature import Cell, TemperatureFit, fit_temperature, fit_temperatures, temperature_block
from layactl.core.calibration import Calibration
from layactl.errors import UsageError
from layactl.labelled.gold import Gold
from tests.calib.simulated import answer, answers, member


@pytest.mark.parametrize("true", [0.6, 1.0, 1.7, 4.0])
def test_the_temperature_that_made_the_answers_is_recovered(true: float):
    found = fit_temperature(answers(np.random.default_rng(11), 4000, true))
    assert found.interval is not None
    assert found.interval[0] < true < found.interval[1]
    assert found.temperature == pytest.approx(true, rel=0.08)


def loss(items: list, temperature: float) -> float:
    """The negative log likelihood, by an independent softmax."""
    return -sum(
        float(np.dot(item.gold.probabilities, log_softmax(np.array(item.logits) / temperature))) for item in items
    )


@pytest.mark.parametrize("seed", range(5))
def test_no_other_solver_finds_a_likelier_one(seed: int):
    rng = np.random.default_rng(seed)
    items = answers(rng, 60, 1.5, options=3) + answers(rng, 60, 1.1, options=7)
    found = fit_temperature(items)
    other = minimize_scalar(lambda t: loss(items, t), bounds=(0.05, 50), method="bounded", options={"xatol": 1e-10})
    assert found.likeliest == pytest.approx(other.x, rel=1e-5)


def test_soft_labels_are_fitted_as_distributions():
    rng = np.random.default_rng(3)
    items = []
    for i in range(400):
        z = rng.normal(0, 3, 4)
        p = np.exp(z / 1.6) / np.exp(z / 1.6).sum()
        items.append(answer(z, int(p.argmax()), i, gold=Gold(int(p.argmax()), tuple(p))))
    # With the very distributions as gold the temperature is exact, whatever was drawn.
    assert fit_temperature(items).likeliest == pytest.approx(1.6, rel=1e-9)


def test_an_answer_repeated_is_the_same_as_counted_twice():
    items = answers(np.random.default_rng(5), 200, 1.4)
    assert fit_temperature(items + items).likeliest == pytest.approx(fit_temperature(items).likeliest, rel=1e-9)


def test_shifting_all_logits_of_an_answer_changes_nothing():
    items = answers(np.random.default_rng(6), 200, 1.4)
    moved = [answer([z + 700.0 for z in item.logits], item.gold.label, i) for i, item in enumerate(items)]
    assert fit_temperature(moved).likeliest == pytest.approx(fit_temperature(items).likeliest, rel=1e-6)


@pytest.mark.parametrize(
    ("items", "likeliest", "used"),
    [
        ([answer([3, 0], 0), answer([0, 2], 1)], 0.0, 0.5),  # all right: certainty is likeliest
        ([answer([3, 0], 1), answer([0, 2], 0)], math.inf, 5.0),  # all wrong: ignorance is
        ([answer([1e300, -1e300], 0), answer([-1e300, 1e300], 1)], 0.0, 0.5),
    ],
)
def test_where_no_temperature_is_likeliest_the_clamp_is_used_and_said(items: list, likeliest: float, used: float):
    found = fit_temperature(items)
    assert (found.likeliest, found.temperature, found.clamped, found.interval) == (likeliest, used, True, None)
    assert found.to_json()["clamped"]


def test_a_temperature_outside_the_clamp_is_clamped_and_said():
    found = fit_temperature(answers(np.random.default_rng(1), 2000, 0.3))
    assert found.likeliest == pytest.approx(0.3, rel=0.1)
    assert (found.temperature, found.clamped) == (0.5, True)


def test_one_cluster_has_no_interval():
    items = [answer([1, 0], i % 2, i, member=member(i, 0)) for i in range(10)]
    assert fit_temperature([*items, answer([2, 0], 0, 99, member=member(99, 0))]).interval is None


def test_answers_of_one_cluster_widen_the_interval():
    rng = np.random.default_rng(2)
    alone = answers(rng, 300, 1.5)
    together = [
        answer(item.logits, item.gold.label, i, member=member(i * 10 + k, i))
        for i, item in enumerate(alone)
        for k in range(10)
    ]
    apart = [answer(item.logits, item.gold.label, i) for i, item in enumerate(together)]

    def width(found: TemperatureFit) -> float:
        assert found.interval is not None
        return found.interval[1] - found.interval[0]

    # Ten copies in one cluster are one observation; taken as independent they would seem to be ten.
    assert width(fit_temperature(together)) == pytest.approx(width(fit_temperature(alone)), rel=0.01)
    assert width(fit_temperature(apart)) == pytest.approx(width(fit_temperature(alone)) / math.sqrt(10), rel=0.02)


def test_the_interval_is_the_sandwich_of_the_likelihood():
    """1 / T plus or minus 1.96 standard errors on the scale of its logarithm, derivatives by differences."""
    items = answers(np.random.default_rng(9), 40, 2.0, per_group=5)
    found = fit_temperature(items)
    beta, step, groups = 1 / found.likeliest, 1e-4, 8

    def likelihood(part: list, b: float) -> float:
        return -loss(part, 1 / b)

    slopes = [
        (likelihood(items[i : i + 5], beta + step) - likelihood(items[i : i + 5], beta - step)) / (2 * step)
        for i in range(0, 40, 5)
    ]
    curvature = (
        likelihood(items, beta + step) - 2 * likelihood(items, beta) + likelihood(items, beta - step)
    ) / step**2
    error = math.sqrt(groups / (groups - 1) * sum(s**2 for s in slopes)) / -curvature
    half = 1.959964 * error / beta
    assert found.interval == pytest.approx((math.exp(-half) / beta, math.exp(half) / beta), rel=1e-4)


@pytest.mark.parametrize("draws", [100, pytest.param(1000, marks=pytest.mark.full)])
def test_the_interval_holds_the_true_temperature_as_often_as_it_says(draws: int):
    rng = np.random.default_rng(42)
    held = 0
    for _ in range(draws):
        low, high = fit_temperature(answers(rng, 300, 1.5, per_group=3)).interval or (0, 0)
        held += low < 1.5 < high
    # 95 %, within three standard deviations of a binomial and the few percent a sandwich of 100 clusters lacks.
    assert 0.95 - 3 * math.sqrt(0.95 * 0.05 / draws) - 0.02 <= held / draws <= 0.95 + 3 * math.sqrt(0.95 * 0.05 / draws)


def cells(found: list[Cell]) -> dict[str, float | None]:
    return {f"{cell.type} {cell.bucket}": cell.fit.temperature if cell.fit else None for cell in found}


def test_each_type_and_bucket_has_its_own_and_small_ones_fall_back():
    rng = np.random.default_rng(0)
    items = (
        answers(rng, 400, 1.2, options=2)
        + answers(rng, 400, 2.0, options=4)
        + answers(rng, 20, 1.0, options=12)
        + answers(rng, 300, 0.8, options=2, type="noul")
        + answers(rng, 30, 1.0, options=3, type="score")
    )
    found = fit_temperatures(items, 100)
    fitted = cells(found)
    assert [name for name, value in fitted.items() if value is None] == ["choice 11+", "score *"]
    assert fitted["choice 2"] == pytest.approx(1.2, rel=0.15)
    assert fitted["choice 3-5"] == pytest.approx(2.0, rel=0.15)
    # All nouls have two options: no bucket beside the type.
    assert "noul 2" not in fitted and fitted["noul *"] == pytest.approx(0.8, rel=0.2)

    block = temperature_block(found)
    assert list(block) == ["choice", "noul", "all"]
    assert list(block["choice"]) == ["2", "3-5", "*"]
    table = Calibration("fit", block)
    assert table.temperature_for("choice", 4) == fitted["choice 3-5"]
    assert table.temperature_for("choice", 12) == fitted["choice *"]
    assert table.temperature_for("score", 3) == fitted["all *"]


def test_too_few_of_everything_leaves_1():
    found = fit_temperatures(answers(np.random.default_rng(0), 20, 2.0), 100)
    assert temperature_block(found) == {}
    assert Calibration("fit", temperature_block(found)).temperature_for("choice", 4) == 1.0


def test_questions_of_one_option_say_nothing():
    items = answers(np.random.default_rng(0), 200, 2.0)
    lonely = [answer([1.0], 0, 1000 + i) for i in range(500)]
    assert cells(fit_temperatures(items + lonely, 100)) == cells(fit_temperatures(items, 100))


def test_a_missing_extra_is_one_error_with_its_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(UsageError, match="scipy is needed") as caught:
        fit_temperature(answers(np.random.default_rng(0), 20, 2.0))
    assert caught.value.hint == "pip install 'layactl[calib]'"


def test_equal_logits_are_as_likely_at_any_temperature_and_none_is_fitted():
    assert fit_temperature([answer([1, 1, 1], 2), answer([7, 7], 0)]) is None
    [cell] = [c for c in fit_temperatures([answer([1, 1, 1], 2)] * 5, 5) if c.type == "all"]
    assert (cell.fit, cell.why) == (None, "all logits are equal, any T is as likely")
