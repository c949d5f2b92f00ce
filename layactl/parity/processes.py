"""Processes that answer items, each with a model of its own, and that never outlive the run that started them."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from layactl.errors import ModelLoadError
from layactl.parity.answering import Answer, Record, Side
from layactl.sigterm import unwound_on_sigterm

# Items -> their records, in order.
AnswerAll = Callable[[Sequence[dict[str, Any]]], Iterator[Record]]


@contextmanager
def answering(side: Side, jobs: int) -> Iterator[AnswerAll]:
    """Open the side, here or (jobs > 1) in as many processes. Raises what opening it raises, and ModelLoadError."""
    with side.prepared() as ready:
        if jobs == 1:
            with ready.open() as answer:
                yield lambda items: map(answer, items)
        else:
            with _pool(ready, jobs) as answers:
                yield answers


@contextmanager
def _pool(side: Side, jobs: int) -> Iterator[AnswerAll]:
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    # The processes end when the writing end is closed, which a death of this process does too, whatever it died of.
    end, lifeline = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with, initargs=(end,))
    with unwound_on_sigterm(), end, lifeline, pool:
        try:
            with _without_interrupts():
                opened = pool.submit(_open_here, side)
            opened.result()
            yield partial(_answer_all, pool, side)
        except BaseException as error:
            lifeline.close()
            pool.shutdown(cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise ModelLoadError(
                    "a process of this run was killed", hint="every process holds a model of its own: try fewer --jobs"
                ) from None
            raise


def _answer_all(pool: ProcessPoolExecutor, side: Side, items: Sequence[dict[str, Any]]) -> Iterator[Record]:
    with _without_interrupts():
        return pool.map(partial(_answer_here, side), items)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes started meanwhile never see a Ctrl-C, which the terminal sends to them too: this one ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- in a process of the pool ---------------------------------------------------------------------------------------

# One side a process, for as long as the process lives.
_opened = ExitStack()
_answer: Answer | None = None


def _end_with(end: Connection) -> None:
    def watch() -> NoReturn:
        with suppress(EOFError, OSError):
            end.recv_bytes()
        # Nothing to tidy up: what is on disk belongs to the process that started this one.
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _open_here(side: Side) -> None:
    global _answer
    if _answer is None:
        _answer = _opened.enter_context(side.open())
        atexit.register(_opened.close)


def _answer_here(side: Side, item: dict[str, Any]) -> Record:
    _open_here(side)
    assert _answer is not None
    return _answer(item)
