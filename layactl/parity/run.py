"""Items through one side into a run file: in order, on several processes, continued where a run stopped."""

from __future__ import annotations

import atexit
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from layactl.core import strict_json
from layactl.errors import ModelLoadError, OutputError
from layactl.parity.answering import Answer, Side
from layactl.parity.items import Items
from layactl.reporting.record_stream import record_stream

RUN_FORMAT = "layactl.parity-run/1"


def run(
    side: Side,
    items: Items,
    out: Path,
    identity: dict[str, Any],
    *,
    jobs: int = 1,
    resume: bool = False,
    tick: Callable[[int], None] = lambda done: None,
) -> tuple[int, int]:
    """Answer the items into OUT.jsonl, the identity into OUT.meta.json; returns (records there before, refused).

    jobs: processes, each with a model of its own; tick: called with the number of records written so far.
    Raises OutputError, UsageError (--resume of another run), and what opening the side raises.
    """
    before: list[dict[str, Any]] = []
    # The side first: an earlier run's records go only when this one can begin.
    with (
        _answering(side, jobs) as answers,
        record_stream(out, run_meta(identity), resume=resume, earlier=before.append) as write,
    ):
        expected = [item["id"] for item in items.items[: len(before)]]
        if [record.get("id") for record in before] != expected:
            raise OutputError("its records are not those of the first items", where=str(out))
        refused = sum("refusal" in record for record in before)
        todo = items.items[len(before) :]
        for done, record in enumerate(answers(todo), start=len(before) + 1):
            write(strict_json.dumps(record).encode("utf-8") + b"\n")
            refused += "refusal" in record
            tick(done)
    return len(before), refused


def run_meta(identity: dict[str, Any]) -> dict[str, Any]:
    """The sidecar of a run."""
    return {"format": RUN_FORMAT, "identity": identity}


@contextmanager
def _answering(side: Side, jobs: int) -> Iterator[Callable[[Sequence[dict[str, Any]]], Iterator[dict[str, Any]]]]:
    """Yields: items -> their records, in order."""
    if jobs == 1:
        with side.open() as answer:
            yield lambda items: map(answer, items)
        return
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            pool.submit(_open_here, side).result()
            yield lambda items: pool.map(partial(_answer_here, side), items)
        except BrokenProcessPool:
            raise ModelLoadError(
                "a process of this run was killed", hint="every process holds a model of its own: try fewer --jobs"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


# One side a process, for as long as the process lives.
_opened = ExitStack()
_answer: Answer | None = None


def _open_here(side: Side) -> None:
    global _answer
    if _answer is None:
        _answer = _opened.enter_context(side.open())
        atexit.register(_opened.close)


def _answer_here(side: Side, item: dict[str, Any]) -> dict[str, Any]:
    _open_here(side)
    assert _answer is not None
    return _answer(item)
