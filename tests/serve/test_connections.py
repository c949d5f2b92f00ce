"""One connection and many: requests that follow each other, clients that are slow, odd, silent or hostile."""

from __future__ import annotations

import json
import select
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .bodies import GOOD, LARGEST, ROUTER, SYSTEMONE, systemone
from .raw_client import RawClient, get, post
from .server_process import Answer, ServerProcess, wait_for

MIB_IN_KB = 1024


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


# What is no request, or could be read as two.

HOST = "Host: x\r\n"
LENGTH = f"Content-Length: {len(GOOD)}\r\n"
START = f"POST {SYSTEMONE} HTTP/1.1\r\n"
SHAPES: dict[str, str | bytes] = {
    "a space before a colon": START + HOST + f"Content-Length : {len(GOOD)}\r\n",
    "a tab before a colon": START + HOST + f"Content-Length\t: {len(GOOD)}\r\n",
    "a folded header": START + HOST + "X: a\r\n b\r\n" + LENGTH,
    "a folded length": START + HOST + f"Content-Length:\r\n {len(GOOD)}\r\n",
    "a first header that is folded": START + " X: a\r\n" + HOST + LENGTH,
    "a header without a colon": START + HOST + "garbage\r\n" + LENGTH,
    "a header without a name": START + HOST + ": x\r\n" + LENGTH,
    "a name in brackets": START + HOST + "(X): y\r\n" + LENGTH,
    "a name that is not ASCII": (START + HOST + "X\u00e9: y\r\n" + LENGTH).encode(),
    "a NUL in a name": START + HOST + "X\0: y\r\n" + LENGTH,
    "a NUL in a value": START + HOST + "X: a\0b\r\n" + LENGTH,
    "a lone CR in a value": START + HOST + "X: a\rTransfer-Encoding: chunked\r\n" + LENGTH,
    "a lone CR as a line end": START + "Host: x\r" + LENGTH,
    "a lone CR before the end": START + HOST + LENGTH.replace("\r\n", "\r\r\n"),
    "a vertical tab before a coding": START + HOST + "Transfer-Encoding: \x0bchunked\r\n",
    "a length after a vertical tab": START + HOST + f"Content-Length: \x0b{len(GOOD)}\r\n",
    "two codings": START + HOST + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    "a coding and a length": START + HOST + "Transfer-Encoding: chunked\r\n" + LENGTH,
    "a coding of HTTP/1.0": START.replace("1.1", "1.0") + HOST + "Transfer-Encoding: chunked\r\n",
    "two lengths": START + HOST + LENGTH + "Content-Length: 0\r\n",
    "no host": START + LENGTH,
    "two hosts": START + HOST + "Host: y\r\n" + LENGTH,
    "two equal hosts": START + HOST + HOST + LENGTH,
    "HTTP/0.9": "GET /health\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/3.0": "GET /health HTTP/3.0\r\n" + HOST,
    "HTTP/1.10": "GET /health HTTP/1.10\r\n" + HOST,
    "http in lower case": "GET /health http/1.1\r\n" + HOST,
    "no version": "GET /health HTTP\r\n" + HOST,
    "two spaces": "GET  /health HTTP/1.1\r\n" + HOST,
    "a space in a target": "GET /health x HTTP/1.1\r\n" + HOST,
    "a tab for a space": "GET\t/health HTTP/1.1\r\n" + HOST,
    "a space before the method": " GET /health HTTP/1.1\r\n" + HOST,
    "a space after the version": "GET /health HTTP/1.1 \r\n" + HOST,
    "a NUL in a target": "GET /health\0 HTTP/1.1\r\n" + HOST,
    "a lone CR in a target": "GET /hea\rlth HTTP/1.1\r\n" + HOST,
    "a method that is no word": "G@T /health HTTP/1.1\r\n" + HOST,
    "a hello of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\n",
    "two empty lines": "\r\n\r\nGET /health HTTP/1.1\r\n" + HOST,
    "a reply": "HTTP/1.1 200 OK\r\n" + HOST,
    "a URL that is none": "GET http://[::1 HTTP/1.1\r\n" + HOST,
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_two_readers_could_read_in_two_ways_is_refused(name: str, english: ServerProcess):
    with RawClient(english) as client:
        answer = client.send(SHAPES[name], "\r\n", GOOD, get("/smuggled")).reply()
        assert (answer.status, answer.reason) == (400, "INVALID_REQUEST")
        if name != "a URL that is none":
            assert answer.headers["connection"] == "close"
            # One reply and no other, whatever followed.
            assert client.closed()


@pytest.mark.parametrize(
    ("flood", "status"),
    [
        pytest.param(b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"x" * 10_000), 414, id="long request line"),
        pytest.param(b"GET /" + b"x" * 1_000_000, 414, id="endless request line"),
        pytest.param(get("/health", *(f"X-{n}: y" for n in range(200))), 431, id="many headers"),
        pytest.param(get("/health", "X: " + "y" * 70_000), 431, id="huge header"),
        pytest.param(get("/health", *("X: " + "y" * 6_000 for _ in range(20))), 431, id="large headers"),
        pytest.param(b"GET /health HTTP/1.1\r\nX: " + b"y" * 5_000_000, 431, id="endless header"),
        pytest.param(b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 100_000, 431, id="endless headers"),
    ],
)
def test_a_head_has_its_limits(flood: bytes, status: int, english: ServerProcess):
    before = english.status("VmRSS")
    with RawClient(english) as client:
        answer = client.send(flood).reply()
        assert (answer.status, answer.reason) == (status, "INVALID_REQUEST")
        assert client.closed()
    assert english.status("VmRSS") - before < 16 * MIB_IN_KB


