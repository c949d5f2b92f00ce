"""One worker, one queue: arrival order, the places in it, and what becomes of requests that nobody waits for.

Most servers here hold their first job for ten minutes, so that nothing depends on how fast this machine is.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .bodies import GOOD, SYSTEMONE, systemone
from .raw_client import RawClient, post
from .server_process import ServerProcess, wait_for

HELD = {"LAYACTL_DEBUG_JOB_DELAY_MS": "600000"}
REQUEST = post(SYSTEMONE, GOOD)
HEAD_ONLY = f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(GOOD)}\r\n\r\n"


class Line:
    """Clients whose requests a server holds, in the order in which it took them."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.stack = ExitStack()
        self.start = server.counters()

    def rise(self, name: str) -> float:
        return self.server.counters()[name] - self.start[name]

    def wait(self, *, running: int, waiting: int) -> None:
        def as_wanted() -> bool:
            counts = self.server.counters()
            return (counts["running"], counts["queue_waiting"]) == (running, waiting)

        wait_for(as_wanted, f"{running} running, {waiting} waiting")

    def join(self, count: int = 1) -> list[RawClient]:
        """Further clients, each sent on when the one before has its place."""
        clients = []
        for _ in range(count):
            counts = self.server.counters()
            clients.append(self.stack.enter_context(RawClient(self.server)))
            clients[-1].send(REQUEST)
            self.wait(running=1, waiting=int(counts["queue_waiting"] + counts["running"]))
        return clients

    def refused(self) -> None:
        """The next client gets 429, before its body is read."""
        with RawClient(self.server) as client:
            answer = client.send(HEAD_ONLY).reply()
        assert (answer.status, answer.reason) == (429, "OVERLOADED")
        assert answer.json()["error"]["type"] == "overloaded_error"
        assert answer.headers["retry-after"] == "1"


@pytest.fixture(scope="module")
def held(gguf_for: Callable[..., Path]) -> Iterator[ServerProcess]:
    """A queue of two before a worker that is busy for ever."""
    server = ServerProcess("-m", gguf_for(), "--queue", "2", "--metrics", "--debug", variables=HELD).ready()
    yield server
    assert server.stop() == 0


@pytest.fixture
def line(held: ServerProcess) -> Iterator[Line]:
    line = Line(held)
    yield line
    line.stack.close()
    line.wait(running=0, waiting=0)


def test_one_runs_two_wait_and_the_next_is_refused(line: Line):
    line.join(3)
    line.refused()
    line.refused()
    assert line.rise("rejected") == 2
    # What is no decision goes on being answered.
    assert line.server.get("/health").status == 200
    assert line.server.get("/props").json()["decision"]["queue_waiting"] == 2


def test_a_full_queue_refuses_every_route_that_computes_and_only_those(line: Line):
    line.join(3)
    assert line.server.post(SYSTEMONE, b"{").status == 429
    assert line.server.post("/v1/decision/render", systemone()).status == 200
    assert line.server.request("OPTIONS", SYSTEMONE).status == 204
    assert line.server.request("GET", SYSTEMONE).status == 405


def test_a_waiting_request_whose_client_leaves_gives_its_place(line: Line):
    _, second, _ = line.join(3)
    second.socket.close()
    line.wait(running=1, waiting=1)
    assert line.rise("cancelled") == 1
    line.join()
    line.refused()
    assert line.rise("errors") == 0


def test_a_running_request_whose_client_leaves_gives_its_place(line: Line):
    first, *_ = line.join(3)
    first.socket.close()
    # The next one runs, and one place is free.
    line.wait(running=1, waiting=1)
    assert line.rise("cancelled") == 1
    line.join()
    line.refused()


def test_a_client_that_closes_its_sending_side_only_has_left_too(line: Line):
    (client,) = line.join()
    client.half_close()
    line.wait(running=0, waiting=0)
    assert line.rise("cancelled") == 1
    # Nothing is said to it.
    assert client.closed()


def test_a_client_with_the_next_request_under_way_has_not_left(line: Line):
    (client,) = line.join()
    client.send(REQUEST[:20])
    # Long enough for several looks at the client, each of which would find the data.
    for _ in range(5):
        line.wait(running=1, waiting=0)
        line.join()[0].socket.close()
        line.wait(running=1, waiting=0)
    assert line.rise("cancelled") == 5


