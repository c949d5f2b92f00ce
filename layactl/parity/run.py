"""Items through one side into a run file: in order, on several processes, continued where a run stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from layactl.core import strict_json
from layactl.errors import OutputError, UsageError
from layactl.parity.answering import Record, Side
from layactl.parity.items import Items
from layactl.parity.processes import answering
from layactl.reporting.record_stream import record_stream, refuse_inputs

RUN_FORMAT = "layactl.parity-run/1"
_SUFFIX = ".jsonl"


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
    before: list[Record] = []
    # The side first: an earlier run's records go only when this one can begin.
    with (
        answering(side, jobs) as answers,
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


def check_run_target(out: Path, inputs: Mapping[str, Path | None]) -> None:
    """A run is called NAME.jsonl, so that no two share a NAME.meta.json, and replaces nothing that is read.

    inputs: as `refuse_inputs` takes them. Raises UsageError.
    """
    if out.suffix != _SUFFIX:
        raise UsageError(f"the name of a run must end in {_SUFFIX}", where=str(out))
    refuse_inputs(out, inputs)