def test_a_head_just_below_its_limits_is_read(english: ServerProcess):
    with RawClient(english) as client:
        lines = [f"X-{n}: {'y' * 550}" for n in range(99)]
        assert client.send(get("/health?" + "q" * 8_000, *lines)).reply().status == 200


# Slow and silent clients.


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


@pytest.mark.parametrize("at_once", [0, 30, len(post(SYSTEMONE, GOOD)) - 40], ids=["line", "head", "body"])
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


@pytest.mark.parametrize("sent", ["P", START, START + HOST + LENGTH + "\r\n{"], ids=["line", "head", "body"])
def test_a_client_that_falls_silent_is_told(sent: str, impatient: ServerProcess):
    with RawClient(impatient) as client:
        assert client.send(sent).reply().status == 408
        assert client.closed()


def test_an_idle_connection_is_closed_without_a_word(impatient: ServerProcess):
    with RawClient(impatient) as fresh, RawClient(impatient) as used:
        assert used.send(get("/health")).reply().status == 200
        assert fresh.closed()
        assert used.closed()


def test_a_slow_request_is_an_error_and_a_silent_connection_is_no_request(impatient: ServerProcess):
    before = impatient.counters()
    with RawClient(impatient) as slow, RawClient(impatient) as silent:
        assert slow.send(START, HOST, LENGTH, "\r\n{").reply().status == 408
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


# Many clients.