def test_a_reset_connection_is_a_client_that_left(line: Line):
    (client,) = line.join()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.socket.close()
    line.wait(running=0, waiting=0)
    assert line.rise("cancelled") == 1


def test_all_leave_at_once(line: Line):
    for client in line.join(3):
        client.socket.close()
    line.wait(running=0, waiting=0)
    assert line.rise("cancelled") == 3
    assert line.rise("requests") == 3


def test_a_client_that_leaves_in_the_middle_of_its_body_is_cancelled(line: Line):
    with RawClient(line.server) as client:
        client.send(HEAD_ONLY, GOOD[:10])
    wait_for(lambda: line.rise("cancelled") == 1, "it is counted")
    assert line.rise("requests") == 1


def test_without_a_queue_the_place_of_a_cancelled_request_is_the_next_ones(start: Callable[..., ServerProcess]):
    line = Line(start("--queue", "0", "--metrics", "--debug", **HELD).ready())
    with line.stack:
        for _ in range(3):
            (client,) = line.join()
            line.refused()
            client.socket.close()
            line.wait(running=0, waiting=0)
    assert line.rise("cancelled") == line.rise("rejected") == 3


def test_requests_are_answered_in_the_order_they_came(start: Callable[..., ServerProcess]):
    server = start("--queue", "3", "--metrics", "--debug", LAYACTL_DEBUG_JOB_DELAY_MS="300").ready()
    order: list[int] = []
    queued: list[float] = []

    def ask(number: int) -> None:
        answer = server.post(SYSTEMONE, systemone(f"request {number}"))
        assert answer.status == 200
        queued.append(answer.json()["timings"]["queue_ms"])
        order.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for number, thread in enumerate(threads):
        thread.start()

        def taken(before: int = number) -> bool:
            counts = server.counters()
            return counts["running"] + counts["queue_waiting"] + counts["answered"] == before + 1

        wait_for(taken, f"request {number} has its place")
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]
    # Each waited for those before it, and says so.
    assert queued == sorted(queued)
    assert queued[3] > queued[0] + 600
    assert server.stop() == 0


def test_a_stop_answers_all_that_wait_or_run_once_and_ends_the_process(start: Callable[..., ServerProcess]):
    line = Line(start("--queue", "2", "--metrics", "--debug", **HELD).ready())
    with line.stack:
        clients = line.join(3)
        idle = line.stack.enter_context(RawClient(line.server))
        line.server.send_signal(signal.SIGTERM)
        for client in clients:
            answer = client.reply()
            assert (answer.status, answer.reason) == (503, "UNAVAILABLE")
            assert answer.json()["error"]["type"] == "unavailable_error"
            assert answer.headers["connection"] == "close"
            assert client.closed()
        assert line.server.wait(30) == 0
        assert idle.closed()
    assert line.server.error_lines == []
    assert "Traceback" not in line.server.err


def refuses_connections(server: ServerProcess) -> bool:
    try:
        server.connect().close()
    except ConnectionError:
        return True
    return False


def test_a_signal_is_heard_on_any_thread_and_a_second_one_ends_the_process_at_once(
    start: Callable[..., ServerProcess],
):
    server = start().ready()
    main = server.process.pid
    others = [int(task.name) for task in Path(f"/proc/{main}/task").iterdir() if int(task.name) != main]
    with RawClient(server) as client:
        # A body that never comes keeps the first signal waiting for some seconds.
        client.send(HEAD_ONLY.replace("Host", "Expect: 100-continue\r\nHost"))
        assert client.reply().status == 100
        # To the system any thread will do, and on a busy machine it does not choose the main one.
        os.kill(max(others), signal.SIGINT)
        wait_for(lambda: refuses_connections(server), "the server does not listen any more")
        assert server.process.poll() is None
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 128 + signal.SIGTERM


@pytest.mark.full
def test_a_body_that_never_comes_holds_the_stop_for_seconds_only(start: Callable[..., ServerProcess]):
    server = start().ready()
    with RawClient(server) as client:
        client.send(HEAD_ONLY.replace("Host", "Expect: 100-continue\r\nHost"))
        assert client.reply().status == 100
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
        assert client.closed()
