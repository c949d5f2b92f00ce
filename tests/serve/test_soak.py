"""Thousands of mixed requests from several clients, faults among them: every one is accounted for, and nothing stays.

What clients are told and what /metrics counts must add up: answered + errors + rejected + cancelled = requests whose
head arrived at a decision route, each told once.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .bodies import GOOD, LARGEST, ROUTER, SYSTEMONE, TOO_LARGE, router, systemone
from .raw_client import RawClient, get, post
from .server_process import Answer, ServerProcess, wait_for

KEY = "X-Api-Key: soak"
CLIENTS = 8


@dataclass
class Tally:
    """What one client saw. sent: requests that a decision route must count; left: those it did not wait for."""

    sent: int = 0
    left: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)


class Client:
    """One client of the soak: it keeps its connection for as long as the server does."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.tally = Tally()
        self.connection = RawClient(server)

    def run(self, count: int) -> None:
        kinds = [kind for kind, (_, weight) in KINDS.items() for _ in range(weight)]
        try:
            for _ in range(count):
                kind = self.random.choice(kinds)
                self.tally.kinds[kind] += 1
                KINDS[kind][0](self)
        finally:
            self.connection.socket.close()

    def expect(self, *statuses: int, counted: bool = True) -> Answer:
        """The next reply has one of these statuses, in its envelope, and is the last one where it says so."""
        answer = self.connection.reply()
        assert answer.status in statuses, f"{answer} instead of {statuses}"
        if answer.status >= 400:
            assert answer.json()["error"]["code"] == answer.status
        if counted:
            self.tally.sent += 1
            self.tally.statuses[answer.status] += 1
        if answer.headers.get("connection") == "close":
            assert self.connection.closed()
            self.connection.reconnect(self.server)
        return answer

    def leave(self, *, counted: bool) -> None:
        self.connection.reconnect(self.server)
        self.tally.sent += counted
        self.tally.left += counted


def good(client: Client) -> None:
    name = f"q{client.random.randrange(1000)}"
    state = "please refund me " * client.random.randrange(1, 30)
    body = systemone(state, **{name: {"type": "noul", "instructions": "Money back?"}})
    client.connection.send(post(SYSTEMONE, json.dumps(body).encode(), KEY))
    answer = client.expect(200, 429)
    if answer.status == 200:  # its own answer, and nobody else's
        assert list(answer.json()["answers"]) == [name]


def scored(client: Client) -> None:
    client.connection.send(post(ROUTER, json.dumps(router()).encode(), KEY))
    client.expect(200, 429)


def chunked(client: Client) -> None:
    head = f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\n{KEY}\r\nTransfer-Encoding: chunked\r\n\r\n"
    client.connection.send(head, b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD))
    client.expect(200, 429)


def large(client: Client) -> None:
    client.connection.send(post(SYSTEMONE, LARGEST, KEY))
    client.expect(200, 429)


def pipelined(client: Client) -> None:
    names = [f"p{n}" for n in range(4)]
    bodies = [systemone(**{name: {"type": "noul", "instructions": "?"}}) for name in names]
    client.connection.send(*(post(SYSTEMONE, json.dumps(body).encode(), KEY) for body in bodies), get("/health"))
    for name in names:
        answer = client.expect(200, 429)
        assert answer.status == 429 or list(answer.json()["answers"]) == [name]
    client.expect(200, counted=False)


def slow(client: Client) -> None:
    data = post(SYSTEMONE, GOOD, KEY)
    for start in range(0, len(data), 50):
        client.connection.send(data[start : start + 50])
        time.sleep(0.002)
    client.expect(200, 429)


def malformed(client: Client) -> None:
    bodies = [b"", b"{", b"[]", b'{"state": NaN}', b'{"state": "\xff"}', b'{"state": "\\ud800"}', b'{"questions": {}}']
    client.connection.send(post(SYSTEMONE, client.random.choice(bodies), KEY))
    client.expect(400, 429)


def wrong_question(client: Client) -> None:
    questions = [{}, {"type": "noul"}, {"type": "choice", "instructions": "?", "criteria": ["a", "a"]}]
    client.connection.send(post(SYSTEMONE, json.dumps(systemone(q=client.random.choice(questions))).encode(), KEY))
    client.expect(400, 429)


def too_large(client: Client) -> None:
    client.connection.send(post(SYSTEMONE, TOO_LARGE, KEY))
    client.expect(413, 429)


def wrong_type(client: Client) -> None:
    client.connection.send(post(SYSTEMONE, GOOD, KEY, "Content-Type: text/plain"))
    client.expect(415, 429)


