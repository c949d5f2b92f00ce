"""Requests on their way to the worker: admitted in arrival order or refused, then settled or cancelled, once each."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from layactl.engine.request import internal_error
from layactl.errors import RequestError
from layactl.serve.replies import HttpError, overloaded, stopping

Stop = Callable[[], None]
Compute = Callable[[Stop, float], dict[str, Any]]


class Cancelled(Exception):
    """Raised inside a computation that nobody waits for any more."""


class Job:
    """compute: called as compute(stop, queue_ms) on the worker; gives the response body. No job knows of sockets."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute
        self.submitted = time.perf_counter()
        self.settled = threading.Event()
        self.outcome: dict[str, Any] | RequestError | None = None
        self.cancelled = False

    def stop(self) -> None:
        """Called between the forward passes. Raises Cancelled."""
        if self.cancelled:
            raise Cancelled


class JobQueue:
    """One queue for one worker (specification, Scheduling and determinism).

    capacity: jobs that may wait while one runs. An idle worker always takes a job; one that was cancelled takes no
    place, even while its last forward pass still runs.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        with self._changed:
            return len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs that are computed and waited for: 0 or 1."""
        with self._changed:
            return int(self._busy())

    def refusal(self) -> HttpError | None:
        """Why a job would be refused now, or None."""
        with self._changed:
            return self._refusal()

    def submit(self, job: Job) -> None:
        """Raises HttpError: OVERLOADED (429), UNAVAILABLE (503)."""
        with self._changed:
            if refusal := self._refusal():
                raise refusal
            self._waiting.append(job)
            self._changed.notify()

    def _refusal(self) -> HttpError | None:
        if self._closed:
            return stopping()
        return overloaded() if len(self._waiting) + self._busy() > self.capacity else None

    def _busy(self) -> bool:
        return self._running is not None and not self._running.cancelled

    def cancel(self, job: Job) -> None:
        """The client has left: skipped if it waits, stopped between two forward passes if it runs."""
        with self._changed:
            self._cancel(job, HttpError(503, "UNAVAILABLE", "the client has left"))

    def close(self) -> None:
        """Refuse what comes and cancel what is there, in one step, so that nothing slips in between."""
        with self._changed:
            self._closed = True
            for job in [*self._waiting, *([self._running] if self._running else [])]:
                self._cancel(job, stopping())
            self._changed.notify_all()

    def _cancel(self, job: Job, reason: HttpError) -> None:
        job.cancelled = True
        if job in self._waiting:
            self._waiting.remove(job)
        self._settle(job, reason)

    def take(self) -> Job | None:
        """The next job, waited for; None when the queue is closed. Called by the worker alone."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            self._running = self._waiting.popleft()
            return self._running

    def finish(self, job: Job, outcome: dict[str, Any] | RequestError) -> None:
        """Called by the worker alone. The outcome of a job that was cancelled meanwhile is dropped."""
        with self._changed:
            self._running = None
            self._settle(job, outcome)

    def _settle(self, job: Job, outcome: dict[str, Any] | RequestError) -> None:
        if job.outcome is None:
            job.outcome = outcome
            job.settled.set()


def run_job(queue: JobQueue, job: Job, log: Callable[[BaseException], None]) -> None:
    """Compute one job and settle it, whatever happens in it. log: told of errors that are ours."""
    outcome: dict[str, Any] | RequestError
    try:
        job.stop()
        outcome = job.compute(job.stop, (time.perf_counter() - job.submitted) * 1000.0)
    except Cancelled:
        outcome = stopping()  # dropped: who cancelled has settled it
    except RequestError as error:
        outcome = error
    except Exception as error:  # a job fails its own request only
        log(error)
        outcome = internal_error()
    queue.finish(job, outcome)
