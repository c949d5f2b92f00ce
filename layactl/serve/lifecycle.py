"""Start, serve, stop, as named phases.

listen -> load (on the worker's thread, while /health answers 503) -> serve -> stop: refuse what comes, cancel what
waits or runs, let the replies out, leave. A second signal leaves at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from layactl.serve.info import Served
from layactl.serve.jobs import Job, JobQueue, run_job
from layactl.serve.listener import Access, Listener
from layactl.serve.routes import Routes
from layactl.serve.settings import Settings

# For the replies of a stop to leave, and then for a forward pass under way.
_STOP_SECONDS = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Load = Callable[[Callable[[], None]], Served]


class Stopped(Exception):
    """Raised inside a load that is no longer wanted."""


def serve(
    settings: Settings,
    load: Load,
    *,
    tell: Callable[[str, Served | None], None],
    log: Callable[[BaseException], None],
    log_access: Access,
) -> None:
    """Serve until a signal comes.

    load: called as load(check) on the worker's thread; `check`, called between its steps, raises to end it.
    tell: called as tell(url, None) when connections are accepted and as tell(url, served) when requests are.
    log: told of errors that are ours. Raises what `load` raises, and OutputError for an address that is taken.
    """
    queue = JobQueue(settings.queue)
    routes = Routes(settings, queue, log)
    listener = Listener(settings, routes, log_access, log)
    worker = Worker(settings, load, routes, ready=lambda served: tell(listener.url, served), log=log)
    with _signals(worker.wake):
        threading.Thread(target=listener.serve_forever, args=(0.1,), name="accept", daemon=True).start()
        tell(listener.url, None)
        worker.start()
        worker.wake.wait()
        listener.stopping = True
        queue.close()
        listener.shutdown()
        listener.server_close()
        listener.drain(_STOP_SECONDS)
        worker.join(_STOP_SECONDS)
    if worker.failure is not None:
        raise worker.failure
    if worker.is_alive():
        # A library is busy where nothing can stop it. All replies are out, and nothing is half-written: files appear
        # under their names only when they are whole.
        os._exit(0)


class Worker(threading.Thread):
    """The one thread that loads and computes: libraries keep their own threads by the thread that called them.

    wake: set when the server should stop, by a signal or by a load that failed; failure: of that load.
    """

    def __init__(
        self,
        settings: Settings,
        load: Load,
        routes: Routes,
        ready: Callable[[Served], None],
        log: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="worker", daemon=True)
        self.wake = threading.Event()
        self.failure: BaseException | None = None
        self._settings, self._load, self._routes, self._ready, self._log = settings, load, routes, ready, log

    def run(self) -> None:
        try:
            self._sleep(self._settings.hooks.load_delay)
            served = self._load(self._check)
            if self._settings.warm_up:
                served.model.warm_up()
            self._check()
        except Stopped:
            return
        except BaseException as error:  # raised where the process can end with it
            self.failure = error
            self.wake.set()
            return
        self._routes.served = served
        self._ready(served)
        queue = self._routes.queue
        while (job := queue.take()) is not None:
            # In slices, so that a cancelled job gives its place back as one would that computes.
            self._sleep(self._settings.hooks.job_delay, job)
            run_job(queue, job, self._log)

    def _check(self) -> None:
        if self.wake.is_set():
            raise Stopped

    def _sleep(self, seconds: float, job: Job | None = None) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.wake.is_set() and not (job and job.cancelled):
            time.sleep(min(0.01, seconds))


@contextmanager
def _signals(wake: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM set `wake`; a second one ends the process at once."""

    def stop(number: int, frame: Any) -> None:
        if wake.is_set():
            os._exit(128 + number)
        wake.set()

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
