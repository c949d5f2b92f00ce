"""A certified threshold keeps its promise as often as it says, and nothing is certified that the data cannot bear."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from layactl.calib.bootstrap import Bootstrap
from layactl.calib.calibrator import uncalibrated
from layactl.calib.evaluation import Selection, evaluate
from layactl.calib.threshold import Certificate, Risk, certify, thresholds
from layactl.errors import InputError, UsageError
from layactl.reporting.act_gate import GateRule, read_gate
from tests.calib.golden import GOLDEN
from tests.calib.simulated import answer, answers, logits_file, member, scores

PLAIN = Selection(uncalibrated())
ANY = GateRule(None)


def certified(p: Any, right: Any, risk: Risk | None = None, **fields: Any) -> Certificate:
    confidence = np.asarray(p, np.float64)
    return certify(confidence, np.asarray(right, np.float64), risk or Risk(), ANY, clusters=len(confidence), **fields)


def slowly(p: Any, right: Any, risk: Risk) -> float | None:
    """The definition, threshold by threshold."""
    best = None
    started = False
    for k in range(10_000, -1, -1):
        acted = [r for p_i, r in zip(p, right, strict=True) if p_i >= k / 10_000]
        if not started and len(acted) < risk.first_test():
            continue
        started = True
        if stats.binom.cdf(len(acted) - sum(acted), len(acted), risk.alpha) > risk.delta:
            break
        best = k / 10_000
    return best


@pytest.mark.parametrize("seed", range(2))
def test_the_walk_down_the_grid_is_the_definition(seed: int):
    rng = np.random.default_rng(seed)
    # Coarse confidences: many answers share a step of the grid, and some lie on it.
    p = np.round(rng.uniform(0.6, 1.0, 250), 3)
    right = rng.random(250) < p**0.3
    risk = Risk(0.1, 0.1, 30)
    assert certified(p, right, risk).rule.min_confidence == slowly(p, right.astype(int), risk)


@pytest.mark.parametrize(("n", "errors", "alpha", "tail"), GOLDEN["binomial_tails"])
def test_the_p_value_is_the_exact_binomial_tail(n: int, errors: int, alpha: float, tail: float):
    right = np.array([0.0] * errors + [1.0] * (n - errors))
    found = certified(np.full(n, 0.9), right, Risk(alpha, 0.9999, 1))
    assert found.p == pytest.approx(tail, rel=1e-12)
    assert (found.acted, found.errors) == (n, errors)


def test_the_first_test_needs_three_times_what_certifies_without_an_error():
    assert Risk(0.05, 0.05).first_test() == 176
    assert Risk(0.05, 0.1).first_test() == 135
    # Two certificates that share delta 0.1 are two of delta 0.05.
    assert Risk(0.05, 0.1).first_test(2) == 176
    assert Risk(0.5, 0.5, 30).first_test() == 30


def test_enough_right_answers_certify_and_one_fewer_do_not():
    assert certified([0.9] * 135, [1] * 135).rule.min_confidence == 0.0
    few = certified([0.9] * 134, [1] * 134)
    assert (few.rule.min_confidence, few.coverage) == (None, 0.0)
    assert few.reason == "134 answers; the first test needs 135"


def test_all_that_a_threshold_lets_through_is_tested_ties_included():
    # 200 sure right answers, then 100 wrong ones of one confidence: all of them or none.
    found = certified([0.99] * 200 + [0.8] * 100, [1] * 200 + [0] * 100)
    assert found.rule.min_confidence == 0.8001
    assert (found.acted, found.errors, found.coverage) == (200, 0, 200 / 300)


def test_a_certain_answer_acts_at_the_threshold_of_one():
    found = certified([1.0] * 200 + [0.5] * 200, [1] * 200 + [0] * 200)
    assert found.rule.min_confidence == 0.5001
    assert certified([1.0] * 200, [0] * 200).rule.min_confidence is None


def test_a_first_test_that_fails_certifies_nothing_and_says_why():
    found = certified([0.9] * 200, [0] * 40 + [1] * 160)
    assert found.rule.min_confidence is None
    assert found.reason == "40 of the 200 most confident answers are wrong"
    assert found.p is not None and found.p > 0.1
    assert found.to_json()["certified"] is False


def test_the_walk_ends_at_the_first_threshold_that_fails_however_good_the_rest():
    # Wrong in the middle, right below: what is right again lies behind a null that cannot be passed.
    p = [0.99] * 150 + [0.9] * 50 + [0.6] * 5000
    right = [1] * 150 + [0] * 50 + [1] * 5000
    assert certified(p, right).rule.min_confidence == 0.9001


def test_the_bound_is_clopper_and_pearsons():
    found = certified([0.9] * 300, [0] * 5 + [1] * 295)
    expected = stats.binomtest(5, 300).proportion_ci(0.8, "exact").high  # two sides of 10 %
    assert found.upper == pytest.approx(expected)
    assert certified([0.9] * 150, [0] * 150, Risk(0.05, 0.1)).upper == 1.0


@pytest.mark.parametrize("field", ["alpha", "delta"])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_risk_is_a_probability(field: str, value: float):
    with pytest.raises(UsageError, match=f"--{field}"):
        Risk(**{field: value})


# The promise.


def calibrated(p: Any) -> Any:
    return p


def overconfident(p: Any) -> Any:
    return 0.55 + 0.4 * (p - 0.5)


def wrong_at_the_top(p: Any) -> Any:
    return np.where(p > 0.97, 0.9, np.where(p > 0.8, 0.99, 0.6))


def just_above(p: Any) -> Any:
    """Wrong a little more often than is tolerated, at any threshold: the hardest null."""
    return np.full_like(p, 1 - 0.105)


POPULATIONS = [calibrated, overconfident, wrong_at_the_top, just_above]


@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize("draws", [150, pytest.param(1000, marks=pytest.mark.full)])
def test_the_error_behind_a_certificate_exceeds_alpha_no_more_often_than_delta(
    population: Callable[..., Any], draws: int
):
    rng = np.random.default_rng(99)
    risk = Risk(0.1, 0.1, 30)

    def draw(n: int) -> tuple[Any, Any]:
        p = 1 - 0.5 * rng.random(n) ** 2  # more answers near certainty
        return p, population(p)

    crowd, chance = draw(200_000)
    broken = found = 0
    for _ in range(draws):
        p, q = draw(400)
        threshold = certified(p, rng.random(400) < q, risk).rule.min_confidence
        if threshold is None:
            continue
        found += 1
        broken += bool((1 - chance[crowd >= threshold]).mean() > risk.alpha)
    assert broken / draws <= risk.delta + 3 * math.sqrt(risk.delta * (1 - risk.delta) / draws)
    if population is calibrated:
        assert found > 0.9 * draws  # the promise is not kept by never certifying


@pytest.mark.parametrize("draws", [60, pytest.param(1000, marks=pytest.mark.full)])
def test_one_answer_of_a_group_keeps_the_promise_where_pooling_breaks_it(draws: int):
    """Twenty answers of a group are right or wrong together, a little more often wrong than is tolerated."""
    rng = np.random.default_rng(4)
    risk = Risk(0.2, 0.1, 30)
    kept = pooled = 0
    for _ in range(draws):
        right = rng.random(32) < 1 - 0.22
        items = [answer([2.0, 0.0], int(not right[i // 20]), member=member(i, i // 20)) for i in range(640)]
        found = logits_file(items)
        for_sure, too_bold = (thresholds(found, PLAIN, risk, by="all", pooled=p).certificates[0] for p in (False, True))
        kept += for_sure.rule.min_confidence is not None
        pooled += too_bold.rule.min_confidence is not None
    assert kept / draws <= 0.1 + 3 * math.sqrt(0.09 / draws)
    assert pooled / draws > 0.2


# Gates.


def many(**fields: Any) -> Any:
    rng = np.random.default_rng(0)
    nouls = [
        replace(a, member=member(5000 + i))
        for i, a in enumerate(answers(rng, 600, 1.0, options=2, spread=6.0, type="noul", question="n"))
    ]
    return logits_file([*answers(rng, 600, 3.0, options=4), *nouls], **fields)


def test_each_shape_has_its_own_certificate():
    found = thresholds(many(), PLAIN, Risk())
    assert [(c.rule.type, c.rule.options) for c in found.certificates] == [("choice", "3-5"), ("noul", "2")]
    choice, noul = found.certificates
    assert choice.rule.min_confidence is None and noul.rule.min_confidence is not None
    gate = found.gate()
    assert gate.acts("anything", "noul", 2, noul.rule.min_confidence)
    assert not gate.acts("anything", "noul", 2, noul.rule.min_confidence - 1e-9)
    # Uncertified, and never seen: held back.
    assert not gate.acts("q", "choice", 4, 1.0)
    assert not gate.acts("q", "score", 3, 1.0)


def test_questions_have_gates_of_their_own_and_all_can_share_one():
    by_question = thresholds(many(), PLAIN, Risk(), by="question")
    assert [c.rule.question for c in by_question.certificates] == ["q", "n"]
    assert not by_question.gate().acts("other", "noul", 2, 1.0)
    one = thresholds(many(), PLAIN, Risk(0.3), by="all")
    assert len(one.certificates) == 1 and one.gate().acts("other", "score", 5, 1.0)


def test_certificates_that_hold_together_share_delta():
    alone, together = (thresholds(many(), PLAIN, Risk(), simultaneous=s).certificates[1] for s in (False, True))
    assert (together.rule.min_confidence or 1) > (alone.rule.min_confidence or 1)
    assert together.p is not None and together.p <= 0.05


def test_what_is_certified_is_a_right_answer_or_a_success():
    routed = thresholds(logits_file(scores(np.random.default_rng(0), 2000, 2.0, 0.0)), PLAIN, Risk(0.2))
    [found] = routed.certificates
    assert found.rule.min_confidence is not None and found.errors / found.acted < 0.2
    assert routed.gate().kind == "router"


def test_a_gate_file_reads_back_as_what_was_certified(tmp_path: Path):
    found = thresholds(many(engines=[{"source_sha256": "f" * 64}]), PLAIN, Risk())
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(found.to_json(), allow_nan=False))
    assert read_gate(str(path)) == replace(found.gate(), rules=list(found.gate().rules))
    assert found.gate().source_sha256 == "f" * 64


def test_an_empty_split_certifies_nothing():
    items = [replace(a, split="fit") for a in answers(np.random.default_rng(0), 50, 1.0)]
    with pytest.raises(InputError, match="the eval split holds no answers"):
        thresholds(logits_file(items), Selection(uncalibrated(), "eval"), Risk())


def test_a_gate_goes_with_the_calibration_and_checkpoint_it_was_certified_with():
    """Of a router too, whose answers all say "platt"."""
    items = scores(np.random.default_rng(5), 2000, 1.0, 0.0)
    for found in (
        many(engines=[{"source_sha256": "f" * 64}]),
        logits_file(items, engines=[{"source_sha256": "f" * 64}]),
    ):
        gate = thresholds(found, PLAIN, Risk(0.4)).gate()
        assert evaluate(found, replace(PLAIN, gate=gate), Bootstrap(0)).gated
        fitted = replace(PLAIN.calibrator, version="cal-1", platt=(2.0, 0.5))
        with pytest.raises(UsageError, match="was certified with calibration"):
            evaluate(found, replace(PLAIN, gate=gate, calibrator=fitted), Bootstrap(0))
        with pytest.raises(UsageError, match="was certified with checkpoint"):
            evaluate(replace(found, engines=[{"source_sha256": "e" * 64}]), replace(PLAIN, gate=gate), Bootstrap(0))


# Reading gates.


@pytest.mark.parametrize(
    ("text", "acts"), [("0.9", True), ("0", True), ("1", False), ("0.95", True), ("0.9500001", False)]
)
def test_a_number_gates_every_question(text: str, acts: bool):
    assert read_gate(text).acts("q", "choice", 3, 0.95) is acts


@pytest.mark.parametrize("text", ["1.01", "-0.1", "nan", "inf"])
def test_a_number_that_is_no_probability_is_wrong_usage(text: str):
    with pytest.raises(UsageError, match="must be between 0 and 1"):
        read_gate(text)


GATE: dict[str, Any] = {"format": "layactl.act-gate/1", "kind": "decision", "calibration": "cal-1"}


def one_gate(**fields: Any) -> dict[str, Any]:
    return GATE | {"gates": [{"certified": True, "min_confidence": 0.9} | fields]}


BROKEN_GATES: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "not valid JSON"),
    "another format": ({"format": "x"}, "is no gate: its format is 'x'"),
    "no gates": (GATE, "gates is missing"),
    "a gate as text": (GATE | {"gates": ["x"]}, r"gates\[0\] must be an object"),
    "a threshold as text": (one_gate(min_confidence="0.9"), r"gates\[0\]\.min_confidence must be a finite number"),
    "below any confidence": (
        one_gate(min_confidence=-5),
        r"gates\[0\]\.min_confidence must be between 0 and 1, not -5",
    ),
    "above any confidence": (one_gate(min_confidence=7), r"gates\[0\]\.min_confidence must be between 0 and 1, not 7"),
    "uncertified with a number": (one_gate(certified=False), r"gates\[0\]\.certified must be true where"),
    "certified without one": (one_gate(min_confidence=None), r"gates\[0\]\.certified must be true where"),
    "certified by nobody": (one_gate(certified=None), r"gates\[0\]\.certified must be true where"),
    "a bucket of its own": (one_gate(options="few"), r"gates\[0\]\.options is 'few'"),
    "no kind": (GATE | {"kind": None, "gates": []}, "kind is missing"),
    "a kind of its own": (GATE | {"kind": "x", "gates": []}, "kind is 'x'"),
    "no calibration": (one_gate() | {"calibration": None}, "calibration is missing"),
}


@pytest.mark.parametrize("name", BROKEN_GATES)
def test_a_broken_gate_file_is_refused_by_field(tmp_path: Path, name: str):
    value, message = BROKEN_GATES[name]
    path = tmp_path / "gate.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    with pytest.raises(InputError, match=message):
        read_gate(str(path))


def test_a_missing_gate_file_is_one_error(tmp_path: Path):
    with pytest.raises(InputError, match="is missing"):
        read_gate(str(tmp_path / "none.json"))
