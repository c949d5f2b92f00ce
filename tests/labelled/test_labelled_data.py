"""Labelled data is read as it stands, or refused by file, line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from layactl.errors import InputError
from layactl.labelled.decisions import read_decisions
from layactl.labelled.outcomes import read_outcomes
from tests.calib.examples import QUESTIONS, candidate, card, decision, jsonl, outcomes


def gold_of(tmp_path: Path, question: str, value: Any, **fields: Any) -> tuple[int, tuple[float, ...]]:
    [record] = read_decisions(jsonl(tmp_path / "data.jsonl", [decision(gold={question: value}, **fields)]))
    return record.gold[question].label, record.gold[question].probabilities


@pytest.mark.parametrize(
    ("question", "value", "label"),
    [
        ("refund", True, 1),
        ("refund", False, 0),
        ("refund", "true", 1),
        ("team", "tech", 1),
        ("team", "3", 2),
        ("team", 3, 2),  # the label as the answer's JSON key writes it
        ("urgency", 0, 0),
        ("urgency", 2, 2),
        ("urgency", "2", 2),
        ("urgency", "high", 2),
    ],
)
def test_a_label_a_level_or_a_bool_names_one_option(tmp_path: Path, question: str, value: Any, label: int):
    found, probabilities = gold_of(tmp_path, question, value)
    assert found == label
    assert probabilities == tuple(float(i == label) for i in range(len(probabilities)))


def test_a_distribution_is_a_soft_label_whose_first_largest_option_is_the_label(tmp_path: Path):
    assert gold_of(tmp_path, "team", {"tech": 0.5, "billing": 0.5}) == (0, (0.5, 0.5, 0.0))


def test_probabilities_written_with_few_digits_are_made_to_sum_to_one(tmp_path: Path):
    label, probabilities = gold_of(tmp_path, "team", {"billing": 0.333, "tech": 0.333, "3": 0.333})
    assert (label, probabilities) == (0, (1 / 3,) * 3)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"label": "tech", "probabilities": {"billing": 0.6, "tech": 0.4}}, (1, (0.6, 0.4, 0.0))),
        ({"label": "tech"}, (1, (0.0, 1.0, 0.0))),
        ({"label": "tech", "probabilities": None}, (1, (0.0, 1.0, 0.0))),
        ({"probabilities": {"billing": 0.2, "tech": 0.8}}, (1, (0.2, 0.8, 0.0))),
        ({"label": 3, "probabilities": {"3": 1}}, (2, (0.0, 0.0, 1.0))),
    ],
)
def test_gold_may_be_a_label_with_its_distribution(tmp_path: Path, value: Any, expected: tuple[int, Any]):
    assert gold_of(tmp_path, "team", value) == expected


def test_the_distribution_of_a_noul_is_keyed_false_and_true(tmp_path: Path):
    assert gold_of(tmp_path, "refund", {"true": 0.9, "false": 0.1}) == (1, (0.1, 0.9))
    assert gold_of(tmp_path, "refund", {"label": "true", "probabilities": {"true": 0.75, "false": 0.25}}) == (
        1,
        (0.25, 0.75),
    )


def test_options_called_label_and_probabilities_are_options(tmp_path: Path):
    questions = {"q": {"type": "choice", "instructions": "?", "criteria": ["label", "probabilities"]}}
    assert gold_of(tmp_path, "q", {"label": 0.25, "probabilities": 0.75}, questions=questions) == (1, (0.25, 0.75))
    assert gold_of(tmp_path, "q", {"label": "probabilities"}, questions=questions) == (1, (0.0, 1.0))


def test_a_level_text_that_is_another_levels_index_is_refused(tmp_path: Path):
    questions = {"q": {"type": "score", "instructions": "?", "criteria": ["1", "0"]}}
    with pytest.raises(InputError, match="more than one level"):
        gold_of(tmp_path, "q", "1", questions=questions)


def test_questions_without_gold_are_kept_unlabelled(tmp_path: Path):
    [record] = read_decisions(jsonl(tmp_path / "data.jsonl", [decision(gold={"refund": None, "team": "tech"})]))
    assert set(record.questions) == set(QUESTIONS)
    assert set(record.gold) == {"team"}


def test_the_benchmarks_json_columns_read_as_they_are(tmp_path: Path):
    gold = {"team": {"label": "tech", "probabilities": {"billing": 0.3, "tech": 0.7, "3": 0.0}, "score": None}}
    row = {
        "id": "cs-0001",
        "workflow": "customer_service",
        "split": "test",
        "state": json.dumps({"subject": "Invoice"}),
        "questions": json.dumps(QUESTIONS),
        "gold": json.dumps(gold),
        "n_questions": 3,
    }
    [record] = read_decisions(jsonl(tmp_path / "td.jsonl", [row]))
    assert record.state == {"subject": "Invoice"}
    assert record.questions == QUESTIONS
    assert record.gold["team"].probabilities == (0.3, 0.7, 0.0)
    assert record.tags == {"workflow": "customer_service"}
    # A data set's own split says nothing about calibration.
    assert record.member.stated is None


def test_a_text_state_beside_plain_questions_stays_text(tmp_path: Path):
    [record] = read_decisions(jsonl(tmp_path / "data.jsonl", [decision(state="123")]))
    assert record.state == "123"


def test_a_question_the_engine_would_refuse_is_kept_with_its_refusal(tmp_path: Path):
    questions = QUESTIONS | {"many": {"type": "choice", "instructions": "?", "criteria": list(map(str, range(21)))}}
    [record] = read_decisions(jsonl(tmp_path / "data.jsonl", [decision(questions=questions)]))
    assert record.refusal is not None
    assert (record.refusal.reason, record.refusal.param) == ("TOO_MANY_OPTIONS", "questions.many.criteria")


GOOD = decision()
BROKEN_DECISIONS: dict[str, tuple[list[Any], int, str]] = {
    "not JSON": ([GOOD, "nope"], 2, "not valid JSON"),
    "a list": ([[1]], 1, "is not a JSON object"),
    "blank": ([GOOD, ""], 2, "the line is blank"),
    "not UTF-8": ([b'{"id": "\xff"}'], 1, "not UTF-8"),
    "no id": ([decision(None)], 1, "id is missing"),
    "a blank id": ([decision("")], 1, "id must be text"),
    "a list id": ([decision([1])], 1, "id must be text"),
    "a repeated id": ([decision("1"), decision(1)], 2, "the id '1' is there twice, first in"),
    "no state": ([decision(state=None)], 1, "state is missing"),
    "no questions": ([decision(questions=None)], 1, "questions is missing"),
    "questions as a list": ([decision(questions=[])], 1, "questions must be an object"),
    "questions as no JSON": ([decision(questions="{")], 1, "questions holds text that is no JSON"),
    "a state that is no JSON": (
        [decision(questions="{}", gold="{}", state="text")],
        1,
        "state holds text that is no JSON",
    ),
    "no gold": ([decision(gold=None)], 1, "gold is missing"),
    "gold of no question": ([decision(gold={"tone": 1})], 1, "gold.tone belongs to no question"),
    "a noul as a number": ([decision(gold={"refund": 1})], 1, "gold.refund must be true or false"),
    "an unknown label": ([decision(gold={"team": "sales"})], 1, "gold.team is 'sales'"),
    "a null option": ([decision(gold={"team": ["billing"]})], 1, "gold.team is ['billing']"),
    "a level too high": ([decision(gold={"urgency": 3})], 1, "gold.urgency is level 3"),
    "a level below": ([decision(gold={"urgency": -1})], 1, "gold.urgency is level -1"),
    "a level as a float": ([decision(gold={"urgency": 1.0})], 1, "gold.urgency is 1.0"),
    "a level as a bool": ([decision(gold={"urgency": True})], 1, "gold.urgency is True"),
    "a sum of 2": (
        [decision(gold={"team": {"billing": 1, "tech": 1}})],
        1,
        "gold must hold probabilities that sum to 1",
    ),
    "an empty one": ([decision(gold={"team": {}})], 1, "that sum to 1, not to 0"),
    "a negative one": ([decision(gold={"team": {"billing": 1.5, "tech": -0.5}})], 1, "a probability below 0"),
    "a text among them": ([decision(gold={"team": {"billing": "1"}})], 1, "gold.billing must be a finite number"),
    "probabilities of no option": (
        [decision(gold={"team": {"label": "tech", "probabilities": {"x": 1}}})],
        1,
        "gold.team.probabilities.x is no option",
    ),
    "neither label nor probabilities": ([decision(gold={"team": {"score": 1}})], 1, "gold.team holds neither"),
    "an unknown split": ([decision(split="holdout")], 1, 'split must be "fit" or "eval"'),
    "a list as a group": ([decision(group=["a"])], 1, "group must be text"),
    "a number as a language": ([decision(lang=7)], 1, "lang must be a string"),
    "a NaN": (['{"id": "a", "state": NaN}'], 1, "NaN is not a JSON number"),
    "too deep": ([f'{{"id": "a", "state": {"[" * 200}{"]" * 200}}}'], 1, "nested levels"),
}


@pytest.mark.parametrize("name", BROKEN_DECISIONS)
def test_a_broken_decision_is_refused_by_line_and_field(tmp_path: Path, name: str):
    records, line, message = BROKEN_DECISIONS[name]
    path = jsonl(tmp_path / "data.jsonl", records)
    with pytest.raises(InputError) as caught:
        read_decisions(path)
    assert message in caught.value.message
    assert caught.value.where == f"{path}, line {line}"


BROKEN_OUTCOMES: dict[str, tuple[dict[str, Any], str]] = {
    "no task": (outcomes(task=None), "task must be text"),
    "no candidates": (outcomes(candidates=[]), "candidates must be a list of at least one"),
    "a bad card": (outcomes(candidates=[candidate(card=card(passed=11))]), "candidates[0].card.checks[0]"),
    "two of one id": (outcomes(candidates=[candidate(), candidate()]), "'a' is there twice"),
    "no outcome": (outcomes(candidates=[candidate(outcome=None)]), "candidates[0].outcome is missing"),
    "half an outcome": (outcomes(candidates=[candidate(outcome=0.5)]), "candidates[0].outcome must be 0 or 1"),
    "a text outcome": (outcomes(candidates=[candidate(outcome="1")]), "candidates[0].outcome must be 0 or 1"),
    "a text logit": (outcomes(candidates=[candidate(logit="2")]), "candidates[0].logit must be a finite number"),
    "logits in part": (outcomes(candidates=[candidate(logit=1.5), candidate("b")]), "logits in part only"),
}


@pytest.mark.parametrize("name", BROKEN_OUTCOMES)
def test_a_broken_outcome_is_refused_by_line_and_field(tmp_path: Path, name: str):
    record, message = BROKEN_OUTCOMES[name]
    path = jsonl(tmp_path / "data.jsonl", [outcomes("good"), record])
    with pytest.raises(InputError) as caught:
        read_outcomes(path)
    assert message in caught.value.message
    assert caught.value.where == f"{path}, line 2"


def test_outcomes_are_zero_one_or_bools_and_logits_optional(tmp_path: Path):
    records = [
        outcomes("1", candidates=[candidate(outcome=True, logit=2.78)]),
        outcomes("2", candidates=[candidate(outcome=0)]),
    ]
    first, second = read_outcomes(jsonl(tmp_path / "data.jsonl", records))
    assert [(c.outcome, c.logit) for record in (first, second) for c in record.candidates] == [(1, 2.78), (0, None)]
    assert first.body()["candidates"] == [{"id": "a", "card": card()}]


def test_a_missing_or_empty_file_is_one_error(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be read"):
        read_decisions(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="holds no records"):
        read_decisions(jsonl(tmp_path / "empty.jsonl", []))


def test_a_line_cut_short_is_called_torn(tmp_path: Path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(decision()) + "\n" + json.dumps(decision("d2"))[:40])
    with pytest.raises(InputError, match="the last line is torn") as caught:
        read_decisions(path)
    assert caught.value.where == f"{path}, line 2"
