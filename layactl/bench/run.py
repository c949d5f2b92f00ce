"""Configurations measured in turn: cycles of blocks whose order flips, disturbed blocks measured again, one result file
each that is whole after every block.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from layactl.bench.machine import machine_record
from layactl.bench.server_measures import measure_server
from layactl.bench.suite import SuiteRequest, suite_sha256, tokenizer_of
from layactl.bench.throughput import measure_throughput, rows
from layactl.core import strict_json
from layactl.durable import replacing
from layactl.errors import ModelLoadError, OutputError, UsageError

FORMAT = "layactl.bench/1"
# Blocks measured again at most so often.
_RETRIES = 2


@dataclass(frozen=True)
class Config:
    """One thing to measure. label: names it and its file; job: of `bench.subjects.opened`."""

    label: str
    job: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How to measure. repeat, warmup: rounds of the suite in a block; cycles: blocks of every configuration; idle_ms:
    before one more round, 0 for none; foreign_max: cores others may use before a block counts as disturbed;
    server_starts: of a server for every engine configuration; throughput_rows: of a JSONL file, 0 for none.
    """

    repeat: int = 10
    warmup: int = 1
    cycles: int = 3
    idle_ms: int = 0
    foreign_max: float = 0.25
    server_starts: int = 0
    throughput_rows: int = 0

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if not 0.0 <= self.foreign_max < math.inf:
            raise UsageError(f"must be a number of cores, not {self.foreign_max:g}", where="--foreign-max")

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass
class Result:
    """What has been measured of one configuration so far."""

    config: Config
    head: dict[str, Any]
    blocks: list[dict[str, Any]] = field(default_factory=list)
    identity: dict[str, Any] | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    def to_json(self, complete: bool) -> dict[str, Any]:
        return {**self.head, "identity": self.identity, "complete": complete, "blocks": self.blocks, **self.extras}


# Called as progress(label, blocks done, blocks in all, event); event: of the block under way, or its result.
Progress = Callable[[str, int, int, dict[str, Any]], None]


def measure(
    configs: Sequence[Config], requests: Sequence[SuiteRequest], plan: Plan, folder: Path, progress: Progress
) -> list[Path]:
    """Measure, and return the result files, FOLDER/LABEL.json.

    A file holds every block measured so far, whatever ends the run. Raises UsageError where a file is there already,
    OutputError, and ModelLoadError with what a block said.
    """
    labels = [config.label for config in configs]
    if len(set(labels)) < len(labels):
        names = ", ".join(sorted({label for label in labels if labels.count(label) > 1}))
        raise UsageError(f"two configurations have one name: {names}", hint="give the model files different names")
    paths = [folder / f"{label}.json" for label in labels]
    for path in paths:
        if path.exists():
            raise UsageError("is there already", where=str(path), hint="give another folder with -o")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot be made: {error.strerror}", where=str(folder)) from None
    machine, suite = machine_record(), {"sha256": suite_sha256(requests), "groups": _groups(requests)}
    results = [
        Result(
            config,
            {
                "format": FORMAT,
                "label": config.label,
                "config": config.job,
                "plan": plan.to_json(),
                "suite": suite,
                "machine": machine,
            },
        )
        for config in configs
    ]
    engines = [result for result in results if result.config.job["kind"] == "engine"]
    extras = bool(plan.server_starts) + bool(plan.throughput_rows)
    total, done = plan.cycles * len(configs) + extras * len(engines), 0
    for cycle in range(plan.cycles):
        for result in results if cycle % 2 == 0 else reversed(results):
            tell = partial(progress, result.config.label, done, total)
            _cycle(result, cycle, requests, plan, folder, tell)
            done += 1
    references = [config.job for config in configs if config.job["kind"] == "reference" and not config.job["bf16"]]
    checkpoint = references[0]["checkpoint"] if references else None
    for result in engines:
        tell = partial(progress, result.config.label, done, total)
        done += extras
        _measure_extras(result, requests, plan, checkpoint, folder, tell)
    for result in results:
        _write(result, folder, complete=True)
    return paths


def _measure_extras(
    result: Result,
    requests: Sequence[SuiteRequest],
    plan: Plan,
    checkpoint: str | None,
    folder: Path,
    progress: Callable[[dict[str, Any]], None],
) -> None:
    """What needs processes of its own beside the blocks: servers, and whole JSONL runs."""
    job = result.config.job
    if plan.server_starts:
        progress({"event": "phase", "what": "starting servers"})
        result.extras["server"] = measure_server(
            job, requests[0], starts=plan.server_starts, repeat=plan.repeat, idle_ms=plan.idle_ms
        )
        _write(result, folder, complete=False)
    if plan.throughput_rows:
        progress({"event": "phase", "what": "JSONL runs"})
        tokenizer = tokenizer_of(Path(job["model"]), job["max_len"])
        lines = rows(lambda text: len(tokenizer.encode(text)), plan.throughput_rows)
        reference = Path(checkpoint) if checkpoint else None
        found = measure_throughput(job, lines, checkpoint=reference, repeat=plan.cycles)
        result.extras["throughput"] = found.to_json()


def _groups(requests: Iterable[SuiteRequest]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for request in requests:
        groups.setdefault(request.group, []).append(request.id)
    return groups


def _cycle(
    result: Result,
    cycle: int,
    requests: Sequence[SuiteRequest],
    plan: Plan,
    folder: Path,
    progress: Callable[[dict[str, Any]], None],
) -> None:
    """One block, measured again while others disturb it; every attempt is kept."""
    for attempt in range(1 + _RETRIES):
        job = {
            **result.config.job,
            "repeat": plan.repeat,
            "warmup": plan.warmup,
            "idle_ms": plan.idle_ms,
            "identity": result.identity is None,
        }
        block = spawn_block(job, requests, progress)
        result.identity = block.pop("identity", result.identity)
        block |= {"cycle": cycle, "attempt": attempt, "disturbed": _disturbed(block, plan)}
        result.blocks.append(block)
        _write(result, folder, complete=False)
        progress({"event": "block", **block})
        if block["disturbed"] is None:
            return


def _disturbed(block: dict[str, Any], plan: Plan) -> str | None:
    foreign = block["foreign_cores"]
    if foreign is not None and foreign > plan.foreign_max:
        return f"others used {foreign:.2f} cores"
    return None


def _write(result: Result, folder: Path, *, complete: bool) -> None:
    with replacing(folder / f"{result.config.label}.json") as temporary:
        temporary.write_bytes(strict_json.dumps(result.to_json(complete)).encode("utf-8") + b"\n")


def spawn_block(
    job: dict[str, Any], requests: Sequence[SuiteRequest], progress: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run a block in a process of its own. Raises ModelLoadError with what it said where it gives no result."""
    process = subprocess.Popen(
        [sys.executable, "-m", "layactl.bench.block"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    result: dict[str, Any] | None = None
    message = "a block ended without a result"
    try:
        process.stdin.write(json.dumps(job | {"suite": [request.to_json() for request in requests]}) + "\n")
        process.stdin.close()
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "result":
                result = {key: value for key, value in event.items() if key != "event"}
            elif event["event"] == "error":
                message = event["message"] + (f" ({event['where']})" if event["where"] else "")
            else:
                progress(event)
    finally:
        process.stdout.close()
        if process.poll() is None and result is None:
            process.kill()
        process.wait()
    if result is None:
        raise ModelLoadError(message)
    return result


def label_of(*parts: str) -> str:
    """A name that a file can have."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", "-".join(parts)).strip("-.") or "config"