def no_length(client: Client) -> None:
    client.connection.send(f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\n{KEY}\r\n\r\n")
    client.expect(411, 429)


def wrong_key(client: Client) -> None:
    client.connection.send(post(SYSTEMONE, GOOD, "Authorization: Bearer other"))
    client.expect(401)


def wrong_method(client: Client) -> None:
    client.connection.send(get(SYSTEMONE))
    client.expect(405)


def unknown_route(client: Client) -> None:
    client.connection.send(post("/v1/chat/completions", GOOD, KEY))
    client.expect(404, counted=False)


def health(client: Client) -> None:
    client.connection.send(get("/health"))
    client.expect(200, counted=False)


def no_request(client: Client) -> None:
    shapes = ("\x16\x03\x01\r\n", "GET /health\r\n", f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\nX : y\r\n\r\n")
    client.connection.send(client.random.choice(shapes))
    client.expect(400, counted=False)


def silent_in_the_body(client: Client) -> None:
    data = post(SYSTEMONE, GOOD, KEY)
    client.connection.send(data[: len(data) - client.random.randrange(1, len(GOOD))])
    # A full queue does not wait for the body either; what it is told then, it would go on to send.
    client.expect(408, 429)
    client.connection.reconnect(client.server)


def leaves_before_its_head_ends(client: Client) -> None:
    data = post(SYSTEMONE, GOOD, KEY)
    client.connection.send(data[: client.random.randrange(data.index(b"\r\n\r\n") + 3)])
    client.leave(counted=False)


def leaves_in_its_body(client: Client) -> None:
    data = post(SYSTEMONE, GOOD, KEY)
    client.connection.send(data[: len(data) - client.random.randrange(1, len(GOOD))])
    client.leave(counted=True)


def leaves_while_it_waits(client: Client) -> None:
    client.connection.send(post(SYSTEMONE, GOOD, KEY))
    time.sleep(client.random.choice((0, 0.005)))
    client.leave(counted=True)


# kind -> (what it does, how often)
KINDS: dict[str, tuple[Callable[[Client], None], int]] = {
    "good": (good, 20),
    "scored": (scored, 4),
    "chunked": (chunked, 3),
    "large": (large, 1),
    "pipelined": (pipelined, 3),
    "slow": (slow, 3),
    "malformed": (malformed, 4),
    "wrong question": (wrong_question, 3),
    "too large": (too_large, 2),
    "wrong type": (wrong_type, 2),
    "no length": (no_length, 2),
    "wrong key": (wrong_key, 3),
    "wrong method": (wrong_method, 2),
    "unknown route": (unknown_route, 3),
    "health": (health, 3),
    "no request": (no_request, 2),
    "silent in the body": (silent_in_the_body, 1),
    "leaves before its head ends": (leaves_before_its_head_ends, 3),
    "leaves in its body": (leaves_in_its_body, 3),
    "leaves while it waits": (leaves_while_it_waits, 5),
}


@pytest.fixture
def soaked(gguf_for: Callable[..., Path], calibrated_spec: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(
        *(
            "-m",
            gguf_for("tiny-multilingual"),
            "--spec",
            calibrated_spec,
            "--api-key",
            "soak",
            "--metrics",
            "--timeout",
            "1",
        ),
        *("--queue", "4", "--debug"),
        # So that requests do wait.
        variables={"LAYACTL_DEBUG_JOB_DELAY_MS": "3"},
    ).ready()
    server.key = "soak"
    yield server
    assert server.stop() == 0


def run_clients(server: ServerProcess, count: int, seed: int) -> Tally:
    """count: requests of all clients together. Fails with what the first of them to fail met."""
    clients = [Client(server, seed + n) for n in range(CLIENTS)]
    failures: list[BaseException] = []

    def run(client: Client) -> None:
        try:
            client.run(count // CLIENTS)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    total = Tally()
    for client in clients:
        total.sent += client.tally.sent
        total.left += client.tally.left
        total.statuses += client.tally.statuses
        total.kinds += client.tally.kinds
    return total


# mib_more: what the process may have more at the end. Its allocator keeps some of what bodies took, for a thousand
# requests or so; from then on nothing is added.
@pytest.mark.parametrize(
    ("warm_up", "count", "mib_more"), [(600, 600, 64), pytest.param(2_000, 10_000, 16, marks=pytest.mark.full)]
)
def test_every_request_is_accounted_for_and_nothing_stays(
    warm_up: int, count: int, mib_more: int, soaked: ServerProcess
):
    warm = run_clients(soaked, warm_up, seed=1)
    wait_for(lambda: soaked.counters()["requests"] == warm.sent, "the first requests are counted")
    before = soaked.counters()
    threads, memory = soaked.status("Threads"), soaked.status("VmRSS")

    tally = run_clients(soaked, count, seed=1000)

    wait_for(lambda: soaked.counters()["requests"] >= before["requests"] + tally.sent, "all requests are counted")
    wait_for(lambda: soaked.status("Threads") <= threads, "the threads of its connections have ended")
    after = soaked.counters()
    rise = {name: int(after[name] - before[name]) for name in after}
    assert set(tally.kinds) == set(KINDS)
    assert rise["requests"] == tally.sent
    assert rise["answered"] + rise["errors"] + rise["rejected"] + rise["cancelled"] == tally.sent
    # What clients were told, and what became of those that did not wait for it.
    told = tally.statuses
    refused = sum(number for status, number in told.items() if status not in (200, 429))
    assert rise["errors"] == refused
    unheard = (rise["answered"] - told[200], rise["rejected"] - told[429], rise["cancelled"])
    assert min(unheard) >= 0
    assert sum(unheard) == tally.left
    assert min(rise["answered"], rise["errors"], rise["rejected"], rise["cancelled"]) > 0
    assert (after["running"], after["queue_waiting"]) == (0, 0)
    assert 500 not in told
    assert soaked.error_lines == []
    grown = (soaked.status("VmRSS") - memory) / 1024
    assert grown < mib_more, f"{grown:.0f} MiB more than before"
    assert soaked.post(SYSTEMONE, systemone()).status == 200
