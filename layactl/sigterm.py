"""SIGTERM as an exception, for what leaves something behind when it is not unwound."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def unwound_on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM raises SystemExit (143, as a shell says it). Without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is _stop:
            signal.signal(signal.SIGTERM, before)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    # Once is enough: a second one (timeout(1) sends two) must not cut the tidying short.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)
