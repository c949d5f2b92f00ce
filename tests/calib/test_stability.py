"""The probe finds a model that follows the order or the names of options, and clears one that does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from layactl.calib.scorer import RawAnswer
from layactl.calib.stability import Stability, probe, variants
from layactl.errors import NumericError, RequestError
from layactl.labelled.decisions import read_decisions
from layactl.layouts.laya import LAYA
from tests.calib.examples import QUESTIONS, decision, jsonl

Rule = Callable[[str, list[str]], list[float]]


class RuleScorer:
    """Logits by a rule over the option texts."""

    def __init__(self, rule: Rule) -> None:
        self.engine: dict[str, Any] = {"model": "rule"}
        self.identity: dict[str, Any] = {}
        self._rule = rule

    def decide(self, state: Any, questions: Mapping[str, Any], truncation: str) -> dict[str, RawAnswer]:
        if state == "refuse":
            raise RequestError("STATE_TRUNCATED", "too long")
        if state == "nan":
            raise NumericError("question")
        options = {name: list(LAYA.parse_question(name, q).options) for name, q in questions.items()}
        return {name: RawAnswer(self._rule(str(state), texts), 1.0) for name, texts in options.items()}

    def route(self, body: dict[str, Any], truncation: str) -> dict[str, float]:
        raise AssertionError


def by_meaning(state: str, options: list[str]) -> list[float]:
    return [2.0 if "payments" in text or ("holds" in text and "not" not in text) else 0.0 for text in options]


def by_place(state: str, options: list[str]) -> list[float]:
    return [1.0 - i for i in range(len(options))]


def by_first_letter(state: str, options: list[str]) -> list[float]:
    return [ord(text[0].lower()) / 10 for text in options]


def probed(tmp_path: Path, rule: Rule, *records: dict[str, Any], **options: Any) -> dict[str, Stability]:
    path = jsonl(tmp_path / "data.jsonl", records or [decision()])
    return {one.question: one for one in probe(read_decisions(path), RuleScorer(rule), **options)}


def test_a_model_that_reads_the_options_is_stable(tmp_path: Path):
    found = probed(tmp_path, by_meaning)
    team, refund = found["team"].to_json(), found["refund"].to_json()
    assert (team["accuracy"], team["accuracy_of_variants"], team["flipped_records"]) == (1.0, 1.0, 0.0)
    assert team["asked"] == {"rotated": 2, "renamed": 1}
    assert team["spread_max"] == pytest.approx(0.0)
    assert (refund["asked"], refund["flipped_records"]) == ({"renamed": 1}, 0.0)


def test_a_model_that_takes_the_first_option_flips_with_every_rotation(tmp_path: Path):
    team = probed(tmp_path, by_place)["team"].to_json()
    assert team["flips"] == {"rotated": 1.0, "renamed": 0.0}
    assert (team["flipped_records"], team["accuracy"]) == (1.0, 1.0)
    # Of three variants only the renamed one still says the gold label.
    assert team["accuracy_of_variants"] == pytest.approx(1 / 3)
    assert team["spread_mean"] > 0.3


def test_a_model_that_follows_a_name_flips_with_the_name(tmp_path: Path):
    found = probed(tmp_path, by_first_letter)
    assert found["team"].to_json()["flips"] == {"rotated": 0.0, "renamed": 1.0}
    assert found["refund"].to_json()["flips"] == {"renamed": 0.0}  # "yes" is behind "no" as "true" is behind "false"


def test_scores_are_counted_and_not_varied(tmp_path: Path):
    urgency = probed(tmp_path, by_place)["urgency"].to_json()
    assert (urgency["asked"], urgency["flipped_records"], urgency["spread_mean"]) == ({}, None, None)
    assert urgency["accuracy"] == 0.0


def test_probabilities_are_put_back_in_the_order_they_were_asked_in(tmp_path: Path):
    rule: Rule = lambda state, options: [float(len(text)) for text in options]  # noqa: E731
    assert probed(tmp_path, rule, rotations=19)["team"].to_json()["flips"]["rotated"] == 0.0


def test_refused_records_are_left_out_and_said(tmp_path: Path):
    said: list[str] = []
    records = [decision("a"), decision("b", state="refuse"), decision("c", state="nan")]
    found = probed(tmp_path, by_meaning, *records, log=said.append)
    assert found["team"].records == 1
    assert len(said) == 2 and "line 2: too long" in said[0]


def test_unlabelled_questions_are_probed_without_an_accuracy(tmp_path: Path):
    value = probed(tmp_path, by_meaning, decision(gold={}))["team"].to_json()
    assert (value["accuracy"], value["flipped_records"]) == (None, 0.0)


@pytest.mark.parametrize(("count", "rotations", "steps"), [(3, 1, 1), (3, 5, 2), (10, 3, 3), (20, 19, 19), (2, 3, 1)])
def test_there_are_as_many_rotations_as_asked_for_and_as_there_are(count: int, rotations: int, steps: int):
    definition = {"type": "choice", "instructions": "?", "criteria": [f"label {i}" for i in range(count)]}
    orders = [v.order for v in variants(definition, rotations) if v.kind == "rotated"]
    assert len(set(orders)) == steps
    assert all(sorted(order) == list(range(count)) and order[0] != 0 for order in orders)


def test_every_variant_is_a_valid_question_that_keeps_number_labels_numbers():
    definition = {"type": "choice", "instructions": "?", "criteria": [1, "two", 3.5]}
    found = list(variants(definition, 2))
    assert [v.definition["criteria"] for v in found] == [
        ["two", 3.5, 1],
        [3.5, 1, "two"],
        {"A": "1", "B": "two", "C": "3.5"},
    ]
    for question in [definition, *QUESTIONS.values()]:
        for variant in variants(question, 3):
            parsed = LAYA.parse_question("q", variant.definition)
            assert len(parsed.options) == len(variant.order)


def test_a_noul_that_says_yes_and_no_already_is_asked_with_other_words():
    definition = {"type": "noul", "instructions": "?", "labels": {"false": "no", "true": "yes"}}
    [variant] = variants(definition, 3)
    assert variant.definition["labels"] == {"false": "wrong", "true": "right"}


def test_the_command_probes_a_model(tmp_path: Path, cli: Callable[..., Any], gguf_for: Callable[..., Path]):
    path = jsonl(tmp_path / "data.jsonl", [decision(i, state=f"Ticket {i}") for i in range(4)])
    done = cli("calib", "eval", path, "--stability", "-m", gguf_for(), "-o", tmp_path / "out.json")
    assert done.code == 0, done.err
    value = json.loads((tmp_path / "out.json").read_text())
    assert value["format"] == "layactl.calib-stability/1"
    team = next(one for one in value["questions"] if one["question"] == "team")
    assert (team["records"], team["asked"]) == (4, {"rotated": 8, "renamed": 4})
    # Random weights follow anything: the probe sees it.
    assert team["spread_mean"] > 0
    assert "stability" in done.out


@pytest.mark.parametrize(
    "options", [["--stability"], ["-m", "x.gguf"], ["--stability", "-m", "x.gguf", "--fail-if", "ece>1"]]
)
def test_what_does_not_go_together_is_wrong_usage(tmp_path: Path, cli: Callable[..., Any], options: list[str]):
    assert cli("calib", "eval", jsonl(tmp_path / "data.jsonl", [decision()]), *options).code == 2