@pytest.fixture
def crowd() -> Iterator[Callable[..., list[RawClient]]]:
    """crowd(server, count): connections that nobody speaks on, with the descriptors that they take."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if limits[1] == resource.RLIM_INFINITY else min(4096, limits[1])
    if limits[0] < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
    with ExitStack() as stack:
        yield lambda server, count: [stack.enter_context(RawClient(server)) for _ in range(count)]


def test_500_idle_connections_keep_nobody_waiting(english: ServerProcess, crowd: Callable[..., list[RawClient]]):
    threads, memory = english.status("Threads"), english.status("VmRSS")
    idle = crowd(english, 500)
    for _ in range(20):
        assert english.post(SYSTEMONE, systemone()).status == 200
    # The last to come is served as the first one is.
    for client in (idle[0], idle[499]):
        assert client.send(get("/health")).reply().status == 200
    assert english.status("Threads") - threads >= 450
    assert english.status("VmRSS") - memory < 100 * MIB_IN_KB
    for client in idle:
        client.socket.close()
    wait_for(lambda: english.status("Threads") <= threads, "their threads have ended")


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit, which lowers the limit, is not installed")
def test_more_connections_than_fit_are_refused_and_make_room_again(
    gguf_for: Callable[..., Path], crowd: Callable[..., list[RawClient]]
):
    server = ServerProcess("-m", gguf_for(), descriptors=128)
    try:
        server.ready()
        idle = crowd(server, 64)
        for client in idle[:3]:  # they are in, and stay
            assert client.send(get("/health")).reply().status == 200
        with RawClient(server) as client:
            answer = client.reply()
        assert (answer.status, answer.body, answer.headers["retry-after"]) == (503, b"", "1")
        assert idle[5].send(get("/health")).reply().status == 200
        for client in idle[10:]:
            client.socket.close()
        wait_for(lambda: server.request("OPTIONS", "*").status == 204, "there is room again")
        assert server.error_lines == []
    finally:
        assert server.stop() == 0


def answered(clients: list[RawClient]) -> list[RawClient]:
    """Those that have been told something by now."""
    readable = select.select([client.socket for client in clients], [], [], 0)[0]
    return [client for client in clients if client.socket in readable]


def test_large_bodies_under_way_are_held_in_bounds(english: ServerProcess, crowd: Callable[..., list[RawClient]]):
    memory = english.reset_peak()
    request = post(SYSTEMONE, LARGEST)
    clients = crowd(english, 90)
    for client in clients:
        client.send(request[:-1])
    # 64 wait for their last byte; the others have their answer.
    wait_for(lambda: len(answered(clients)) >= 26, "the clients without room are refused")
    refused = answered(clients)
    assert len(refused) == 26
    assert {client.reply().status for client in refused} == {429}
    grown = (english.status("VmHWM") - memory) / MIB_IN_KB
    assert grown < 100, f"{grown:.0f} MiB more at the peak"
    # Who sends little is answered meanwhile.
    assert english.post(SYSTEMONE, systemone()).status == 200
    assert english.post(SYSTEMONE, LARGEST).status == 429
    held = [client for client in clients if client not in refused]
    assert held[0].send(request[-1:]).reply().status == 200
    for client in held[1:]:
        client.socket.close()
    wait_for(lambda: english.post(SYSTEMONE, LARGEST).status == 200, "there is room again")


def storm(server: ServerProcess, clients: int, rounds: int, body: bytes) -> Counter[int]:
    """Statuses of all requests of clients that start at the same moment, each on a connection of its own."""
    statuses: Counter[int] = Counter()
    failures: list[BaseException] = []
    together = threading.Barrier(clients)
    lock = threading.Lock()

    def client() -> None:
        try:
            with RawClient(server) as connection:
                together.wait()
                for _ in range(rounds):
                    answer = connection.send(post(SYSTEMONE, body)).reply()
                    with lock:
                        statuses[answer.status] += 1
                    if answer.headers.get("connection") == "close":
                        assert connection.closed()
                        connection.reconnect(server)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    return statuses


# Of the process, beyond what it had before: 64 threads, and what is read, parsed and queued at one time.
STORM_BYTES = {"small bodies": (GOOD, 64), "bodies of 1 MiB": (LARGEST, 192)}


@pytest.mark.parametrize("name", STORM_BYTES)
def test_a_storm_is_answered_or_refused_one_by_one(name: str, english: ServerProcess):
    body, bound = STORM_BYTES[name]
    before, memory = english.counters(), english.reset_peak()
    rounds = 5 if body is GOOD else 2
    statuses = storm(english, 64, rounds, body)
    assert set(statuses) <= {200, 429}
    assert sum(statuses.values()) == 64 * rounds
    assert statuses[200] > 0
    after = english.counters()
    rise = {name: after[name] - before[name] for name in ("requests", "answered", "rejected", "errors", "cancelled")}
    assert rise == {
        "requests": 64 * rounds,
        "answered": statuses[200],
        "rejected": statuses[429],
        "errors": 0,
        "cancelled": 0,
    }
    assert (after["running"], after["queue_waiting"]) == (0, 0)
    grown = (english.status("VmHWM") - memory) / MIB_IN_KB
    assert grown < bound, f"{grown:.0f} MiB more at the peak"
    assert english.get("/health").status == 200
