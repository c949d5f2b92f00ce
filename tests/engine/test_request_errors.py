"""engine.request and Model.parse: what is refused before anything is computed, with which reason, code and param."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from layactl import Model
from layactl.engine.request import MAX_BODY_BYTES, Request, check_body_size, parse_body, parse_request
from layactl.errors import RequestError

NOUL = {"type": "noul", "instructions": "Urgent?"}


def body(**fields: Any) -> dict[str, Any]:
    return {"state": "x", "questions": {"q": NOUL}} | fields


def from_wire(model: Model, request: dict[str, Any]) -> Request:
    """The request as a server or a JSONL run reads it."""
    return parse_request(parse_body(json.dumps(request).encode()), model.layout, model.spec)


# A body as it would come over the wire -> (reason, code, param)
BODIES = {
    "empty": (b"", "MALFORMED_JSON", 400, None),
    "not JSON": (b"{", "MALFORMED_JSON", 400, None),
    "not UTF-8": (b'{"state": "\xff"}', "MALFORMED_JSON", 400, None),
    "lone surrogate": (b'{"state": "\\ud800"}', "MALFORMED_JSON", 400, None),
    "NaN": (b'{"state": NaN}', "UNSUPPORTED_NUMBER", 400, None),
    "too large an integer": (b'{"state": 18446744073709551616}', "UNSUPPORTED_NUMBER", 400, None),
    "array": (b"[]", "BODY_NOT_OBJECT", 400, None),
    "text": (b'"x"', "BODY_NOT_OBJECT", 400, None),
    "null": (b"null", "BODY_NOT_OBJECT", 400, None),
    "over 1 MiB": (b'"' + b"x" * MAX_BODY_BYTES + b'"', "BODY_TOO_LARGE", 413, None),
    "over 1 MiB and no JSON": (b"x" * (MAX_BODY_BYTES + 1), "BODY_TOO_LARGE", 413, None),
}

REQUESTS = {
    "no questions": ({"state": "x"}, "INVALID_REQUEST", "questions"),
    "null questions": (body(questions=None), "INVALID_REQUEST", "questions"),
    "questions as a list": (body(questions=[NOUL]), "INVALID_REQUEST", "questions"),
    "questions as text": (body(questions="q"), "INVALID_REQUEST", "questions"),
    "no state": ({"questions": {"q": NOUL}}, "INVALID_REQUEST", "state"),
    "null state": (body(state=None), "INVALID_REQUEST", "state"),
    "null state without questions": (body(state=None, questions={}), "INVALID_REQUEST", "state"),
    "unknown truncation": (body(truncation="cut"), "INVALID_REQUEST", "truncation"),
    "truncation in capitals": (body(truncation="Allow"), "INVALID_REQUEST", "truncation"),
    "null truncation": (body(truncation=None), "INVALID_REQUEST", "truncation"),
    "truncation as a list": (body(truncation=["allow"]), "INVALID_REQUEST", "truncation"),
    "truncation as a bool": (body(truncation=True), "INVALID_REQUEST", "truncation"),
    "question as text": (body(questions={"q": "x"}), "INVALID_REQUEST", "questions.q"),
    "second question": (body(questions={"a": NOUL, "b": {}}), "UNKNOWN_QUESTION_TYPE", "questions.b.type"),
    "question with an empty id": (body(questions={"": {}}), "UNKNOWN_QUESTION_TYPE", "questions..type"),
}

# Both at once: the body's own fields are checked before its questions, and questions in their order.
FIRST = {
    "questions before state": ({}, "questions"),
    "state before truncation": ({"questions": {}, "truncation": 1}, "state"),
    "truncation before a bad question": (body(questions={"q": {}}, truncation=1), "truncation"),
    "first bad question": (body(questions={"a": {}, "b": {}}), "questions.a.type"),
}


@pytest.mark.parametrize("name", BODIES)
def test_bytes_that_are_no_request(name: str):
    data, reason, code, param = BODIES[name]
    with pytest.raises(RequestError) as refusal:
        parse_body(data)
    assert (refusal.value.reason, refusal.value.code, refusal.value.param) == (reason, code, param)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_refused_request(name: str, model_for):
    request, reason, param = REQUESTS[name]
    model = model_for()
    refusals = []
    for parse in (model.parse, lambda body: from_wire(model, body)):
        with pytest.raises(RequestError) as refusal:
            parse(request)
        refusals.append(refusal.value.to_json())
    assert refusals[0] == refusals[1]
    error = refusals[0]
    assert list(error) == ["code", "type", "reason", "message", "param"]
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert (error["reason"], error["param"]) == (reason, param)


@pytest.mark.parametrize("name", FIRST)
def test_of_several_faults_the_first_is_reported(name: str, model_for):
    request, param = FIRST[name]
    with pytest.raises(RequestError) as refusal:
        model_for().parse(request)
    assert refusal.value.param == param


def test_a_body_of_exactly_1_mib_is_parsed(model_for):
    head, tail = b'{"state": "', b'", "questions": {}}'
    data = head + b"x" * (MAX_BODY_BYTES - len(head) - len(tail)) + tail
    assert len(data) == MAX_BODY_BYTES
    assert parse_request(parse_body(data), model_for().layout, model_for().spec).questions == ()


def test_a_request_that_never_was_a_body_is_held_to_the_size_of_one():
    fits = {"state": "\u00e9" * 100}
    check_body_size(fits)
    with pytest.raises(RequestError) as refusal:
        check_body_size({"state": "\u00e9" * (MAX_BODY_BYTES // 2)})
    assert (refusal.value.reason, refusal.value.code) == ("BODY_TOO_LARGE", 413)


def test_param_is_left_out_where_there_is_none():
    with pytest.raises(RequestError) as refusal:
        parse_body(b"[]")
    assert list(refusal.value.to_json()) == ["code", "type", "reason", "message"]


STATES = {
    "text": ("a\u00e9", "a\u00e9", False),
    "empty text": ("", "", False),
    "number": (3.0, "3.0", False),
    "zero": (0, "0", False),
    "false": (False, "false", False),
    "object": ({"b": 1, "a": "\u00e9"}, '{"b": 1, "a": "\u00e9"}', False),
    "list": (["x", {"y": None}], '["x", {"y": null}]', True),
    "empty list": ([], "[]", True),
    "empty object": ({}, "{}", False),
}


@pytest.mark.parametrize("name", STATES)
def test_what_the_tokenizer_reads_of_a_state(name: str, model_for):
    state, text, from_left = STATES[name]
    request = model_for().parse(body(state=state))
    assert (request.state_text, request.from_left) == (text, from_left)
    assert from_wire(model_for(), body(state=state)) == request


def test_truncation_is_allow_unless_said_otherwise(model_for):
    assert model_for().parse(body()).truncation == "allow"
    assert model_for().parse(body(truncation="error")).truncation == "error"


def test_other_fields_of_a_body_are_ignored(model_for):
    assert model_for().parse(body(model="x", cat={1, 2})) == model_for().parse(body())


def test_any_mapping_is_a_body(model_for):
    request = MappingProxyType({"state": MappingProxyType({"a": 1}), "questions": MappingProxyType({"q": NOUL})})
    assert model_for().parse(request) == model_for().parse(body(state={"a": 1}))


@pytest.mark.parametrize("value", [[1], "x", None, 3], ids=["list", "text", "None", "number"])
def test_what_is_no_mapping_is_no_body(value: Any, model_for):
    with pytest.raises(RequestError) as refusal:
        model_for().parse(value)
    assert (refusal.value.reason, refusal.value.param) == ("BODY_NOT_OBJECT", None)
