"""One connection: requests that follow each other, bodies that nobody reads, clients that are slow or silent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .bodies import GOOD, ROUTER, SYSTEMONE, systemone
from .raw_client import RawClient, get, post
from .server_process import Answer, ServerProcess, wait_for


def named(name: str) -> bytes:
    """A request whose answer can be told from others by its one key."""
    return post(SYSTEMONE, json.dumps(systemone(**{name: {"type": "noul", "instructions": "?"}})).encode())


def name_of(answer: Answer) -> str:
    return next(iter(answer.json()["answers"]))


# Requests that follow each other.


def test_a_connection_is_kept(english: ServerProcess):
    with RawClient(english) as client:
        for number in range(20):
            answer = client.send(named(f"q{number}")).reply()
            assert (answer.status, name_of(answer)) == (200, f"q{number}")
            assert "connection" not in answer.headers


def test_pipelined_requests_are_answered_in_their_order(english: ServerProcess):
    requests = [named("a"), get("/health"), get("/nowhere"), named("b"), post(SYSTEMONE, b"{"), named("c")]
    with RawClient(english) as client:
        client.send(*requests)
        answers = [client.reply() for _ in requests]
    assert [answer.status for answer in answers] == [200, 200, 404, 200, 400, 200]
    assert [name_of(answers[i]) for i in (0, 3, 5)] == ["a", "b", "c"]


def test_requests_cut_anywhere_are_the_same_requests(english: ServerProcess):
    data = named("a") + get("/health") + named("b")
    with RawClient(english) as client:
        for i in range(0, len(data), 7):
            client.send(data[i : i + 7])
        assert [client.reply().status for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize("value", ["close", "Close", "close, TE", "TE, close"])
def test_a_client_may_ask_for_the_end(value: str, english: ServerProcess):
    with RawClient(english) as client:
        answer = client.send(get("/health", f"Connection: {value}")).reply()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert client.closed()


def test_http_1_0_closes_unless_asked_to_keep(english: ServerProcess):
    with RawClient(english) as client:
        answer = client.send("GET /health HTTP/1.0\r\n\r\n").reply()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert client.closed()
    kept = f"POST {SYSTEMONE} HTTP/1.0\r\nConnection: Keep-Alive\r\nContent-Length: {len(GOOD)}\r\n\r\n".encode()
    with RawClient(english) as client:
        for _ in range(3):
            answer = client.send(kept, GOOD).reply()
            assert (answer.status, answer.headers["connection"]) == (200, "keep-alive")


def test_an_empty_line_before_a_request_is_skipped(english: ServerProcess):
    with RawClient(english) as client:
        assert client.send("\r\n", get("/health")).reply().status == 200
        assert client.send(named("a"), "\r\n", named("b")).reply().status == 200
        assert client.reply().status == 200


def test_lines_may_end_without_a_carriage_return(english: ServerProcess):
    with RawClient(english) as client:
        assert client.send("GET /health HTTP/1.1\nHost: x\n\n").reply().status == 200


SMUGGLED = get("/smuggled")
WITH_A_BODY = {
    "404": (post("/nowhere", SMUGGLED), 404),
    "405": (post("/health", SMUGGLED), 405),
    "415": (post(SYSTEMONE, SMUGGLED, "Content-Type: text/plain"), 415),
    "501": (post(ROUTER, SMUGGLED), 501),
    "400": (post(SYSTEMONE, SMUGGLED), 400),
    "a get with a body": (get("/health", f"Content-Length: {len(SMUGGLED)}") + SMUGGLED, 200),
    "options with a body": (
        f"OPTIONS /health HTTP/1.1\r\nHost: x\r\nContent-Length: {len(SMUGGLED)}\r\n\r\n".encode() + SMUGGLED,
        204,
    ),
    "chunks at an unknown path": (
        b"POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        404,
    ),
    "413": (post(SYSTEMONE, SMUGGLED * (2**21 // len(SMUGGLED))), 413),
    "404 with a large body": (post("/nowhere", SMUGGLED * (2**21 // len(SMUGGLED))), 404),
    "411": (f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), 411),
}


def check_next_request(client: RawClient, request: bytes, status: int) -> None:
    """After the reply, the connection is closed, or what is answered is the next request and no part of a body."""
    client.send(request)
    answer = client.reply()
    assert answer.status == status
    if answer.headers.get("connection") == "close":
        assert client.closed()
    else:
        assert client.send(get("/health")).reply().status == 200


@pytest.mark.parametrize("name", [name for name in WITH_A_BODY if not name.startswith("chunks")])
def test_a_body_that_nobody_reads_never_becomes_a_request(name: str, english: ServerProcess):
    request, status = WITH_A_BODY[name]
    with RawClient(english) as client:
        check_next_request(client, request, status)


def test_chunks_that_nobody_reads_end_the_connection(english: ServerProcess):
    request, status = WITH_A_BODY["chunks at an unknown path"]
    with RawClient(english) as client:
        answer = client.send(request).reply()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert client.closed()


@pytest.mark.parametrize("name", ["404", "405", "415", "501", "400"])
def test_a_small_refused_body_costs_no_connection(name: str, english: ServerProcess):
    with RawClient(english) as client:
        assert "connection" not in client.send(WITH_A_BODY[name][0]).reply().headers


# Expect: 100-continue.

EXPECTS = f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(GOOD)}\r\n"


def test_a_client_that_waits_to_be_asked_is_asked(english: ServerProcess):
    with RawClient(english) as client:
        for _ in range(2):
            assert client.send(EXPECTS, "\r\n").reply().status == 100
            assert client.send(GOOD).reply().status == 200


def test_a_client_that_does_not_wait_is_answered_all_the_same(english: ServerProcess):
    with RawClient(english) as client:
        client.send(EXPECTS, "\r\n", GOOD)
        assert [client.reply().status for _ in range(2)] == [100, 200]


@pytest.mark.parametrize("line", ["Content-Type: text/plain", f"Content-Length: {2**21}"])
def test_a_client_that_waits_is_refused_without_being_asked(line: str, english: ServerProcess):
    head = EXPECTS if "Type" in line else EXPECTS.replace(f"Content-Length: {len(GOOD)}\r\n", "")
    with RawClient(english) as client:
        answer = client.send(head, line, "\r\n\r\n").reply()
        assert answer.status in (413, 415)
        # Whether it sends the body or not can no longer be known.
        assert answer.headers["connection"] == "close"
        assert client.closed()


def test_http_1_0_is_not_asked(english: ServerProcess):
    with RawClient(english) as client:
        assert client.send(EXPECTS.replace("HTTP/1.1", "HTTP/1.0"), "\r\n", GOOD).reply().status == 200


# Slow and silent clients.

START = f"POST {SYSTEMONE} HTTP/1.1\r\n"
WITH_LENGTH = f"{START}Host: x\r\nContent-Length: {len(GOOD)}\r\n\r\n"


@pytest.fixture(scope="module")
def impatient(gguf_for: Callable[..., Path]) -> Iterator[ServerProcess]:
    server = ServerProcess("-m", gguf_for(), "--timeout", "1", "--metrics").ready()
    yield server
    assert server.stop() == 0


def trickle(client: RawClient, data: bytes) -> Answer:
    """The reply to data that is sent a byte at a time, until there is one."""
    client.socket.settimeout(0.3)
    for i in range(len(data)):
        client.send(data[i : i + 1])
        try:
            client.read_some()
            break
        except TimeoutError:
            continue
    client.socket.settimeout(60)
    return client.reply()


@pytest.mark.parametrize("at_once", [30, len(post(SYSTEMONE, GOOD)) - 40], ids=["head", "body"])
def test_a_byte_at_a_time_is_too_slow(at_once: int, impatient: ServerProcess):
    data = post(SYSTEMONE, GOOD)
    with RawClient(impatient) as client:
        answer = trickle(client.send(data[:at_once]), data[at_once:])
        assert (answer.status, answer.reason) == (408, "REQUEST_TIMEOUT")
        assert answer.headers["connection"] == "close"
        assert client.closed()


def test_chunks_a_byte_at_a_time_are_too_slow(impatient: ServerProcess):
    with RawClient(impatient) as client:
        client.send(f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert trickle(client, b"1\r\nx\r\n" * 20).status == 408


def test_a_client_that_falls_silent_is_told(impatient: ServerProcess):
    beginnings = ("P", START, WITH_LENGTH + "{")
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(impatient)).send(sent) for sent in beginnings]
        for client in clients:
            assert client.reply().status == 408
            assert client.closed()


def test_an_idle_connection_is_closed_without_a_word(impatient: ServerProcess):
    with RawClient(impatient) as fresh, RawClient(impatient) as used:
        assert used.send(get("/health")).reply().status == 200
        assert fresh.closed()
        assert used.closed()


def test_a_slow_request_is_an_error_and_a_silent_connection_is_no_request(impatient: ServerProcess):
    before = impatient.counters()
    with RawClient(impatient) as slow, RawClient(impatient) as silent:
        assert slow.send(WITH_LENGTH, "{").reply().status == 408
        assert silent.closed()
    after = impatient.counters()
    assert {name: after[name] - before[name] for name in ("requests", "errors")} == {"requests": 1, "errors": 1}


def test_a_client_that_takes_no_answers_is_given_up(impatient: ServerProcess):
    before = impatient.status("Threads")
    with RawClient(impatient) as client:
        client.socket.settimeout(20)
        request = get("/openapi.json") * 100
        with pytest.raises(OSError):
            for _ in range(10_000):
                client.send(request)
    wait_for(lambda: impatient.status("Threads") <= before, "its thread has ended")


def test_a_client_that_leaves_at_any_point_leaves_nothing_behind(impatient: ServerProcess):
    before = impatient.status("Threads")
    data = post(SYSTEMONE, GOOD)
    for end in range(0, len(data) + 1, 5):
        RawClient(impatient).send(data[:end]).socket.close()
    wait_for(lambda: impatient.status("Threads") <= before, "their threads have ended")
    assert impatient.post(SYSTEMONE, systemone()).status == 200
    assert impatient.error_lines == []
