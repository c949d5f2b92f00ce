"""A stop asked for from outside, kept until the update that is being made is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopping:
    """signal: the number of the one that came, None while there is none."""

    def __init__(self) -> None:
        self.signal: int | None = None


@contextmanager
def held_signals(told: Callable[[], None] = lambda: None) -> Iterator[Stopping]:
    """Inside, the first SIGINT or SIGTERM is only noted; the second acts as if nothing held it.

    told: called when the first comes. Without effect outside the main thread.
    """
    stopping = Stopping()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def hold(number: int, frame: FrameType | None) -> None:
        restore()
        stopping.signal = number
        told()

    for number in before:
        signal.signal(number, hold)
    try:
        yield stopping
    finally:
        restore()
