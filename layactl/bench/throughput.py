"""Rows, questions and tokens a second of `decide --jsonl`, against the faster of the reference's two ways.

Both answer the same file of mixed lengths, in turn. The command is timed whole and again on one row, so that its start
is not counted; the reference is timed inside its process, after loading.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layactl.bench import texts
from layactl.bench.subjects import engine_options
from layactl.bench.suite import Count, fitted
from layactl.core import strict_json
from layactl.errors import LayactlError, ModelLoadError

_TIMES_THE_START = 1.5
# Token lengths of the rows' states, in turn: from a line to more than most models read.
_LENGTHS = (30, 420, 110, 880, 60, 230, 640, 170)


def rows(count: Count, number: int) -> list[dict[str, Any]]:
    """Rows of mixed lengths with two questions each."""
    questions = {
        "refund": {"type": "noul", "instructions": "Does the writer ask for money back?"},
        "team": {"type": "choice", "instructions": "Which team takes this?", "criteria": list(texts.TEAMS[:4])},
    }
    text = " ".join(texts.TICKETS)
    states = [fitted(text, length, count) for length in _LENGTHS]
    # Each row begins with its number, so that none is the copy of another.
    return [{"id": n, "state": f"{n}: {states[n % len(states)]}", "questions": questions} for n in range(number)]


@dataclass
class Throughput:
    """Seconds of each repeat (none where the file was too short to tell); rows, questions and tokens of the file."""

    rows: int
    questions: int
    tokens: int
    engine: list[float] = field(default_factory=list)
    reference_loop: list[float] = field(default_factory=list)
    reference_batch: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """How many times faster than the faster way of the reference, medians; None without a reference."""
        ways = [statistics.median(way) for way in (self.reference_loop, self.reference_batch) if way]
        return min(ways) / statistics.median(self.engine) if ways and self.engine else None

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "ratio": self.ratio}


def measure_throughput(
    job: dict[str, Any],
    lines: list[dict[str, Any]],
    *,
    checkpoint: Path | None,
    repeat: int,
    tick: Callable[[], None] = lambda: None,
) -> Throughput:
    """job: of an engine's block; checkpoint: of the reference, None for no peer. Raises ModelLoadError."""
    questions = sum(len(line["questions"]) for line in lines)
    with tempfile.TemporaryDirectory(prefix="layactl-") as name:
        folder = Path(name)
        whole, one = folder / "rows.jsonl", folder / "row.jsonl"
        whole.write_text("".join(strict_json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        one.write_text(strict_json.dumps(lines[0]) + "\n", encoding="utf-8")
        _, tokens = _decide(job, whole, folder)
        found = Throughput(len(lines), questions, tokens)
        for _ in range(repeat):
            start, _ = _decide(job, one, folder)
            seconds, _ = _decide(job, whole, folder)
            # A file that takes no longer than a row measures the start of a process, and no rate.
            if seconds > _TIMES_THE_START * start:
                found.engine.append(seconds - start)
            tick()
            if checkpoint is not None:
                loop, batch = _reference(checkpoint, job["threads"], whole)
                found.reference_loop.append(loop)
                if batch is not None:
                    found.reference_batch.append(batch)
                tick()
        return found


def _decide(job: dict[str, Any], source: Path, folder: Path) -> tuple[float, int]:
    """Seconds of the whole command, and the tokens it computed."""
    out = folder / "out.jsonl"
    arguments = ["decide", "-q", "-m", job["model"], "--jsonl", str(source), "-o", str(out), *engine_options(job)]
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "layactl", *arguments], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise ModelLoadError(f"decide --jsonl ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    records = [strict_json.loads_strict(line) for line in out.read_bytes().splitlines()]
    return seconds, sum(record["usage"]["evaluated_tokens"] for record in records)


def _reference(checkpoint: Path, threads: int, source: Path) -> tuple[float, float | None]:
    """Seconds of the reference's predict loop and of its predict_batch, None where it has none."""
    job = json.dumps({"checkpoint": str(checkpoint), "threads": threads, "source": str(source)})
    done = subprocess.run(
        [sys.executable, "-m", "layactl.bench.throughput"], input=job, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ModelLoadError(f"the reference ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["loop"], found["batch"]


def main() -> int:
    """The reference's side, in a process of its own: a job on standard input, a result line on standard output."""
    from layactl.reference.private_copy import scratch_folder
    from layactl.reference.reference_model import ReferenceModel

    job = json.load(sys.stdin)
    lines = [json.loads(line) for line in Path(job["source"]).read_text(encoding="utf-8").splitlines()]
    checkpoint = Path(job["checkpoint"])
    try:
        with scratch_folder(checkpoint) as scratch:
            agent = ReferenceModel(checkpoint, scratch, threads=job["threads"]).agent
            agent.predict(lines[0]["state"], lines[0]["questions"])
            started = time.perf_counter()
            for line in lines:
                agent.predict(line["state"], line["questions"])
            loop = time.perf_counter() - started
            batch = None
            if hasattr(agent, "predict_batch"):
                started = time.perf_counter()
                agent.predict_batch([line["state"] for line in lines], lines[0]["questions"], sort_by_length=True)
                batch = time.perf_counter() - started
    except LayactlError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    print(json.dumps({"loop": loop, "batch": batch}))  # noqa: T201 - the protocol with the parent
    return 0


if __name__ == "__main__":
    sys.exit(main())
