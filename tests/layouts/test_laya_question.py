"""layouts.laya.question: which definitions are questions, and the option texts a model reads.

Every case is also put to the reference (`Agent._check_question`, `_to_internal`, `common.render_options`), which must
decide alike but for the two limits it does not have: more than 20 options, and two labels with one answer key.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from layactl.errors import RequestError
from layactl.layouts.interface import Question
from layactl.layouts.laya.question import MAX_OPTIONS, QUESTION_TYPES, parse_question

NO, YES = "no, the statement does not hold", "yes, the statement holds"


@cache
def reference() -> Any:
    return pytest.importorskip("laya.agent").Agent


def ask_reference(definition: Any) -> tuple[str, list[str]] | None:
    """(instructions, option texts) as the reference renders them, or None when it refuses the definition."""
    from laya.common import render_options

    try:
        reference()._check_question("q", definition)
    except (ValueError, TypeError):  # TypeError: an unhashable type word, which the reference does not expect
        return None
    internal = reference()._to_internal(definition)
    return str(internal["ins"]), render_options(internal)


@dataclass(frozen=True)
class Accepted:
    definition: dict[str, Any]
    options: list[str]
    keys: list[str]
    labels: list[Any]
    instructions: str = "Which?"


def choice(criteria: Any, **more: Any) -> dict[str, Any]:
    return {"type": "choice", "instructions": "Which?", "criteria": criteria} | more


def score(criteria: Any, **more: Any) -> dict[str, Any]:
    return {"type": "score", "instructions": "Which?", "criteria": criteria} | more


def noul(**more: Any) -> dict[str, Any]:
    return {"type": "noul", "instructions": "Which?"} | more


def noul_texts(false: str = NO, true: str = YES, words: tuple[str, str] = ("false", "true")) -> Any:
    return [f"{words[0]}: {false}", f"{words[1]}: {true}"]


def accepted_noul(definition: dict[str, Any], options: list[str], instructions: str = "Which?") -> Accepted:
    return Accepted(definition, options, ["0", "1"], ["false", "true"], instructions)


TWENTY = [f"label {n}" for n in range(20)]

ACCEPTED = {
    # choice
    "object": Accepted(choice({"a": "x", "b": "y"}), ["a: x", "b: y"], ["a", "b"], ["a", "b"]),
    "object without descriptions": Accepted(choice({"a": None, "b": ""}), ["a", "b"], ["a", "b"], ["a", "b"]),
    "description of spaces": Accepted(choice({"a": " "}), ["a:  "], ["a"], ["a"]),
    "description 0": Accepted(choice({"a": 0}), ["a: 0"], ["a"], ["a"]),
    "description false": Accepted(choice({"a": False}), ["a: false"], ["a"], ["a"]),
    "description float": Accepted(choice({"a": 1e16}), ["a: 1e+16"], ["a"], ["a"]),
    "description list": Accepted(choice({"a": [1, "x", None]}), ['a: [1, "x", null]'], ["a"], ["a"]),
    "description empty list": Accepted(choice({"a": []}), ["a: []"], ["a"], ["a"]),
    "description object": Accepted(choice({"a": {"k": "\u00e9"}}), ['a: {"k": "\u00e9"}'], ["a"], ["a"]),
    "list": Accepted(choice(["a", "b"]), ["a", "b"], ["a", "b"], ["a", "b"]),
    "one option": Accepted(choice(["a"]), ["a"], ["a"], ["a"]),
    "empty label": Accepted(choice(["", "b"]), ["", "b"], ["", "b"], ["", "b"]),
    "empty label with description": Accepted(choice({"": "x"}), [": x"], [""], [""]),
    "labels that differ in case or space": Accepted(
        choice(["a", "A", "a "]), ["a", "A", "a "], *[["a", "A", "a "]] * 2
    ),
    "int label": Accepted(choice([3, 4]), ["3", "4"], ["3", "4"], [3, 4]),
    "bool label": Accepted(choice([True, False]), ["True", "False"], ["true", "false"], [True, False]),
    "float label": Accepted(choice([2.5, 1e16]), ["2.5", "1e+16"], ["2.5", "1e+16"], [2.5, 1e16]),
    "string beside a number it does not equal": Accepted(choice(["1", 2]), ["1", "2"], ["1", "2"], ["1", 2]),
    "20 options": Accepted(choice(TWENTY), TWENTY, TWENTY, TWENTY),
    "mask text in a label": Accepted(choice(["a <mask> b"]), ["a <mask> b"], ["a <mask> b"], ["a <mask> b"]),
    # score
    "levels": Accepted(score(["low", "high"]), ["level 0: low", "level 1: high"], ["0", "1"], ["low", "high"]),
    "one level": Accepted(score(["only"]), ["level 0: only"], ["0"], ["only"]),
    "empty level": Accepted(score([""]), ["level 0: "], ["0"], [""]),
    "equal levels": Accepted(score(["a", "a"]), ["level 0: a", "level 1: a"], ["0", "1"], ["a", "a"]),
    "levels of any type": Accepted(
        score([0, False, 2.0, {"k": 1}, []]),
        ["level 0: 0", "level 1: false", "level 2: 2.0", 'level 3: {"k": 1}', "level 4: []"],
        ["0", "1", "2", "3", "4"],
        [0, False, 2.0, {"k": 1}, []],
    ),
    # noul
    "no criteria": accepted_noul(noul(), noul_texts()),
    "null criteria": accepted_noul(noul(criteria=None), noul_texts()),
    "empty criteria": accepted_noul(noul(criteria={}), noul_texts()),
    "one side": accepted_noul(noul(criteria={"true": "today"}), noul_texts(true="today")),
    "both sides": accepted_noul(noul(criteria={"true": "t", "false": "f"}), noul_texts("f", "t")),
    "keys in any case": accepted_noul(noul(criteria={"True": "t", "FALSE": "f"}), noul_texts("f", "t")),
    "a later duplicate wins": accepted_noul(noul(criteria={"TRUE": "first", "true": "last"}), noul_texts(true="last")),
    "null and empty descriptions": accepted_noul(noul(criteria={"true": None, "false": ""}), noul_texts()),
    "description 0 of a noul": accepted_noul(noul(criteria={"true": 0}), noul_texts(true="0")),
    "structured description": accepted_noul(noul(criteria={"true": {"a": [1]}}), noul_texts(true='{"a": [1]}')),
    "null labels": accepted_noul(noul(labels=None), noul_texts()),
    "labels": accepted_noul(noul(labels={"false": "later", "true": "now"}), noul_texts(words=("later", "now"))),
    "labels are stripped": accepted_noul(
        noul(labels={"true": "\u2028 now\u0085", "false": "\tlater\u00a0"}), noul_texts(words=("later", "now"))
    ),
    "labels that differ in case": accepted_noul(
        noul(labels={"false": "Yes", "true": "yes"}), noul_texts(words=("Yes", "yes"))
    ),
    "labels swapped": accepted_noul(
        noul(labels={"false": "true", "true": "false"}), noul_texts(words=("true", "false"))
    ),
    "labels with criteria": accepted_noul(
        noul(criteria={"true": "t"}, labels={"false": "f", "true": "w"}), noul_texts(true="t", words=("f", "w"))
    ),
    # instructions
    "blank instructions": accepted_noul(noul(instructions="  "), noul_texts(), "  "),
    "empty instructions": accepted_noul(noul(instructions=""), noul_texts(), ""),
    "null instructions": accepted_noul(noul(instructions=None), noul_texts(), "null"),
    "numeric instructions": accepted_noul(noul(instructions=3.0), noul_texts(), "3.0"),
    "structured instructions": accepted_noul(
        noul(instructions={"de": "M\u00fcll?"}), noul_texts(), '{"de": "M\u00fcll?"}'
    ),
    "unknown keys are ignored": accepted_noul(noul(note="x", gold="true"), noul_texts()),
}


def parse(definition: Any) -> Question:
    return parse_question("q", definition)


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str):
    case = ACCEPTED[name]
    before = copy.deepcopy(case.definition)
    question = parse(case.definition)
    assert (question.id, question.type, question.instructions) == ("q", case.definition["type"], case.instructions)
    assert (list(question.options), list(question.keys)) == (case.options, case.keys)
    # repr tells 1 from True and 2 from 2.0: an answer carries the label as it was given.
    assert repr(list(question.labels)) == repr(case.labels)
    assert case.definition == before


@pytest.mark.reference
@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_by_the_reference_with_the_same_texts(name: str):
    case = ACCEPTED[name]
    reference()
    assert ask_reference(case.definition) == (case.instructions, case.options)


@dataclass(frozen=True)
class Refused:
    definition: Any
    reason: str
    param: str
    fragment: str = ""
    here_only: bool = False


BAD_CRITERIA, BAD_NOUL = "UNSUPPORTED_CRITERIA_VALUE", "INVALID_NOUL_CRITERIA"

REFUSED = {
    # the definition itself
    "null": Refused(None, "INVALID_REQUEST", "questions.q", "object"),
    "text": Refused("noul", "INVALID_REQUEST", "questions.q"),
    "list": Refused([noul()], "INVALID_REQUEST", "questions.q"),
    # type
    "no type": Refused({"instructions": "x"}, "UNKNOWN_QUESTION_TYPE", "questions.q.type", "no type"),
    "unknown type": Refused(
        {"type": "bool", "instructions": "x"}, "UNKNOWN_QUESTION_TYPE", "questions.q.type", "'bool'"
    ),
    "type in capitals": Refused({"type": "Noul", "instructions": "x"}, "UNKNOWN_QUESTION_TYPE", "questions.q.type"),
    "null type": Refused({"type": None, "instructions": "x"}, "UNKNOWN_QUESTION_TYPE", "questions.q.type"),
    "numeric type": Refused({"type": 0, "instructions": "x"}, "UNKNOWN_QUESTION_TYPE", "questions.q.type"),
    "list type": Refused({"type": ["noul"], "instructions": "x"}, "UNKNOWN_QUESTION_TYPE", "questions.q.type"),
    "a long type is shortened": Refused(
        {"type": "x" * 5000, "instructions": "x"}, "UNKNOWN_QUESTION_TYPE", "questions.q.type", "..."
    ),
    # instructions
    "no instructions": Refused({"type": "noul"}, "EMPTY_INSTRUCTIONS", "questions.q.instructions"),
    "type comes first": Refused({"type": "x"}, "UNKNOWN_QUESTION_TYPE", "questions.q.type"),
    # choice
    "choice without criteria": Refused(
        {"type": "choice", "instructions": "x"}, "TOO_FEW_OPTIONS", "questions.q.criteria"
    ),
    "choice with null": Refused(choice(None), "TOO_FEW_OPTIONS", "questions.q.criteria"),
    "choice with an empty list": Refused(choice([]), "TOO_FEW_OPTIONS", "questions.q.criteria"),
    "choice with an empty object": Refused(choice({}), "TOO_FEW_OPTIONS", "questions.q.criteria"),
    "choice with text": Refused(choice("a|b"), BAD_CRITERIA, "questions.q.criteria", "object"),
    "choice with empty text": Refused(choice(""), BAD_CRITERIA, "questions.q.criteria"),
    "choice with false": Refused(choice(False), BAD_CRITERIA, "questions.q.criteria"),
    "choice with 0": Refused(choice(0), BAD_CRITERIA, "questions.q.criteria"),
    "null label": Refused(choice(["a", None]), BAD_CRITERIA, "questions.q.criteria[1]", "label 1 is null"),
    "list label": Refused(choice([["a"]]), BAD_CRITERIA, "questions.q.criteria[0]", "label 0 is a list"),
    "object label": Refused(choice(["a", {"b": 1}]), BAD_CRITERIA, "questions.q.criteria[1]", "label 1 is a dict"),
    "repeated label": Refused(choice(["a", "b", "a"]), BAD_CRITERIA, "questions.q.criteria[2]", "repeats label 0"),
    "1 and 1.0": Refused(choice([1, 1.0]), BAD_CRITERIA, "questions.q.criteria[1]", "repeats label 0"),
    "1 and true": Refused(choice([True, 1]), BAD_CRITERIA, "questions.q.criteria[1]", "repeats label 0"),
    "0 and false": Refused(choice([0, False]), BAD_CRITERIA, "questions.q.criteria[1]"),
    "one answer key, number": Refused(
        choice(["1", 1]), BAD_CRITERIA, "questions.q.criteria[1]", 'answer key "1"', here_only=True
    ),
    "one answer key, bool": Refused(
        choice([True, "true"]), BAD_CRITERIA, "questions.q.criteria[1]", 'answer key "true"', here_only=True
    ),
    "one answer key, float": Refused(choice([2.5, "2.5"]), BAD_CRITERIA, "questions.q.criteria[1]", here_only=True),
    "21 options": Refused(
        choice([*TWENTY, "x"]), "TOO_MANY_OPTIONS", "questions.q.criteria", "at most 20", here_only=True
    ),
    "21 described options": Refused(
        choice(dict.fromkeys([*TWENTY, "x"])), "TOO_MANY_OPTIONS", "questions.q.criteria", here_only=True
    ),
    "labels of a choice": Refused(
        choice(["a"], labels={"false": "a", "true": "b"}), BAD_CRITERIA, "questions.q.labels"
    ),
    "null labels of a choice": Refused(choice(["a"], labels=None), BAD_CRITERIA, "questions.q.labels"),
    # score
    "score without criteria": Refused(
        {"type": "score", "instructions": "x"}, "TOO_FEW_OPTIONS", "questions.q.criteria"
    ),
    "score with an empty list": Refused(score([]), "TOO_FEW_OPTIONS", "questions.q.criteria"),
    "score with an object": Refused(score({"0": "low"}), BAD_CRITERIA, "questions.q.criteria"),
    "score with an empty object": Refused(score({}), BAD_CRITERIA, "questions.q.criteria"),
    "score with text": Refused(score("low"), BAD_CRITERIA, "questions.q.criteria"),
    "null level": Refused(score(["a", None]), BAD_CRITERIA, "questions.q.criteria[1]", "level 1 is null"),
    "21 levels": Refused(score([*TWENTY, "x"]), "TOO_MANY_OPTIONS", "questions.q.criteria", here_only=True),
    "labels of a score": Refused(score(["a"], labels=None), BAD_CRITERIA, "questions.q.labels"),
    # noul
    "noul with a list": Refused(noul(criteria=["no", "yes"]), BAD_NOUL, "questions.q.criteria"),
    "noul with an empty list": Refused(noul(criteria=[]), BAD_NOUL, "questions.q.criteria"),
    "noul with text": Refused(noul(criteria="yes"), BAD_NOUL, "questions.q.criteria"),
    "noul with false": Refused(noul(criteria=False), BAD_NOUL, "questions.q.criteria"),
    "noul keyed yes / no": Refused(noul(criteria={"yes": "x", "no": "y"}), BAD_NOUL, "questions.q.criteria", "'no'"),
    "noul with one key too many": Refused(
        noul(criteria={"true": "x", "maybe": None}), BAD_NOUL, "questions.q.criteria", "'maybe'"
    ),
    "noul key with a space": Refused(noul(criteria={"true ": "x"}), BAD_NOUL, "questions.q.criteria"),
    "noul labels as a list": Refused(noul(labels=["no", "yes"]), BAD_NOUL, "questions.q.labels"),
    "noul labels in capitals": Refused(noul(labels={"False": "a", "True": "b"}), BAD_NOUL, "questions.q.labels"),
    "noul labels with one side": Refused(noul(labels={"true": "b"}), BAD_NOUL, "questions.q.labels"),
    "noul labels with three sides": Refused(
        noul(labels={"false": "a", "true": "b", "x": "c"}), BAD_NOUL, "questions.q.labels"
    ),
    "noul labels empty": Refused(noul(labels={}), BAD_NOUL, "questions.q.labels"),
    "noul label of a number": Refused(
        noul(labels={"false": 0, "true": "b"}), BAD_NOUL, "questions.q.labels", "strings"
    ),
    "blank noul label": Refused(noul(labels={"false": "\u2028", "true": "b"}), BAD_NOUL, "questions.q.labels", "blank"),
    "equal noul labels": Refused(noul(labels={"false": "a", "true": "a"}), BAD_NOUL, "questions.q.labels", "distinct"),
    "noul labels equal once stripped": Refused(
        noul(labels={"false": "a", "true": " a "}), BAD_NOUL, "questions.q.labels", "distinct"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    case = REFUSED[name]
    with pytest.raises(RequestError) as refusal:
        parse(case.definition)
    error = refusal.value
    assert (error.reason, error.param, error.code) == (case.reason, case.param, 400)
    assert case.fragment in error.message
    assert len(error.message) < 200


@pytest.mark.reference
@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_the_reference_but_for_the_two_limits(name: str):
    case = REFUSED[name]
    reference()
    assert (ask_reference(case.definition) is None) == (not case.here_only)


def test_the_types_are_in_the_order_of_their_embeddings():
    assert QUESTION_TYPES == ("choice", "score", "noul")
    common = pytest.importorskip("laya.common")
    assert {name: n for n, name in enumerate(QUESTION_TYPES)} == common.QTYPES


# -- random definitions ----------------------------------------------------------------------------------------------

WORDS = st.sampled_from(["a", "b", "", " ", "true", "True", "false", "FALSE", "1", "2.5", "\u2028", "x" * 30])
SCALARS = st.one_of(WORDS, st.none(), st.booleans(), st.integers(-2, 3), st.sampled_from([0.0, 1.0, 2.5, 1e16]))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=6
)
CRITERIA = st.one_of(
    VALUES,
    st.lists(SCALARS, max_size=4),
    st.dictionaries(WORDS, VALUES, max_size=4),
    st.lists(st.integers(0, 40), min_size=18, max_size=23),
)
DEFINITIONS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.one_of(st.sampled_from(QUESTION_TYPES), st.sampled_from(QUESTION_TYPES), SCALARS),
        "instructions": VALUES,
        "criteria": CRITERIA,
        "labels": st.one_of(
            VALUES, st.fixed_dictionaries({"false": WORDS, "true": WORDS}), st.dictionaries(WORDS, WORDS, max_size=3)
        ),
        "more": SCALARS,
    },
)


def has_a_limit_of_ours(definition: dict[str, Any]) -> bool:
    criteria = definition["criteria"]
    if len(criteria) > MAX_OPTIONS:
        return True
    keys = [json.dumps({label: 0}) for label in criteria] if definition["type"] == "choice" else []
    return len(set(keys)) < len(keys)


@pytest.mark.reference
@settings(max_examples=1500)
@given(DEFINITIONS)
def test_random_definitions_are_decided_as_the_reference_decides(definition: dict[str, Any]):
    reference()
    theirs = ask_reference(definition)
    try:
        ours = parse(definition)
    except RequestError as error:
        assert theirs is None or has_a_limit_of_ours(definition)
        assert error.param is not None and error.param.startswith("questions.q")
        return
    assert theirs is not None
    assert (ours.instructions, list(ours.options)) == theirs


@pytest.mark.reference
@settings(max_examples=300)
@given(st.sampled_from(QUESTION_TYPES), CRITERIA)
def test_random_criteria_of_well_formed_questions(question_type: str, criteria: Any):
    reference()
    definition = {"type": question_type, "instructions": "x", "criteria": criteria}
    theirs = ask_reference(definition)
    assume(theirs is not None)
    assert theirs is not None
    if question_type != "noul" and has_a_limit_of_ours(definition):
        with pytest.raises(RequestError):
            parse(definition)
    else:
        assert list(parse(definition).options) == theirs[1]
