"""Every row of the Errors table over the wire: status, type, reason, param, and what happens to the connection."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from layactl.engine.request import MAX_BODY_BYTES

from .bodies import CARD, CHOICE, GOOD, LARGEST, NOUL, RENDER, ROUTER, SYSTEMONE, TOO_LARGE, router, systemone
from .raw_client import RawClient, get, post
from .server_process import ServerProcess, wait_for

TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "overloaded_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


def check_envelope(answer: Any, status: int, reason: str, param: str | None = None) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    error: dict[str, Any] = answer.json()["error"]
    expected = {"code": status, "type": TYPES.get(status, "invalid_request_error"), "reason": reason}
    assert (answer.status, error.pop("message") != "") == (status, True)
    assert error == expected | ({} if param is None else {"param": param})
    return error


def criteria(question_type: str, value: Any) -> dict[str, Any]:
    return systemone(q={"type": question_type, "instructions": "?", "criteria": value})


# body -> reason, param
REFUSED: dict[str, tuple[Any, str, str | None]] = {
    "empty body": (b"", "MALFORMED_JSON", None),
    "no JSON": (b"{", "MALFORMED_JSON", None),
    "not UTF-8": (b'{"state": "\xff"}', "MALFORMED_JSON", None),
    "two documents": (GOOD + GOOD, "MALFORMED_JSON", None),
    "unpaired surrogate": (b'{"state": "\\ud83d"}', "MALFORMED_JSON", None),
    "too deep": (b"[" * 200 + b"]" * 200, "MALFORMED_JSON", None),
    "a list": (b"[]", "BODY_NOT_OBJECT", None),
    "a text": (b'"x"', "BODY_NOT_OBJECT", None),
    "NaN": (b'{"state": NaN}', "UNSUPPORTED_NUMBER", None),
    "Infinity": (b'{"state": [-Infinity]}', "UNSUPPORTED_NUMBER", None),
    "integer outside 64 bits": (b'{"state": 18446744073709551616}', "UNSUPPORTED_NUMBER", None),
    "float overflow": (b'{"state": 1e999}', "UNSUPPORTED_NUMBER", None),
    "no questions": ({"state": "x"}, "INVALID_REQUEST", "questions"),
    "no state": ({"questions": {"q": NOUL}}, "INVALID_REQUEST", "state"),
    "null state": (systemone(state=None), "INVALID_REQUEST", "state"),
    "bad truncation": (systemone() | {"truncation": "cut"}, "INVALID_REQUEST", "truncation"),
    "question as text": (systemone(q="x"), "INVALID_REQUEST", "questions.q"),
    "unknown type": (systemone(q=NOUL | {"type": "bool"}), "UNKNOWN_QUESTION_TYPE", "questions.q.type"),
    "no instructions": (systemone(q={"type": "noul"}), "EMPTY_INSTRUCTIONS", "questions.q.instructions"),
    "no options": (criteria("choice", []), "TOO_FEW_OPTIONS", "questions.q.criteria"),
    "no levels": (criteria("score", None), "TOO_FEW_OPTIONS", "questions.q.criteria"),
    "21 options": (criteria("choice", list(range(21))), "TOO_MANY_OPTIONS", "questions.q.criteria"),
    "null label": (criteria("choice", ["a", None]), "UNSUPPORTED_CRITERIA_VALUE", "questions.q.criteria[1]"),
    "equal labels": (criteria("choice", [1, 1.0]), "UNSUPPORTED_CRITERIA_VALUE", "questions.q.criteria[1]"),
    "one answer key": (criteria("choice", ["1", 1]), "UNSUPPORTED_CRITERIA_VALUE", "questions.q.criteria[1]"),
    "labels of a choice": (
        systemone(q=CHOICE | {"labels": {"false": "a", "true": "b"}}),
        "UNSUPPORTED_CRITERIA_VALUE",
        "questions.q.labels",
    ),
    "noul keys": (criteria("noul", {"yes": "x"}), "INVALID_NOUL_CRITERIA", "questions.q.criteria"),
    "noul labels": (systemone(q=NOUL | {"labels": {"true": "x"}}), "INVALID_NOUL_CRITERIA", "questions.q.labels"),
    "too many questions": (systemone(**{f"q{n}": NOUL for n in range(17)}), "TOO_MANY_QUESTIONS", "questions"),
}
REFUSED_BY_ROUTER: dict[str, tuple[Any, str, str | None]] = {
    "no JSON": (b"{", "MALFORMED_JSON", None),
    "a list": (b"[]", "BODY_NOT_OBJECT", None),
    "no task": (router(task=None), "INVALID_REQUEST", "task"),
    "blank criterion": (router(criterion=" "), "INVALID_REQUEST", "criterion"),
    "no candidates": (router(candidates=[]), "INVALID_REQUEST", "candidates"),
    "bad truncation": (router(truncation=1), "INVALID_REQUEST", "truncation"),
    "a candidate without a card": (router({"id": "a"}), "INVALID_CARD", "candidates[0].card"),
    "a card without a name": (
        router({"id": "a", "card": {key: value for key, value in CARD.items() if key != "name"}}),
        "INVALID_CARD",
        "candidates[0].card.name",
    ),
    "a card string over 4096 bytes": (
        router({"id": "a", "card": CARD | {"name": "x" * 4097}}),
        "INVALID_CARD",
        "candidates[0].card.name",
    ),
    "an id with a space": (router({"id": "a b", "card": CARD}), "INVALID_CANDIDATE_ID", "candidates[0].id"),
    "an id twice": (router(*[{"id": "a", "card": CARD}] * 2), "DUPLICATE_CANDIDATE_ID", "candidates[1].id"),
    "too many candidates": (
        router(*({"id": f"c{n}", "card": CARD} for n in range(9))),
        "TOO_MANY_CANDIDATES",
        "candidates",
    ),
}
LONG = "the invoice was paid twice and nobody answers " * 300
UNFIT: dict[str, tuple[Any, str, str | None]] = {
    "a long state": (systemone(LONG) | {"truncation": "error"}, "STATE_TRUNCATED", "state"),
    "long instructions": (
        systemone(q=NOUL | {"instructions": LONG}) | {"truncation": "error"},
        "PROMPT_TOO_LONG",
        "questions.q.instructions",
    ),
    "a long option": (
        systemone(q=CHOICE | {"criteria": {"a": LONG, "b": None}}) | {"truncation": "error"},
        "OPTIONS_TRUNCATED",
        "questions.q.criteria",
    ),
}
SMALL = {"id": "a", "card": {"schema": CARD["schema"], "name": "A", "kind": "local"}}
UNFIT_FOR_ROUTER: dict[str, tuple[Any, str, str | None]] = {
    "a long card": (
        router({"id": "a", "card": CARD | {"description": LONG[:4000]}}),
        "CARD_TOO_LONG",
        "candidates[0].card",
    ),
    "a long criterion": (router(SMALL, criterion=LONG), "CRITERION_TOO_LONG", "candidates[0]"),
    "a long task": (router(SMALL, task=LONG, truncation="error"), "STATE_TRUNCATED", "task"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_body(name: str, english: ServerProcess):
    body, reason, param = REFUSED[name]
    check_envelope(english.post(SYSTEMONE, body), 400, reason, param)


@pytest.mark.parametrize("name", REFUSED_BY_ROUTER)
def test_a_refused_router_body(name: str, multilingual: ServerProcess):
    body, reason, param = REFUSED_BY_ROUTER[name]
    check_envelope(multilingual.post(ROUTER, body), 400, reason, param)


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "too many questions"])
def test_render_refuses_what_an_answer_would(name: str, multilingual: ServerProcess):
    body, reason, param = REFUSED[name]
    check_envelope(multilingual.post(RENDER, body), 400, reason, param)


@pytest.mark.parametrize("name", UNFIT)
def test_a_body_that_does_not_fit_the_model(name: str, english: ServerProcess):
    body, reason, param = UNFIT[name]
    check_envelope(english.post(SYSTEMONE, body), 422, reason, param)


@pytest.mark.parametrize("name", UNFIT_FOR_ROUTER)
def test_a_router_body_that_does_not_fit_the_model(name: str, multilingual: ServerProcess):
    body, reason, param = UNFIT_FOR_ROUTER[name]
    check_envelope(multilingual.post(ROUTER, body), 422, reason, param)


def test_what_is_cut_by_default_is_said(english: ServerProcess):
    answer = english.post(SYSTEMONE, systemone(LONG))
    assert (answer.status, [warning["reason"] for warning in answer.json()["warnings"]]) == (200, ["state_truncated"])


# Lengths.


def test_a_body_of_1_mib_is_read_and_one_byte_more_is_not(english: ServerProcess):
    assert len(LARGEST) == MAX_BODY_BYTES
    assert english.post(SYSTEMONE, LARGEST).status == 200
    check_envelope(english.post(SYSTEMONE, TOO_LARGE), 413, "BODY_TOO_LARGE")


@pytest.mark.parametrize("length", [5 * 2**20, MAX_BODY_BYTES + 1, 2**63, 10**40], ids=str)
def test_413_before_the_body_is_read(length: int, english: ServerProcess):
    with RawClient(english) as client:
        client.send(f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n")
        answer = client.reply()
        check_envelope(answer, 413, "BODY_TOO_LARGE")
        assert answer.headers["connection"] == "close"


def test_413_arrives_at_a_client_that_sends_the_whole_body_first(english: ServerProcess):
    with RawClient(english) as client:
        client.send(post(SYSTEMONE, b"x" * 8 * 2**20))
        check_envelope(client.reply(), 413, "BODY_TOO_LARGE")
        assert client.closed()


def test_411_without_a_length(english: ServerProcess):
    with RawClient(english) as client:
        client.send(f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\n\r\n")
        check_envelope(client.reply(), 411, "LENGTH_REQUIRED")
        # Without a length there is no body: what follows is the next request.
        assert client.send(get("/health")).reply().status == 200


BAD_LENGTHS = ("-1", "+5", "0x10", "1e3", "5 5", "5,6", "", "abc", "\u0665", "5.0", "5;")


@pytest.mark.parametrize("length", BAD_LENGTHS)
def test_400_for_a_length_that_is_no_number(length: str, english: ServerProcess):
    with RawClient(english) as client:
        client.send(f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n", GOOD)
        check_envelope(client.reply(), 400, "INVALID_REQUEST")
        assert client.closed()


def test_equal_lengths_are_one_and_differing_ones_are_refused(english: ServerProcess):
    length = f"Content-Length: {len(GOOD)}"
    with RawClient(english) as client:
        assert client.send(post(SYSTEMONE, GOOD, length)).reply().status == 200
        check_envelope(client.send(post(SYSTEMONE, GOOD, "Content-Length: 5")).reply(), 400, "INVALID_REQUEST")
        assert client.closed()


def test_leading_zeros_and_spaces_around_a_length_change_nothing(english: ServerProcess):
    with RawClient(english) as client:
        client.send(f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\nContent-Length: \t 000{len(GOOD)} \r\n\r\n", GOOD)
        assert client.reply().status == 200


# Chunks.

CHUNKED = f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunks(data: bytes, size: int) -> bytes:
    parts = [data[i : i + size] for i in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_chunks_are_a_body(size: int, english: ServerProcess):
    with RawClient(english) as client:
        answer = client.send(CHUNKED, chunks(GOOD, size)).reply()
        assert answer.status == 200
        assert answer.json()["answers"] == english.post(SYSTEMONE, GOOD).json()["answers"]
        assert client.send(get("/health")).reply().status == 200


def test_chunks_of_1_mib_in_all_are_read_and_one_byte_more_is_not(english: ServerProcess):
    with RawClient(english) as client:
        assert client.send(CHUNKED, chunks(LARGEST, 2**18)).reply().status == 200
        client.send(CHUNKED, chunks(TOO_LARGE, 2**18))
        check_envelope(client.reply(), 413, "BODY_TOO_LARGE")
        assert client.closed()


def test_chunk_extensions_and_trailers_are_skipped(english: ServerProcess):
    body = b"%X;name=value\r\n%s\r\n00\r\nTrailer: x\r\n\r\n" % (len(GOOD), GOOD)
    with RawClient(english) as client:
        assert client.send(CHUNKED, body).reply().status == 200
        assert client.send(get("/health")).reply().status == 200


BAD_CHUNKS = {
    "no number": b"x\r\nabc\r\n0\r\n\r\n",
    "a sign": b"+3\r\nabc\r\n0\r\n\r\n",
    "a prefix": b"0x3\r\nabc\r\n0\r\n\r\n",
    "an underscore": b"1_0\r\nabc\r\n0\r\n\r\n",
    "an empty size": b"\r\nabc\r\n0\r\n\r\n",
    "too long a size": b"000000003\r\nabc\r\n0\r\n\r\n",
    "data longer than its size": b"2\r\nabc\r\n0\r\n\r\n",
    "data shorter than its size": b"4\r\nabc\r\n0\r\n\r\n",
    "a size line without CR": b"3\nabc\r\n0\r\n\r\n",
    "data without CR": b"3\r\nabc\n\n0\r\n\r\n",
    "a CR in the size line": b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "a NUL in the size line": b"3;\0\r\nabc\r\n0\r\n\r\n",
    "an endless size line": b"3;" + b"x" * 10_000 + b"\r\nabc\r\n0\r\n\r\n",
    "a last line without CR": b"0\n\r\n",
    "trailers without a name": b"0\r\nno colon\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
def test_bad_chunks_are_refused_and_end_the_connection(name: str, english: ServerProcess):
    with RawClient(english) as client:
        client.send(CHUNKED, BAD_CHUNKS[name], get("/health"))
        check_envelope(client.reply(), 400, "INVALID_REQUEST")
        assert client.closed()


def test_endless_trailers_are_refused(english: ServerProcess):
    with RawClient(english) as client:
        client.send(CHUNKED, b"0\r\n", b"A: %s\r\n" % (b"x" * 4000) * 2000)
        assert client.reply().status in (400, 413)
        assert client.closed()


def test_chunks_of_one_byte_with_long_extensions_are_refused(english: ServerProcess):
    with RawClient(english) as client:
        client.send(CHUNKED, (b"1;%s\r\nx\r\n" % (b"e" * 4000)) * 1500)
        check_envelope(client.reply(), 413, "BODY_TOO_LARGE")


@pytest.mark.parametrize(
    "coding", ["gzip", "gzip, chunked", "chunked, chunked", "identity", "xchunked", "", "chunked;q=1"]
)
def test_no_other_transfer_coding_is_spoken(coding: str, english: ServerProcess):
    with RawClient(english) as client:
        client.send(f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: {coding}\r\n\r\n", chunks(GOOD, 99))
        check_envelope(client.reply(), 400, "INVALID_REQUEST")
        assert client.closed()


@pytest.mark.parametrize("length", ["5", str(len(chunks(GOOD, 99)))])
def test_a_length_and_chunks_do_not_go_together(length: str, english: ServerProcess):
    with RawClient(english) as client:
        client.send(CHUNKED[:-2], f"Content-Length: {length}\r\n\r\n", chunks(GOOD, 99))
        check_envelope(client.reply(), 400, "INVALID_REQUEST")
        assert client.closed()


# Content types.


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "application/json; charset=utf-8",
        'Application/JSON;charset="UTF-8"',
        "application/json; charset=utf8",
        "application/problem+json",
    ],
)
def test_json_by_any_of_its_names(kind: str, english: ServerProcess):
    assert english.post(SYSTEMONE, GOOD, content_type=kind).status == 200


def test_a_body_without_a_content_type_is_taken_as_json(english: ServerProcess):
    with RawClient(english) as client:
        assert client.send(post(SYSTEMONE, GOOD)).reply().status == 200


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "json",
        "",
        "application/json; charset=utf-16",
        "application/json; charset=latin-1",
        "application/json; charset=no-such",
    ],
)
def test_415_for_what_is_no_utf8_json(kind: str, english: ServerProcess):
    check_envelope(english.post(SYSTEMONE, GOOD, content_type=kind), 415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip"])
def test_415_for_an_encoded_body(coding: str, english: ServerProcess):
    check_envelope(english.post(SYSTEMONE, GOOD, content_encoding=coding), 415, "UNSUPPORTED_MEDIA_TYPE")


# 500, 501.


def wait_for_log(server: ServerProcess, text: str, times: int) -> None:
    """The log comes by a pipe, after the answer it is about."""
    wait_for(lambda: server.err.count(text) == times, f"{text!r} {times} times in {server.err!r}")


def test_an_error_of_ours_is_told_to_the_log_only_and_ends_nothing(start: Callable[..., ServerProcess]):
    places = ("worker", "http")
    servers = [start("--debug", "--metrics", LAYACTL_DEBUG_THROW=where) for where in places]
    for where, server in zip(places, servers, strict=True):
        server.ready()
        answers = [server.post(SYSTEMONE, systemone()) for _ in range(2)]
        for answer in answers:
            check_envelope(answer, 500, "INTERNAL")
            assert answer.json()["error"]["message"] == "internal error while processing the request"
        wait_for_log(server, f"error: internal error: RuntimeError: thrown on the {where}", times=2)
        wait_for_log(server, "Traceback", times=2)  # --debug
        assert server.get("/health").status == 200
        counts = server.counters()
        assert (counts["requests"], counts["errors"], counts["answered"]) == (2, 2, 0)


def test_501_without_a_router_calibration_before_the_body_is_read(english: ServerProcess):
    with RawClient(english) as client:
        client.send(f"POST {ROUTER} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        check_envelope(client.reply(), 501, "ROUTER_NOT_CALIBRATED")


def test_501_whatever_the_body_is(english: ServerProcess):
    for body in (b"{", b"", json.dumps(router()).encode()):
        check_envelope(english.post(ROUTER, body), 501, "ROUTER_NOT_CALIBRATED")
