"""router.request: which bodies are router requests, and the reason and param of those that are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from router_examples import (
    CARD,
    CARD_TEXT,
    CHECK,
    MISSING,
    REFUSED_CARDS,
    SCHEMA,
    SMALL_CARD,
    body,
    candidate,
    card,
    check,
    missing,
)

from layactl.core.calibration import Calibration
from layactl.core.decision_spec import DecisionSpec
from layactl.core.spec_parser import parse_spec
from layactl.engine.request import MAX_BODY_BYTES, parse_body
from layactl.errors import RequestError
from layactl.layouts.laya import LAYA
from layactl.router.request import RouterRequest, parse_router

DEEP = '{"task": "t", "x": ' + "[" * 127 + "]" * 127 + "}"
LONGEST_ID = "aZ0._:/@+-" * 12 + "12345678"


def spec(**fields: Any) -> DecisionSpec:
    text = json.dumps({"spec_version": 1, "layout": "laya"} | fields)
    return parse_spec(
        text,
        source="file",
        where="spec.json",
        shipped=Calibration(),
        model_id="m",
        parse_question=LAYA.parse_question,
    )


def parsed(data: bytes | dict[str, Any], **fields: Any) -> RouterRequest:
    """A body as it would come over the wire."""
    return parse_router(parse_body(data if isinstance(data, bytes) else json.dumps(data).encode()), spec(**fields))


def wire(card_json: str = json.dumps(SMALL_CARD), *, before: str = "", between: str = "") -> bytes:
    """A request in JSON that json.dumps would not write."""
    candidates = f'[{{"id": "a", "card": {card_json}}}]'
    return f'{{{before}"task": "t", "criterion": "c", {between}"candidates": {candidates}}}'.encode()


# body -> (number of candidates, params of its warnings)
ACCEPTED: dict[str, tuple[Any, int, list[str]]] = {
    "one candidate": (body(), 1, []),
    "the specification's example": (
        body(candidate("local/qwen3.5-4b-q4_k_m", CARD), task="Extract", criterion="Exact.", truncation="allow"),
        1,
        [],
    ),
    "16 candidates": (body(*(candidate(f"c{i}") for i in range(16))), 16, []),
    "one card for all": (body(candidate("a"), candidate("b")), 2, []),
    "ids that differ in case": (body(candidate("a"), candidate("A")), 2, []),
    "every character of an id": (body(candidate("aZ0._:/@+-")), 1, []),
    "id of 128 characters": (body(candidate(LONGEST_ID)), 1, []),
    "id of one character": (body(candidate("/")), 1, []),
    "truncation error": (body(truncation="error"), 1, []),
    "truncation allow": (body(truncation="allow"), 1, []),
    "other fields of a body": (body(model="x", questions=1, state=None, id=[1]), 1, []),
    "empty model": (body(model=""), 1, []),
    "multi-line task": (body(task="a\nb\n\n"), 1, []),
    "task of punctuation": (body(task="?"), 1, []),
    "task with spaces around": (body(task="  x  "), 1, []),
    "zero-width task": (body(task="\u200b"), 1, []),
    "control character as a task": (body(task="\x00"), 1, []),
    "special-token text": (body(task="<mask>", criterion="[MASK]"), 1, []),
    "long task": (body(task="x" * 100_000), 1, []),
    "unknown field of a candidate": (body(candidate(weight=2)), 1, ["candidates[0].weight"]),
    "unknown field of a card": (body(candidate(card=card(owner=1))), 1, ["candidates[0].card.owner"]),
    "unknown field of a check": (body(candidate(card=check(note=1))), 1, ["candidates[0].card.checks[0].note"]),
    "unknown fields everywhere": (
        body(candidate("a", check(n=1), w=1), candidate("b", missing(n=1), w=1)),
        2,
        [
            "candidates[0].card.checks[0].n",
            "candidates[0].w",
            "candidates[1].card.checks[0].n",
            "candidates[1].w",
        ],
    ),
    "unknown field with any value": (body(candidate(x={"deep": [None]})), 1, ["candidates[0].x"]),
    "leading BOM": (b"\xef\xbb\xbf" + json.dumps(body()).encode(), 1, []),
    "JSON space around": (b" \n\t" + json.dumps(body()).encode() + b"\r\n ", 1, []),
    "repeated task: the last counts": (wire(before='"task": "", '), 1, []),
    "repeated candidates: the last counts": (wire(between='"candidates": [], '), 1, []),
    "repeated card key: the last counts": (
        wire(f'{{"name": 1, "schema": "{SCHEMA}", "kind": "k", "zz": 1, "name": "C"}}'),
        1,
        ["candidates[0].card.zz"],
    ),
    "escaped text": (
        b'{"task": "\\u4e2d\\ud83d\\ude00\\u0000x", "criterion": "\\t\\u2028c", "candidates": '
        b'[{"id": "a", "card": {"schema": "atomic.executor-card/1", "name": "\\u0000A\\u001f", "kind": "\\u00a0k"}}]}',
        1,
        [],
    ),
    "minus zero passed": (wire(json.dumps(check(passed=7)).replace("7", "-0")), 1, []),
}

# body -> (reason, param); the code of all is 400 but for BODY_TOO_LARGE
REFUSED: dict[str, tuple[Any, str, str | None]] = {
    # what is no body
    "empty": (b"", "MALFORMED_JSON", None),
    "cut off": (b'{"task": "t", ', "MALFORMED_JSON", None),
    "two documents": (b'{"task": "t"} x', "MALFORMED_JSON", None),
    "bad escape": (b'{"task": "\\x41"}', "MALFORMED_JSON", None),
    "control character in a string": (b'{"task": "a\tb"}', "MALFORMED_JSON", None),
    "lone surrogate": (b'{"task": "\\ud800"}', "MALFORMED_JSON", None),
    "bad UTF-8": (b'{"task": "\xff"}', "MALFORMED_JSON", None),
    "129 levels": (b'{"x": ' + b"[" * 128 + b"]" * 128 + b"}", "MALFORMED_JSON", None),
    "NaN": (b'{"task": "t", "x": NaN}', "UNSUPPORTED_NUMBER", None),
    "negative NaN": (b'{"x": -NaN}', "UNSUPPORTED_NUMBER", None),
    "Infinity": (b'{"x": -Infinity}', "UNSUPPORTED_NUMBER", None),
    "integer over uint64": (b'{"x": 18446744073709551616}', "UNSUPPORTED_NUMBER", None),
    "float overflow": (b'{"x": 1e400}', "UNSUPPORTED_NUMBER", None),
    "surrogate before NaN": (b'{"t": "\\ud800", "y": NaN}', "MALFORMED_JSON", None),
    "NaN before surrogate": (b'{"y": NaN, "t": "\\ud800"}', "UNSUPPORTED_NUMBER", None),
    "negative NaN before surrogate": (b'{"y": -NaN, "t": "\\ud800"}', "UNSUPPORTED_NUMBER", None),
    "surrogate before negative NaN": (b'{"t": "\\ud800", "y": -NaN}', "MALFORMED_JSON", None),
    "array": (b"[1]", "BODY_NOT_OBJECT", None),
    "text": (b'"task"', "BODY_NOT_OBJECT", None),
    "null": (b"null", "BODY_NOT_OBJECT", None),
    "over 1 MiB": (b" " * (MAX_BODY_BYTES + 1), "BODY_TOO_LARGE", None),
    # task, criterion, truncation
    "empty object": ({}, "INVALID_REQUEST", "task"),
    "128 levels": (DEEP.encode(), "INVALID_REQUEST", "criterion"),
    "null task": (body(task=None), "INVALID_REQUEST", "task"),
    "empty task": (body(task=""), "INVALID_REQUEST", "task"),
    "blank task": (body(task=" \u3000\u2028"), "INVALID_REQUEST", "task"),
    "task of a next line": (body(task="\u0085"), "INVALID_REQUEST", "task"),
    "number as a task": (body(task=5), "INVALID_REQUEST", "task"),
    "object as a task": (body(task={"text": "x"}), "INVALID_REQUEST", "task"),
    "bool as a task": (body(task=True), "INVALID_REQUEST", "task"),
    "null criterion": (body(criterion=None), "INVALID_REQUEST", "criterion"),
    "empty criterion": (body(criterion=""), "INVALID_REQUEST", "criterion"),
    "blank criterion": (body(criterion="\t\n"), "INVALID_REQUEST", "criterion"),
    "list as a criterion": (body(criterion=["x"]), "INVALID_REQUEST", "criterion"),
    "number as a criterion": (body(criterion=0), "INVALID_REQUEST", "criterion"),
    "truncation in capitals": (body(truncation="Allow"), "INVALID_REQUEST", "truncation"),
    "unknown truncation": (body(truncation="none"), "INVALID_REQUEST", "truncation"),
    "empty truncation": (body(truncation=""), "INVALID_REQUEST", "truncation"),
    "bool truncation": (body(truncation=True), "INVALID_REQUEST", "truncation"),
    "null truncation": (body(truncation=None), "INVALID_REQUEST", "truncation"),
    "list truncation": (body(truncation=["allow"]), "INVALID_REQUEST", "truncation"),
    # candidates
    "no candidates": ({"task": "t", "criterion": "c"}, "INVALID_REQUEST", "candidates"),
    "null candidates": (body(candidates=None), "INVALID_REQUEST", "candidates"),
    "empty candidates": (body(candidates=[]), "INVALID_REQUEST", "candidates"),
    "object as candidates": (body(candidates={"a": CARD}), "INVALID_REQUEST", "candidates"),
    "text as candidates": (body(candidates="a"), "INVALID_REQUEST", "candidates"),
    "17 candidates": (body(*(candidate(f"c{i}") for i in range(17))), "TOO_MANY_CANDIDATES", "candidates"),
    "17 bad candidates": (body(candidates=[1] * 17), "TOO_MANY_CANDIDATES", "candidates"),
    "text as a candidate": (body("x"), "INVALID_CARD", "candidates[0]"),
    "null as a candidate": (body(candidate(), None), "INVALID_CARD", "candidates[1]"),
    "list as a candidate": (body([]), "INVALID_CARD", "candidates[0]"),
    "number as a candidate": (body(1), "INVALID_CARD", "candidates[0]"),
    "empty candidate": (body({}), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "no id": (body({"card": CARD}), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "null id": (body({"id": None, "card": CARD}), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "empty id": (body(candidate("")), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "number as an id": (body(candidate(7)), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "list as an id": (body(candidate(["a"])), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "id with a space": (body(candidate("a b")), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "id with a line end": (body(candidate("a\n")), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "id with a hash": (body(candidate("a#b")), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "id with a comma": (body(candidate("a,b")), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "id with a letter beyond ASCII": (body(candidate("a\u00e9")), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "id of Arabic digits": (body(candidate("\u0661")), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "id of 129 characters": (body(candidate(LONGEST_ID + "x")), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "bad id of the third": (
        body(candidate("a"), candidate("b"), candidate("")),
        "INVALID_CANDIDATE_ID",
        "candidates[2].id",
    ),
    "repeated id": (body(candidate("a"), candidate("a")), "DUPLICATE_CANDIDATE_ID", "candidates[1].id"),
    "repeated id apart": (
        body(candidate("a"), candidate("b"), candidate("a")),
        "DUPLICATE_CANDIDATE_ID",
        "candidates[2].id",
    ),
    "no card": (body({"id": "a"}), "INVALID_CARD", "candidates[0].card"),
    "no card in the second": (body(candidate("a"), {"id": "b"}), "INVALID_CARD", "candidates[1].card"),
    # of two faults the first
    "task before criterion": (body(task="", criterion=""), "INVALID_REQUEST", "task"),
    "criterion before truncation": (body(criterion="", truncation=1), "INVALID_REQUEST", "criterion"),
    "truncation before candidates": (body(truncation=1, candidates=1), "INVALID_REQUEST", "truncation"),
    "first candidate": (body(candidate("a", 1), candidate("a")), "INVALID_CARD", "candidates[0].card"),
    "id before card": (body(candidate("!", 1)), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "repeated id before card": (body(candidate("a"), candidate("a", 1)), "DUPLICATE_CANDIDATE_ID", "candidates[1].id"),
}
# Every refused card, in a request.
REFUSED |= {
    f"card: {name}": (body(candidate("a"), {"id": "b", "card": value}), "INVALID_CARD", f"candidates[1].card{param}")
    for name, (value, param) in REFUSED_CARDS.items()
}


def test_the_tables_are_as_long_as_promised():
    assert len(ACCEPTED) + len(REFUSED) >= 150


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_accepted_body(name: str):
    data, count, warnings = ACCEPTED[name]
    request = parsed(data)
    assert len(request.candidates) == count
    assert [warning["param"] for warning in request.warnings] == warnings
    assert [candidate.param for candidate in request.candidates] == [f"candidates[{i}]" for i in range(count)]


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_body(name: str):
    data, reason, param = REFUSED[name]
    with pytest.raises(RequestError) as refusal:
        parsed(data)
    error = refusal.value
    assert (error.reason, error.param, error.code) == (reason, param, 413 if reason == "BODY_TOO_LARGE" else 400)
    assert 0 < len(error.message) < 200


def test_a_request_keeps_text_as_it_is_and_order_as_given():
    request = parsed(body(candidate("b", CARD), candidate("a"), task=" t\n", criterion="\tc", truncation="error"))
    assert (request.task, request.criterion, request.truncation) == (" t\n", "\tc", "error")
    assert [c.id for c in request.candidates] == ["b", "a"]
    assert request.candidates[0].card.text == CARD_TEXT
    assert parsed(body()).truncation == "allow"


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (0, 16), (None, 16), (50, 16)])
def test_a_spec_may_lower_the_number_of_candidates(limit: int | None, most: int):
    limits = {"max_candidates": limit}
    fits = body(*(candidate(f"c{i}") for i in range(most)))
    assert len(parsed(fits, limits=limits).candidates) == most
    with pytest.raises(RequestError, match=f"at most {most}") as refusal:
        parsed(body(*(candidate(f"c{i}") for i in range(most + 1))), limits=limits)
    assert refusal.value.reason == "TOO_MANY_CANDIDATES"


def test_a_measured_and_a_missing_check_in_one_request():
    request = parsed(body(candidate("a", card(checks=[CHECK, MISSING]))))
    assert request.candidates[0].card.text.count("\n- ") == 2
