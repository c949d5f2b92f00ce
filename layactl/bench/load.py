"""Open-loop load: requests arrive when they arrive, whether or not the server has caught up.

Arrivals are Poisson, drawn from a seed; a latency counts from the scheduled arrival, so that waiting is part of it
(coordinated omission is left out: Tene 2013, "How NOT to Measure Latency").
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from layactl.bench.kpi import quantile
from layactl.errors import LayactlError, RequestError

# Requests under way at once; what arrives meanwhile waits here, and its time counts.
_SENDERS = 64
# For what is under way when a saturated cell is given up.
_LAST_SECONDS = 10.0

Ask = Callable[[], object]


@dataclass(frozen=True)
class Cell:
    """One rate for one time. latencies: ms from the scheduled arrival, of what was answered; drained: seconds after the
    first arrival until the last answer; saturated: the backlog was not gone by twice the offered time.
    """

    rate: float
    seconds: float
    sent: int
    rejected: int
    errors: int
    saturated: bool
    drained: float
    latencies: Sequence[float] = field(repr=False)

    def quantile(self, q: float) -> float | None:
        return quantile(self.latencies, q) if self.latencies else None

    def to_json(self) -> dict[str, Any]:
        quantiles = {f"p{q * 100:g}_ms": self.quantile(q) for q in (0.5, 0.95, 0.99)}
        return {k: v for k, v in vars(self).items() if k != "latencies"} | {"answered": len(self.latencies)} | quantiles


def arrivals(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Seconds after the start of each arrival of a Poisson process."""
    draw = random.Random(f"{seed}:{rate}:{seconds}")
    at = draw.expovariate(rate)
    while at < seconds:
        yield at
        at += draw.expovariate(rate)


def run_cell(
    rate: float,
    seconds: float,
    seed: int,
    connect: Callable[[], AbstractContextManager[Ask]],
    tick: Callable[[int], None] = lambda sent: None,
) -> Cell:
    """Offer `rate` requests a second for `seconds` seconds.

    connect: opens one sender's connection and yields what sends a request; it raises RequestError with status 429 for a
    rejection. tick: called with the number of requests sent.
    """
    waiting: queue.SimpleQueue[float | None] = queue.SimpleQueue()
    lock = threading.Lock()
    latencies: list[float] = []
    counts = {"rejected": 0, "errors": 0}
    give_up = threading.Event()
    last = [0.0]

    def sender() -> None:
        with connect() as ask:
            while (scheduled := waiting.get()) is not None:
                if give_up.is_set():
                    continue
                outcome = _outcome(ask)
                ended = time.perf_counter()
                with lock:
                    last[0] = max(last[0], ended)
                    if outcome is None:
                        latencies.append((ended - scheduled) * 1000.0)
                    else:
                        counts[outcome] += 1

    threads = [threading.Thread(target=sender, daemon=True) for _ in range(_SENDERS)]
    for thread in threads:
        thread.start()
    started = time.perf_counter()
    sent = 0
    for at in arrivals(rate, seconds, seed):
        time.sleep(max(0.0, started + at - time.perf_counter()))
        waiting.put(started + at)
        sent += 1
        tick(sent)
    for _ in threads:
        waiting.put(None)
    for thread in threads:
        thread.join(max(0.0, started + 2 * seconds - time.perf_counter()))
    saturated = any(thread.is_alive() for thread in threads)
    give_up.set()
    patience = time.perf_counter() + _LAST_SECONDS
    for thread in threads:
        thread.join(max(0.0, patience - time.perf_counter()))
    with lock:
        drained = max(0.0, last[0] - started)
        return Cell(rate, seconds, sent, counts["rejected"], counts["errors"], saturated, drained, sorted(latencies))


def _outcome(ask: Ask) -> str | None:
    """None where the request was answered."""
    try:
        ask()
    except RequestError as error:
        return "rejected" if error.code == 429 else "errors"
    except LayactlError:
        return "errors"
    return None
