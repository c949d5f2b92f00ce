"""Many clients at once: idle ones, more than fit, large bodies, and a storm."""

from __future__ import annotations

import select
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .bodies import GOOD, LARGEST, SYSTEMONE, systemone
from .raw_client import RawClient, get, post
from .server_process import MIB_IN_KB, ServerProcess, wait_for


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
