"""Every metric equals what scikit-learn and SciPy say of the same numbers, which are the numbers that are printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import f1_score, roc_auc_score

from layactl.calib.bootstrap import Bootstrap, estimate
from layactl.calib.judged import (
    Judged,
    judge_answers,
    judge_scores,
    predicted_option,
    printed,
    statistics_of,
)
from layactl.calib.logits import LabelledAnswer, LabelledScore
from layactl.calib.statistic import Auc, CalibrationError, Difference, MacroF1, Mean, bin_of
from layactl.core.calibration import platt
from layactl.labelled.gold import Gold
from tests.calib.examples import card
from tests.calib.golden import GOLDEN
from tests.calib.simulated import answer, answers, member, scores

NO_INTERVALS = Bootstrap(resamples=0)


def points(judged: Judged) -> dict[str, float | None]:
    return {name: found.value for name, found in estimate(statistics_of(judged), judged.clusters, NO_INTERVALS).items()}


@pytest.mark.parametrize("case", GOLDEN["decisions"], ids=lambda case: f"{len(case['logits'][0])} options")
def test_decision_metrics_are_those_of_the_libraries(case: dict[str, Any]):
    items = [answer(z, label, i) for i, (z, label) in enumerate(zip(case["logits"], case["labels"], strict=True))]
    found = points(judge_answers(items, lambda item: case["temperature"]))
    for metric, value in case["expected"].items():
        assert found[metric] == pytest.approx(value, abs=1e-12), metric


@pytest.mark.parametrize("case", GOLDEN["router"], ids=lambda case: f"platt {case['platt']}")
def test_router_metrics_are_those_of_the_libraries(case: dict[str, Any]):
    a, b = case["platt"]
    items = [
        LabelledScore(member(i), "c", card(), y, z)
        for i, (z, y) in enumerate(zip(case["logits"], case["outcomes"], strict=True))
    ]
    found = points(judge_scores(items, lambda item: platt(a, b, item.logit or 0.0)))
    for metric, value in case["expected"].items():
        assert found[metric] == pytest.approx(value, abs=1e-12), metric


@pytest.mark.parametrize(
    ("p", "number"),
    [(0.0, 0), (0.1, 0), (0.1 + 1e-9, 1), (0.3, 2), (0.5, 4), (0.95, 9), (1.0, 9)],
)
def test_an_edge_belongs_to_the_bin_below_it(p: float, number: int):
    # 0.3 is below the third edge of ten, 0.30000000000000004, as it is for the libraries.
    assert bin_of(np.array([p])).tolist() == [number]


def test_a_noul_is_true_from_one_half_on_and_others_are_their_first_largest():
    assert predicted_option("noul", [0.5, 0.5]) == 1
    assert predicted_option("noul", [0.6, 0.4]) == 0
    assert predicted_option("choice", [0.2, 0.4, 0.4]) == 1
    assert predicted_option("score", [0.5, 0.5]) == 0


def test_rounded_numbers_are_judged_as_they_are_printed():
    item = answer([0.123, 1.456, -0.5], 1)
    assert printed(item, 1.0, 2) == [round(p, 2) for p in printed(item, 1.0)]
    found = points(judge_answers([item], lambda _: 1.0, digits=1))
    assert found["ece"] == pytest.approx(1 - round(max(printed(item, 1.0)), 1))


def test_soft_gold_is_judged_as_a_distribution():
    gold = Gold(1, (0.25, 0.75))
    found = points(judge_answers([answer([0.0, 0.0], 1, gold=gold)], lambda _: 1.0))
    assert found["brier"] == pytest.approx(2 * 0.25**2)
    assert found["nll"] == pytest.approx(math.log(2))
    assert found["classwise_ece"] == pytest.approx(0.25)


def test_the_expected_level_is_held_to_the_gold_level():
    items = [answer([0.0, 0.0, 0.0], 2, type="score"), answer([9.0, 0.0], 1, 1)]
    assert points(judge_answers(items, lambda _: 1.0))["score_mae"] == pytest.approx(1.0)
    assert points(judge_answers(items[1:], lambda _: 1.0))["score_mae"] is None


def test_a_certain_error_costs_no_infinity():
    found = points(judge_answers([answer([1e4, 0.0], 1)], lambda _: 1.0))
    assert found["nll"] == pytest.approx(-math.log(np.finfo(float).eps))


def test_what_the_gate_holds_back_is_neither_covered_nor_counted():
    items = [answer([3.0, 0.0], 0, 0), answer([3.0, 0.0], 1, 1), answer([0.1, 0.0], 1, 2), answer([0.2, 0.0], 0, 3)]
    found = points(judge_answers(items, lambda _: 1.0, acts=lambda item, confidence: confidence > 0.9))
    assert (found["coverage"], found["selective_accuracy"], found["accuracy"]) == (0.5, 0.5, 0.5)
    none = points(judge_answers(items, lambda _: 1.0, acts=lambda item, confidence: False))
    assert (none["coverage"], none["selective_accuracy"]) == (0.0, None)


def test_a_class_that_is_absent_leaves_the_auc_undefined():
    items = [LabelledScore(member(i), "c", card(), 1, float(i)) for i in range(5)]
    found = points(judge_scores(items, lambda item: 0.7))
    assert found["auc"] is None
    assert found["accuracy"] == 1.0


def test_f1_is_the_mean_over_questions_of_the_mean_over_labels():
    rng = np.random.default_rng(0)
    items = answers(rng, 80, 1.0, options=3, question="a") + answers(rng, 40, 1.0, options=5, question="b")
    expected = []
    for name in "ab":
        part = [item for item in items if item.question == name]
        top = [int(np.argmax(item.logits)) for item in part]
        expected.append(f1_score([item.gold.label for item in part], top, average="macro"))
    assert points(judge_answers(items, lambda _: 1.0))["macro_f1"] == pytest.approx(np.mean(expected))


@given(
    st.lists(
        st.tuples(st.sampled_from([0.1, 0.25, 0.5, 0.7, 0.7000000001, 1.0]), st.booleans()), min_size=1, max_size=40
    ),
    st.data(),
)
def test_a_weighted_statistic_is_the_one_of_the_repeated_items(rows: list[tuple[float, bool]], data: st.DataObject):
    """A bootstrap row counts clusters; counting them is repeating their items, which the libraries can do too."""
    clusters = data.draw(st.integers(1, 6))
    cluster = np.array([data.draw(st.integers(0, clusters - 1)) for _ in rows])
    weights = np.array([[data.draw(st.integers(0, 3)) for _ in range(clusters)]], dtype=float)
    p, y = np.array([p for p, _ in rows]), np.array([float(y) for _, y in rows])
    predicted = (p > 0.5).astype(np.int64)
    times = weights[0, cluster].astype(int)
    rp, ry, rpredicted = np.repeat(p, times), np.repeat(y, times), np.repeat(predicted, times)

    def value(statistic: Any) -> float:
        return float(statistic(weights)[0])

    if not len(rp):
        assert math.isnan(value(Mean(p, cluster, clusters))) and math.isnan(value(Auc(p, y, cluster, clusters)))
        return
    one = np.zeros(len(rp), np.int64)
    ones = np.ones((1, 1))
    assert value(Mean(p, cluster, clusters)) == pytest.approx(rp.mean())
    assert value(CalibrationError(p, y, cluster, clusters)) == pytest.approx(CalibrationError(rp, ry, one, 1)(ones)[0])
    f1 = f1_score(ry.astype(int), rpredicted, average="macro")
    assert value(MacroF1(predicted, y.astype(np.int64), cluster, clusters)) == pytest.approx(f1)
    if 0 < ry.sum() < len(ry):
        assert value(Auc(p, y, cluster, clusters)) == pytest.approx(roc_auc_score(ry, rp))
    else:
        assert math.isnan(value(Auc(p, y, cluster, clusters)))


def cluster_mean(rng: np.random.Generator, groups: int, per_group: int) -> tuple[Mean, float]:
    """The accuracy of answers whose cluster decides most of it; its expectation is 0.7."""
    easy = rng.random(groups) < 0.7
    right = np.where(rng.random((groups, per_group)) < 0.8, easy[:, None], rng.random((groups, per_group)) < 0.7)
    return Mean(right.ravel().astype(float), np.repeat(np.arange(groups), per_group), groups), 0.7


@pytest.mark.parametrize("draws", [120, pytest.param(1000, marks=pytest.mark.full)])
def test_the_interval_of_a_clustered_mean_holds_the_truth_as_often_as_it_says(draws: int):
    rng = np.random.default_rng(5)
    held = apart = 0
    for n in range(draws):
        statistic, truth = cluster_mean(rng, 120, 4)
        found = estimate({"accuracy": statistic}, 120, Bootstrap(400, n))["accuracy"]
        assert found.low is not None and found.high is not None
        held += found.low <= truth <= found.high
        # The same answers taken as independent: an interval half as wide, that holds the truth too rarely.
        alone = Mean((statistic._sums[:, 0] / 4).repeat(4), np.arange(480), 480)
        naive = estimate({"accuracy": alone}, 480, Bootstrap(200, n))["accuracy"]
        assert naive.low is not None and naive.high is not None
        apart += naive.low <= truth <= naive.high
    spread = 3 * math.sqrt(0.95 * 0.05 / draws)
    assert 0.95 - spread - 0.02 <= held / draws <= 0.95 + spread
    assert apart < held - 0.1 * draws


def test_the_interval_is_the_percentile_interval_of_scipy():
    values = np.random.default_rng(0).gamma(1.0, 2.0, 120)
    found = estimate({"mean": Mean(values, np.arange(120), 120)}, 120, Bootstrap(20_000))["mean"]
    other = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=1).confidence_interval
    # Two runs of 20,000 differ by a few thousandths; 90 % intervals would by a tenth.
    assert (found.low, found.high) == pytest.approx((other.low, other.high), abs=0.02)


def test_one_cluster_has_numbers_and_no_interval():
    found = estimate({"mean": Mean(np.array([0.0, 1.0]), np.array([0, 0]), 1)}, 1, Bootstrap())["mean"]
    assert (found.value, found.low, found.high) == (0.5, None, None)


def test_the_same_seed_gives_the_same_interval_and_another_another():
    statistic = Mean(np.arange(50.0), np.arange(50), 50)
    first, again, other = (estimate({"m": statistic}, 50, Bootstrap(200, seed))["m"] for seed in (1, 1, 2))
    assert first == again != other


def test_draws_in_several_parts_are_the_draws_in_one(monkeypatch: pytest.MonkeyPatch):
    statistic = Auc(np.arange(60.0), np.arange(60) % 2 * 1.0, np.arange(60), 60)
    whole = estimate({"m": statistic}, 60, Bootstrap(100))["m"]
    monkeypatch.setattr("layactl.calib.bootstrap._CHUNK", 60 * 7)
    monkeypatch.setattr("layactl.calib.statistic._MOST_AT_ONCE", 60 * 3)
    assert estimate({"m": statistic}, 60, Bootstrap(100))["m"] == whole


def test_an_interval_that_most_draws_leave_undefined_is_left_out():
    # Of 200 clusters one holds the only event and one the only other: 40 % of the draws hold both.
    both = Auc(np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([0, 1]), 200)
    found = estimate({"auc": both}, 200, Bootstrap(200))["auc"]
    assert (found.value, found.low, found.high) == (1.0, None, None)
    # One of them alone is in 63 % of the draws.
    one = Mean(np.ones(1), np.array([0]), 200)
    assert estimate({"mean": one}, 200, Bootstrap(200))["mean"].low == 1.0


def judged_pair(items: Sequence[LabelledAnswer]) -> tuple[Judged, Judged]:
    return judge_answers(items, lambda _: 1.0), judge_answers(items, lambda _: 2.0)


def test_a_paired_difference_is_narrower_than_the_two_intervals():
    before, after = judged_pair(answers(np.random.default_rng(3), 300, 2.0))
    old, new = Mean(before.nll, before.cluster, 300), Mean(after.nll, after.cluster, 300)
    found = estimate({"old": old, "new": new, "delta": Difference(old, new)}, 300, Bootstrap(500))
    delta = found["delta"]
    assert delta.value == pytest.approx((found["new"].value or 0) - (found["old"].value or 0))
    assert delta.excludes_zero and (delta.value or 0) < 0

    def width(name: str) -> float:
        return (found[name].high or 0) - (found[name].low or 0)

    assert width("delta") < width("old")


def test_router_candidates_of_one_task_are_one_cluster():
    judged = judge_scores(scores(np.random.default_rng(0), 40, 1, 0, per_task=4), lambda s: 0.5)
    assert judged.clusters == 10
