"""Start, serve, stop, as named phases.

listen -> load (on the worker's thread, while /health answers 503) -> serve -> stop: refuse what comes, cancel what
waits or runs, let the replies out, leave. A second signal leaves at once.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
    stop = StopRequest()
    worker = Worker(settings, load, routes, stop, ready=lambda served: tell(listener.url, served), log=log)
    with stop.on_signals():
        threading.Thread(target=listener.serve_forever, args=(0.1,), name="accept", daemon=True).start()
        tell(listener.url, None)
        worker.start()
        stop.wait_for(stop.is_set)
        # On a thread of its own: this one is where Python handles a second signal.
        stopping = threading.Event()
        threading.Thread(target=_stop, args=(listener, queue, worker, stop, stopping), name="stop", daemon=True).start()
        stop.wait_for(stopping.is_set)
    if worker.failure is not None:
        raise worker.failure
    if worker.is_alive():
        # A library is busy where nothing can stop it. All replies are out, and nothing is half-written: files appear
        # under their names only when they are whole.
        os._exit(0)


def _stop(listener: Listener, queue: JobQueue, worker: Worker, stop: StopRequest, done: threading.Event) -> None:
    """Refuse what comes, cancel what waits or runs, let the replies out. Sets `done` in any case."""
    try:
        listener.stopping = True
        queue.close()
        listener.shutdown()
        listener.server_close()
        listener.drain(_STOP_SECONDS)
        worker.join(_STOP_SECONDS)
    finally:
        done.set()
        stop.ring()


class StopRequest:
    """Whether the server should stop: a signal asked for it, or a load that failed.

    The system may deliver a signal to any thread, but Python runs its handler on the main one, and only once that one
    wakes. So the main thread waits for nothing but a byte on a socket, which Python sends for every signal.
    """

    def __init__(self) -> None:
        self._asked = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)

    def set(self) -> None:
        self._asked = True
        self.ring()

    def is_set(self) -> bool:
        return self._asked

    def ring(self) -> None:
        """Have the main thread look at what it waits for."""
        with suppress(OSError):  # enough wait to be heard, or nobody listens any more
            self._writer.send(b"\0")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Called by the main thread. condition: looked at after every ring."""
        while not condition():
            self._reader.recv(1024)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Within: SIGINT and SIGTERM ask for a stop, a second one ends the process at once."""

        def handle(number: int, frame: Any) -> None:
            if self._asked:
                os._exit(128 + number)
            self.set()

        bell = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(bell)
            self._reader.close()
            self._writer.close()


class Worker(threading.Thread):
    """The one thread that loads and computes: libraries keep their own threads by the thread that called them.

    stop: set by a load that failed, whose error `failure` then is.
    """

    def __init__(
        self,
        settings: Settings,
        load: Load,
        routes: Routes,
        stop: StopRequest,
        ready: Callable[[Served], None],
        log: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="worker", daemon=True)
        self.failure: BaseException | None = None
        self._settings, self._load, self._routes = settings, load, routes
        self._stop_request, self._ready, self._log = stop, ready, log

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
            self._stop_request.set()
            return
        self._routes.served = served
        self._ready(served)
        queue = self._routes.queue
        while (job := queue.take()) is not None:
            # In slices, so that a cancelled job gives its place back as one would that computes.
            self._sleep(self._settings.hooks.job_delay, job)
            run_job(queue, job, self._log)

    def _check(self) -> None:
        if self._stop_request.is_set():
            raise Stopped

    def _sleep(self, seconds: float, job: Job | None = None) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._stop_request.is_set() and not (job and job.cancelled):
            time.sleep(min(0.01, seconds))
