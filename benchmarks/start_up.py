"""From the start of a process to its first answer, and what it holds in memory then, beside the reference package.

    python benchmarks/start_up.py CHECKPOINT MODEL.gguf [--repeat 5] [--kernels onednn --kernels onednn-bf16]

Every repeat starts each process once, in an order that turns; one round, which brings the files into the page cache, is
not counted. Ratios are those of single repeats: their median, smallest and largest. Memory is what is resident after
loading, and the peak until the first answer. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from layactl.reference.private_copy import private_copy

STATE = "Billed twice this month for one seat, please refund the second charge to my card."
QUESTIONS = {"refund": {"type": "noul", "instructions": "Does the customer ask for money back?"}}
PROGRAM = """
import json, sys
from layactl.bench.machine import memory
{load}
loaded = memory()
{ask}({state!r}, {questions!r})
print(json.dumps([loaded, memory()]), flush=True)
"""
LAYACTL = "import layactl; model = layactl.load(sys.argv[1], kernels=sys.argv[2])", "model.decide"
LAYA = "import laya; agent = laya.load(sys.argv[1], device='cpu')", "agent.system_one"


def start(program: tuple[str, str], *arguments: str) -> dict[str, float]:
    """Seconds until the answer was there, resident bytes after loading, peak bytes. program: how to load and to ask."""
    load, ask = program
    code = PROGRAM.format(load=load, ask=ask, state=STATE, questions=QUESTIONS)
    # As the command does for itself; here both get it.
    environment = {"GOMP_SPINCOUNT": "10000", **os.environ}
    begun = time.perf_counter()
    child = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    seconds = time.perf_counter() - begun
    loaded, answered = json.loads(child.stdout.splitlines()[-1])
    return {"seconds": seconds, "loaded": loaded["rss"], "peak": answered["peak"]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time from the start of a process to its first answer.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--kernels", action="append")
    options = parser.parse_args()
    names = options.kernels or ["onednn", "onednn-bf16"]
    with TemporaryDirectory() as scratch:
        # The reference may write into the folder that it loads.
        copy = str(private_copy(options.checkpoint, Path(scratch)))
        programs = {name: (LAYACTL, str(options.model), name) for name in names} | {"laya": (LAYA, copy)}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
        order = list(programs)
        for repeat in range(options.repeat + 1):
            for name in order:
                measured = start(*programs[name])
                if repeat:
                    found[name].append(measured)
            order = order[1:] + order[:1]
            print(f"round {repeat} of {options.repeat}", file=sys.stderr, flush=True)
    report: dict[str, Any] = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in found.items()
    }
    for name in names:
        for key in ("seconds", "loaded", "peak"):
            single = [theirs[key] / ours[key] for ours, theirs in zip(found[name], found["laya"], strict=True)]
            report[name][f"laya / {key}"] = [round(f(single), 3) for f in (statistics.median, min, max)]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
