"""The gate passes what is equal and fails every corruption by the name of its rule."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import layactl
from layactl.parity.answering import engine_record
from layactl.parity.difference import differ, within
from layactl.parity.gate import Report, judge
from layactl.parity.run_file import QuestionRecord
from layactl.parity.shipped import shipped
from layactl.parity.tiers import Tiers, read_tiers

from .run_maker import ENGINE, REFERENCE, Change, Pair, items


@pytest.fixture(scope="module")
def records(model_of: Callable[..., layactl.Model]) -> list[dict[str, Any]]:
    return [engine_record(model_of("tiny-english"), item) for item in items()]


@pytest.fixture(scope="module")
def tiers() -> Tiers:
    return read_tiers(shipped("tiers.json"))


@pytest.fixture
def strict(records: list[dict[str, Any]], tmp_path: Path) -> Pair:
    return Pair(tmp_path, records, REFERENCE, ENGINE)


@pytest.fixture
def statistical(records: list[dict[str, Any]], tmp_path: Path) -> Pair:
    """500 items, so that one flip is within the fraction."""
    many = [{**copy.deepcopy(records[n % 5]), "id": f"item_{n}"} for n in range(500)]
    return Pair(tmp_path, many, ENGINE, ENGINE)


def gate(pair: Pair, tiers: Tiers, tier: str, **options: Any) -> Report:
    return judge(*pair.runs(), tiers[tier], tiers, **options)


def test_equal_runs_pass_strict(strict: Pair, tiers: Tiers):
    report = gate(strict, tiers, "strict-f32")
    assert (report.verdict, report.failures, report.refusals) == ("pass", [], [])
    assert report.statistics.compared == 16
    assert report.statistics.acts == 16
    assert report.statistics.refused_by_both == 1
    assert report.statistics.numbers > 60


def test_equal_runs_pass_f16_class(statistical: Pair, tiers: Tiers):
    report = gate(statistical, tiers, "f16-class")
    assert (report.verdict, report.statistics.compared) == ("pass", 1500)
    assert all(bound.value == 0 for bound in report.bounds)


# -- corruptions that strict-f32 must fail ----------------------------------------------------------------------------


def answer(pair: Pair, name: str, item: str = "item_3") -> dict[str, Any]:
    found: dict[str, Any] = pair.question(1, item, name)["answer"]
    return found


def add(path: str, amount: float, name: str = "urgency", side: int = 1) -> Change:
    """Move one number of an answer."""

    def change(pair: Pair) -> None:
        *parents, last = path.split("/")
        target = pair.question(side, "item_3", name)["answer"]
        for parent in parents:
            target = target[parent]
        target[last] += amount

    return change


def put(path: str, value: Any, name: str = "urgency", side: int = 1) -> Change:
    """Set one field of a record."""

    def change(pair: Pair) -> None:
        *parents, last = path.split("/")
        target: Any = pair.question(side, "item_3", name)
        for parent in parents:
            target = target[int(parent)] if isinstance(target, list) else target[parent]
        if isinstance(target, list):
            target[int(last)] = value
        else:
            target[last] = value

    return change


def drop(path: str, name: str = "urgency", side: int = 1) -> Change:
    def change(pair: Pair) -> None:
        *parents, last = path.split("/")
        target = pair.question(side, "item_3", name)
        for parent in parents:
            target = target[parent]
        del target[last]

    return change


def swap_label(pair: Pair) -> None:
    chosen = answer(pair, "team")
    chosen["choice"] = next(label for label in chosen["probabilities"] if label != chosen["choice"])


def swap_logits(pair: Pair) -> None:
    logits = pair.question(1, "item_3", "team")["logits"]
    first = logits.index(max(logits))
    other = (first + 1) % len(logits)
    logits[first], logits[other] = logits[other], logits[first]


def swap_probabilities(pair: Pair) -> None:
    probabilities = answer(pair, "urgency")["probabilities"]
    values = list(probabilities.values())
    probabilities.update(zip(probabilities, values[1:] + values[:1], strict=True))


def lose_item(pair: Pair) -> None:
    del pair.candidate[2]


def lose_item_of_both(pair: Pair) -> None:
    for records in pair.records:
        del records[2]
    for identity in pair.identities:
        identity["corpus"]["items"] = 7


def lose_question(pair: Pair) -> None:
    del pair.candidate[2]["questions"]["refund"]


def invent_question(pair: Pair) -> None:
    pair.candidate[2]["questions"]["new"] = copy.deepcopy(pair.candidate[2]["questions"]["refund"])


def invent_item(pair: Pair) -> None:
    pair.candidate.append({**copy.deepcopy(pair.candidate[0]), "id": "new"})


def refuse_one(pair: Pair) -> None:
    pair.candidate[1] = {"id": "item_1", "state": "other", "refusal": "INVALID_REQUEST: no"}


def fail_one(pair: Pair) -> None:
    pair.candidate[1] = {"id": "item_1", "state": "other", "failure": "not finite"}


def no_act_logits_at_all(pair: Pair, side: int = 1) -> None:
    for question in pair.questions(side):
        del question["act_logits"]


def drop_everywhere(pair: Pair, name: str) -> None:
    for question in pair.questions(1):
        del question["answer"][name]


def answer_null(pair: Pair, side: int, reason: str | None = None) -> None:
    """One side answers the null state; the other refuses it, for the reason it had or another."""
    pair.records[side][-1] = {**copy.deepcopy(pair.records[side][0]), "id": "null", "state": "null"}
    if reason is not None:
        pair.records[1 - side][-1]["refusal"] = reason


def no_answers_at_all(pair: Pair) -> None:
    for question in pair.questions(1):
        del question["answer"]


def other_ids_everywhere(pair: Pair) -> None:
    for question in pair.questions(1):
        question["ids"][1] += 1


def nothing_left(pair: Pair) -> None:
    for side, records in enumerate(pair.records):
        records.clear()
        pair.identities[side]["corpus"]["items"] = 0


def cut_the_other_end(pair: Pair) -> None:
    question = next(record for record in pair.candidate if record["id"] == "turns")["questions"]["yes"]
    question["ids"][-10:-1] = [7] * 9


def off_by_steps(pair: Pair) -> None:
    """A score of three levels may be off by 2e-4 and a half, its range being 2, and no more."""
    answer(pair, "urgency")["score"] = pair.question(0, "item_3", "urgency")["answer"]["score"] + 3e-4


CORRUPTIONS: dict[str, tuple[Change, set[str]]] = {
    "a swapped label": (swap_label, {"category_differs"}),
    "a swapped pair of logits": (swap_logits, {"flip"}),
    "swapped probabilities": (swap_probabilities, {"number"}),
    "another type": (put("answer/type", "choice"), {"category_differs"}),
    "another legend": (put("answer/legend", {"0": "low"}), {"category_differs"}),
    "a NaN in the answer": (put("answer/confidence", math.nan), {"not_finite", "number"}),
    "an infinite probability": (put("answer/noul", math.inf, "refund"), {"not_finite", "number"}),
    "a NaN logit": (put("logits/0", math.nan), {"not_finite"}),
    "a NaN act logit": (put("act_logits/1", math.nan), {"not_finite"}),
    "an integer no float holds": (put("answer/score", 10**400), {"not_finite", "number"}),
    "a number as text": (put("answer/noul", "0.5", "refund"), {"category_differs"}),
    "a score off by three steps of its range": (off_by_steps, {"number"}),
    "a probability off by 2e-4": (add("probabilities/1", 2.0001e-4), {"number"}),
    "a noul value off by 2e-4": (add("noul", 2.0001e-4, "refund"), {"number"}),
    "a confidence off by 2e-4": (add("confidence", -2.0001e-4), {"number"}),
    "an answer confidence off by 2e-4": (add("answer_confidence", 2.0001e-4), {"number"}),
    "an act probability off by 2e-4": (add("action/act_probability", -2.0001e-4), {"number"}),
    "an act logit off": (lambda pair: put("act_logits/0", 1e3)(pair), {"act"}),
    "one option more": (put("answer/probabilities/9", 0.0), {"fields_differ"}),
    "one option less": (drop("answer/probabilities/1"), {"fields_differ"}),
    "no confidence": (drop("answer/confidence"), {"fields_differ"}),
    "no answer confidence on one question": (drop("answer/answer_confidence"), {"fields_differ"}),
    "no action on one question": (drop("answer/action"), {"fields_differ"}),
    "an answer without numbers on both sides": (
        lambda pair: [put("answer", {"type": "noul"}, "refund", side)(pair) for side in (0, 1)],
        {"missing_answer"},
    ),
    "a choice that is no number on both sides": (
        lambda pair: [put("answer/choice", math.nan, "team", side)(pair) for side in (0, 1)],
        {"not_finite", "number"},
    ),
    "a record of another type": (put("type", "choice"), {"category_differs"}),
    "act logits missing on both runs": (
        lambda pair: [no_act_logits_at_all(pair, side) for side in (0, 1)],
        {"server_no_act_head"},
    ),
    "a null state that only the baseline refuses": (lambda pair: answer_null(pair, 1), {"refusal_differs"}),
    "a null state refused for another reason": (lambda pair: answer_null(pair, 0, "INTERNAL"), {"refusal_differs"}),
    "one logit more": (lambda pair: pair.question(1, "item_3", "team")["logits"].append(0.0), {"fields_differ"}),
    "one missing answer": (drop("answer"), {"missing_answer"}),
    "an answer that is null": (put("answer", None), {"missing_answer"}),
    "a missing answer of the baseline": (drop("answer", side=0), {"missing_answer"}),
    "no answers at all": (no_answers_at_all, {"missing_answer", "nothing_answered"}),
    "a missing item": (lose_item, {"missing_item", "incomplete_run"}),
    "an item both runs lack": (lose_item_of_both, {"incomplete_run"}),
    "an item too many": (invent_item, {"extra_item", "incomplete_run"}),
    "a missing question": (lose_question, {"missing_question"}),
    "a question too many": (invent_question, {"missing_question"}),
    "an item only one side refuses": (refuse_one, {"refusal_differs"}),
    "an item a side failed at": (fail_one, {"no_output"}),
    "act logits missing on one question": (drop("act_logits"), {"act_missing"}),
    "act logits missing on the whole run": (no_act_logits_at_all, {"server_no_act_head"}),
    "another token": (put("ids/1", 7), {"ids_differ"}),
    "another marker": (put("markers/0", 3), {"markers_differ"}),
    "other tokens everywhere": (other_ids_everywhere, {"ids_differ", "nothing_compared"}),
    "a list state cut from the other end": (cut_the_other_end, {"list_state_truncation"}),
    "two empty runs": (nothing_left, {"nothing_compared"}),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_strict_fails_a_corrupted_run_by_the_rule(name: str, strict: Pair, tiers: Tiers):
    change, rules = CORRUPTIONS[name]
    for identity, records in zip(strict.identities, strict.records, strict=True):
        identity["corpus"]["items"] = len(records)
    change(strict)
    report = gate(strict, tiers, "strict-f32")
    assert report.verdict == "fail"
    assert set(report.failed_rules()) == rules


ALLOWED: dict[str, Change] = {
    # 0.8000 against 0.8001 passes, whatever the subtraction makes of it.
    "a probability off by one step": add("probabilities/1", 1e-4),
    "a score off by two steps, one of its range": lambda pair: put(
        "answer/score", round(pair.question(0, "item_3", "urgency")["answer"]["score"] + 2e-4, 4)
    )(pair),
    "no answer confidence on a whole run": lambda pair: drop_everywhere(pair, "answer_confidence"),
    "no action on a whole run": lambda pair: drop_everywhere(pair, "action"),
    "no markers on one side": drop("markers"),
    "a number that is an integer on one side": lambda pair: [
        put("answer/noul", value, "refund", side)(pair) for side, value in enumerate((1.0, 1))
    ],
}


@pytest.mark.parametrize("name", ALLOWED)
def test_strict_passes_what_the_reference_itself_would_show(name: str, strict: Pair, tiers: Tiers):
    ALLOWED[name](strict)
    report = gate(strict, tiers, "strict-f32")
    assert report.failures == []
    assert report.verdict == "pass"


def test_one_step_passes_at_every_four_digit_number_and_two_never_do(strict: Pair, tiers: Tiers):
    for steps in range(0, 10_000, 97):
        for add_steps, verdict in ((1, "pass"), (2, "fail")):
            put("answer/noul", steps / 1e4, "refund", 0)(strict)
            put("answer/noul", (steps + add_steps) / 1e4, "refund", 1)(strict)
            assert gate(strict, tiers, "strict-f32").verdict == verdict, (steps, add_steps)


def test_a_null_state_that_only_one_side_refuses_is_a_known_difference_of_strict_alone(
    strict: Pair, records: list[dict[str, Any]], tiers: Tiers
):
    answered = {**copy.deepcopy(records[0]), "id": "null", "state": "null"}
    for pair, tier, verdict in ((strict, "strict-f32", "pass"), (_engines(strict), "f16-class", "fail")):
        pair.records[0][-1] = answered
        report = gate(pair, tiers, tier)
        assert (report.verdict, report.known["null_state_refused"]) == (verdict, 1)


def _engines(pair: Pair) -> Pair:
    return Pair(pair.folder, pair.candidate, ENGINE, ENGINE)


# -- the statistical rule ---------------------------------------------------------------------------------------------


def near_tie(pair: Pair, gap: float, count: int = 1) -> None:
    """Give the first `count` team questions two options p and p - gap apart, the other way round in the candidate."""
    logit = math.log((1 + gap) / (1 - gap))  # of two options, the rest being far below
    for n in range(count):
        for side, (first, second) in enumerate(((logit, 0.0), (0.0, logit))):
            question = pair.question(side, f"item_{n}", "team")
            question["logits"] = [first, second, *([-60.0] * (len(question["logits"]) - 2))]
            labels = list(question["answer"]["probabilities"])
            shares = [(1 + gap) / 2, (1 - gap) / 2]
            question["answer"]["probabilities"] = dict.fromkeys(labels, 0.0) | dict(
                zip(labels, shares if side == 0 else reversed(shares), strict=False)
            )
            question["answer"]["choice"] = labels[side]


def test_a_flip_below_the_gap_passes(statistical: Pair, tiers: Tiers):
    near_tie(statistical, 0.0085)
    report = gate(statistical, tiers, "f16-class")
    assert (report.verdict, len(report.statistics.flips)) == ("pass", 1)
    assert report.bounds[0].value == pytest.approx(0.0085)


def test_a_flip_above_the_gap_fails(statistical: Pair, tiers: Tiers):
    near_tie(statistical, 0.0095)
    report = gate(statistical, tiers, "f16-class")
    assert set(report.failed_rules()) == {"flip_gap"}
    assert report.worst()["flip_max_gap"]["item"] == "item_0"


def test_a_flip_at_the_gap_fails_because_it_is_not_below(statistical: Pair, tiers: Tiers):
    near_tie(statistical, 0.0085)
    report = gate(statistical, tiers, "f16-class")
    row = tiers["f16-class"].rows[0]
    at = replace(row, bounds={**row.bounds, "flip_max_gap": report.bounds[0].value})
    assert set(judge(*statistical.runs(), replace(tiers["f16-class"], rows=(at,)), tiers).failed_rules()) == {
        "flip_gap"
    }


def test_a_flip_does_not_excuse_a_choice_that_is_not_the_largest_probability(statistical: Pair, tiers: Tiers):
    near_tie(statistical, 0.0085)
    for choice in ("GARBAGE", None, ["x"]):
        statistical.question(1, "item_0", "team")["answer"]["choice"] = choice
        assert set(gate(statistical, tiers, "f16-class").failed_rules()) == {"category_differs"}


def test_too_many_flips_fail_however_small_their_gaps(statistical: Pair, tiers: Tiers):
    near_tie(statistical, 0.001, count=4)  # 4 of 1500 are within 0.003
    assert gate(statistical, tiers, "f16-class").verdict == "pass"
    near_tie(statistical, 0.001, count=5)
    assert set(gate(statistical, tiers, "f16-class").failed_rules()) == {"flip_fraction"}


def move_all(pair: Pair, amount: float) -> None:
    for question in pair.questions(1):
        answer = question["answer"]
        if answer["type"] == "noul":
            answer["noul"] += amount
        else:
            for label in answer["probabilities"]:
                answer["probabilities"][label] += amount


STATISTICAL: dict[str, tuple[Change, set[str]]] = {
    "a label without a flip": (swap_label, {"category_differs"}),
    "no action on a whole run": (lambda pair: drop_everywhere(pair, "action"), {"server_answer_shape"}),
    "probabilities beyond all sums": (lambda pair: move_all(pair, 1.7e308), {"max_dp", "mean_dp"}),
    "a large step of one probability": (add("probabilities/1", 0.51), {"max_dp"}),
    "a small step of every probability": (lambda pair: move_all(pair, 0.0021), {"mean_dp"}),
    "a NaN confidence": (put("answer/confidence", math.nan), {"not_finite"}),
    "an act logit off by a quarter": (lambda pair: put("act_logits/0", 1e3)(pair), {"act"}),
    "act logits missing on one question": (drop("act_logits"), {"act_missing"}),
    "one missing answer": (drop("answer"), {"missing_answer"}),
    "another option": (drop("answer/probabilities/1"), {"fields_differ"}),
    "another token": (put("ids/1", 7), {"ids_differ"}),
    "a missing item": (lose_item, {"missing_item", "incomplete_run"}),
}


@pytest.mark.parametrize("name", STATISTICAL)
def test_f16_class_fails_a_corrupted_run_by_the_rule(name: str, statistical: Pair, tiers: Tiers):
    change, rules = STATISTICAL[name]
    for identity, records in zip(statistical.identities, statistical.records, strict=True):
        identity["corpus"]["items"] = len(records)
    change(statistical)
    report = gate(statistical, tiers, "f16-class")
    assert (report.verdict, set(report.failed_rules())) == ("fail", rules)


def test_f16_class_passes_a_confidence_that_differs_and_a_run_without_an_act_head(statistical: Pair, tiers: Tiers):
    add("confidence", 0.2)(statistical)
    no_act_logits_at_all(statistical)
    report = gate(statistical, tiers, "f16-class")
    assert (report.verdict, report.known["server_no_act_head"]) == ("pass", 1)


# -- identities -------------------------------------------------------------------------------------------------------


def identity(side: int, path: str, value: Any) -> Change:
    def change(pair: Pair) -> None:
        *parents, last = path.split("/")
        target = pair.identities[side]
        for parent in parents:
            target = target[parent]
        target[last] = value

    return change


STRICT_REFUSALS: dict[str, tuple[Change, str]] = {
    "another corpus": (identity(1, "corpus/sha256", "e" * 64), "different items"),
    "another subset": (identity(1, "corpus/subset", "english"), "different items"),
    "a corpus hash that is none": (
        lambda pair: [identity(side, "corpus/sha256", [])(pair) for side in (0, 1)],
        "different items",
    ),
    "an identity of another format": (identity(1, "format", "x/1"), "candidate's identity has another format"),
    "a model that is null": (identity(1, "model", None), "does not say which checkpoint"),
    "no corpus": (lambda pair: [identity(side, "corpus/sha256", None)(pair) for side in (0, 1)], "different items"),
    "an engine as the baseline": (identity(0, "side", "engine"), "the baseline's side is engine"),
    "a reference as the candidate": (identity(1, "side", "reference"), "the candidate's side is reference"),
    "another checkpoint": (identity(1, "model/source_sha256", "e" * 64), "another checkpoint"),
    "a GGUF without its source": (identity(1, "model/source_sha256", None), "does not say which checkpoint"),
    "half-precision weights": (identity(1, "model/weights", "F16"), "no row for F16 weights"),
    "bf16 products": (identity(1, "activations", "bf16"), "activations are bf16"),
    "a GPU": (identity(1, "device", "cuda"), "device is cuda"),
}
CLASS_REFUSALS: dict[str, tuple[Change, str]] = {
    "another model": (identity(1, "model/sha256", "e" * 64), "different files"),
    "no model hash": (lambda pair: [identity(side, "model/sha256", None)(pair) for side in (0, 1)], "different files"),
    "another spec": (identity(1, "spec_sha256", "e" * 64), "differ in spec_sha256"),
    "other limits": (identity(1, "limits", {"max_len": 64}), "differ in limits"),
    "a reference as the baseline": (identity(0, "side", "reference"), "the baseline's side is reference"),
    "a GPU as the baseline": (identity(0, "device", "cuda"), "device is cuda"),
    "a baseline of the wrong class": (identity(0, "activations", "int8"), "baseline's activations are int8"),
    "a candidate of another class": (identity(1, "activations", "bf16"), "activations are bf16"),
    "quantized activations against exact ones": (identity(1, "activations", "int8"), "must run the same kernels"),
    "unknown weights": (identity(1, "model/weights", "Q4_K"), "no row for Q4_K weights"),
}


@pytest.mark.parametrize("name", STRICT_REFUSALS)
def test_strict_refuses_runs_that_do_not_fit(name: str, strict: Pair, tiers: Tiers):
    change, fragment = STRICT_REFUSALS[name]
    change(strict)
    report = gate(strict, tiers, "strict-f32")
    assert report.verdict == "refused"
    assert any(fragment in refusal for refusal in report.refusals), report.refusals


@pytest.mark.parametrize("name", CLASS_REFUSALS)
def test_f16_class_refuses_runs_that_do_not_fit(name: str, statistical: Pair, tiers: Tiers):
    change, fragment = CLASS_REFUSALS[name]
    change(statistical)
    report = gate(statistical, tiers, "f16-class")
    assert report.verdict == "refused"
    assert any(fragment in refusal for refusal in report.refusals), report.refusals


def test_quantized_activations_have_a_row_of_their_own(statistical: Pair, tiers: Tiers):
    for side in (0, 1):
        identity(side, "activations", "int8")(statistical)
        identity(side, "kernels", "int8")(statistical)
        identity(side, "model/weights", "Q8_0")(statistical)
    near_tie(statistical, 0.2)
    report = gate(statistical, tiers, "f16-class")
    assert (report.verdict, report.row) == ("pass", "Q8_0 weights, int8 activations")


def test_an_allowed_mismatch_is_judged_and_still_told(strict: Pair, tiers: Tiers):
    identity(1, "model/source_sha256", None)(strict)
    report = gate(strict, tiers, "strict-f32", allow_mismatch=True)
    assert report.verdict == "pass"
    assert "does not say which checkpoint" in report.mismatches[0]
    swap_label(strict)
    assert gate(strict, tiers, "strict-f32", allow_mismatch=True).verdict == "fail"


def test_asking_for_other_weights_than_the_run_has_is_refused(statistical: Pair, tiers: Tiers):
    assert gate(statistical, tiers, "f16-class", weights="f32").verdict == "pass"
    assert "are F32, not F16" in gate(statistical, tiers, "f16-class", weights="f16").refusals[0]


def test_an_unregistered_tier_refuses_even_with_a_mismatch_allowed(statistical: Pair, tiers: Tiers):
    unregistered = replace(tiers["bf16-class"], registered=False, rows=())
    for allow in (False, True):
        report = judge(*statistical.runs(), unregistered, tiers, allow_mismatch=allow)
        assert report.verdict == "refused"
        assert "is not registered" in report.refusals[0]


@pytest.mark.parametrize(
    ("levels", "off", "passes"), [(2, 1e-4, True), (2, 2e-4, False), (5, 4e-4, True), (5, 5e-4, False)]
)
def test_a_score_may_be_off_by_a_step_of_its_range(levels: int, off: float, passes: bool):
    """Each of the K probabilities in a score is rounded on its own, so its error counts over K - 1."""
    records = [
        QuestionRecord("score", [1], [0], [0.5] * levels, [1.0], {"type": "score", "score": 1.2 + shift})
        for shift in (0.0, off)
    ]
    (number,) = differ(*records).numbers
    assert number.raw == pytest.approx(off)
    assert within(number.error, 1e-4) == passes
