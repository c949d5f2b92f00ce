"""One block of a measurement: one process, one subject, every request of the suite once a repeat.

Reads its job as one JSON line on standard input and writes events as JSON lines: {"event": "loaded"}, {"event":
"repeat", "done": n} and {"event": "result", ...} or {"event": "error", ...}. Repeats go round the suite, so that slow
drift meets all requests alike.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TextIO

from layactl.bench.machine import load_average, memory, watch
from layactl.bench.subjects import EngineSubject, Measured, Subject, opened
from layactl.bench.suite import SuiteRequest
from layactl.errors import LayactlError

Emit = Callable[[dict[str, Any]], None]


def run_block(job: dict[str, Any], requests: Sequence[SuiteRequest], emit: Emit) -> dict[str, Any]:
    """{"load_ms", "first_ms", "memory", "foreign_cores", "load_average", "requests", "after_idle"?, "identity"?}.

    Times in milliseconds, memory in bytes. job: of the subject, with "repeat", "warmup", "idle_ms" and "identity".
    """
    before, found = load_average(), {"start": memory()}
    with ExitStack() as stack:
        started = time.perf_counter()
        subject = stack.enter_context(opened(job))
        load_ms = (time.perf_counter() - started) * 1000.0
        found["loaded"] = memory()
        emit({"event": "loaded"})
        first_ms = subject.ask(requests[0]).ms.get("total")
        for _ in range(job["warmup"]):
            _round(subject, requests)
        found["warm"] = memory()
        rows: dict[str, list[Measured]] = {request.id: [] for request in requests}
        since, cpu = watch(), time.process_time()
        for repeat in range(job["repeat"]):
            for request, measured in zip(requests, _round(subject, requests), strict=True):
                rows[request.id].append(measured)
            emit({"event": "repeat", "done": repeat + 1})
        # A server's work is not this process's: whether others disturbed it cannot be told from here.
        foreign = since.foreign_cores(time.process_time() - cpu) if job["kind"] != "server" else None
        result: dict[str, Any] = {
            "load_ms": load_ms,
            "first_ms": first_ms,
            "load_average": before,
            "foreign_cores": foreign,
            "requests": {request_id: _row(measured) for request_id, measured in rows.items()},
        }
        if job["idle_ms"]:
            time.sleep(job["idle_ms"] / 1000.0)
            result["after_idle"] = {
                r.id: m.ms.get("total") for r, m in zip(requests, _round(subject, requests), strict=True)
            }
        found["end"] = memory()
        if job["identity"]:
            result["identity"] = _identity(job, subject)
    return result | {"memory": found}


def _round(subject: Subject, requests: Sequence[SuiteRequest]) -> list[Measured]:
    return [subject.ask(request) for request in requests]


def _row(measured: Sequence[Measured]) -> dict[str, Any]:
    """The repeats of one request: times by phase, in their order; whether its raw outputs were the same every time."""
    refusals = [one.refusal for one in measured if one.refusal is not None]
    if refusals:
        return {"refusal": refusals[0]}
    hashes = {one.logits for one in measured}
    (logits,) = hashes if len(hashes) == 1 else (None,)
    return {
        "ms": {phase: [one.ms[phase] for one in measured] for phase in measured[0].ms},
        "cpu_seconds": [one.cpu_seconds for one in measured],
        "tokens": measured[0].tokens,
        "logits": logits,
        "deterministic": None if hashes == {None} else len(hashes) == 1,
    }


def _identity(job: dict[str, Any], subject: Subject) -> dict[str, Any]:
    from layactl.reporting.identity import engine_identity, environment

    if isinstance(subject, EngineSubject):
        return engine_identity(subject.model, subject.file, job["threads"])
    if job["kind"] == "reference":
        from layactl.reference.reference_model import versions

        return {"side": "reference", "threads": job["threads"], **environment(versions())}
    return {"side": "server", "url": job["url"]}


def main() -> int:
    """The block of the job on standard input."""
    # Libraries may print: only events go to what was standard output.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return _run(sys.stdin.readline(), out)


def _run(line: str, out: TextIO) -> int:
    def emit(event: dict[str, Any]) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    job = json.loads(line)
    requests = [SuiteRequest(**request) for request in job["suite"]]
    try:
        emit({"event": "result", **run_block(job, requests, emit)})
    except LayactlError as error:
        emit({"event": "error", "message": error.message, "where": error.where, "hint": error.hint})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
