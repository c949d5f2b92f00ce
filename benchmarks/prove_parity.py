"""A checkpoint held to the reference from end to end, with the commands a user would type.

    python benchmarks/prove_parity.py CHECKPOINT DIR [--every N] [--english] [--resume] [--jobs N]

convert (f32) -> parity ref -> parity run -> parity compare --gate strict-f32 -> parity invariance. Prints each command,
its seconds and what it says; the exit code is that of the first command that fails. Everything is written to DIR.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold a checkpoint to the reference.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--english", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="processes of the reference's run")
    options = parser.parse_args()
    name, folder = options.checkpoint.name, options.folder
    folder.mkdir(parents=True, exist_ok=True)
    model, reference, run = (folder / f"{name}{ending}" for ending in (".gguf", "-reference.jsonl", "-run.jsonl"))
    subset = ["--every", str(options.every), *(["--english"] if options.english else [])]
    resume = ["--resume"] if options.resume else []
    step("convert", options.checkpoint, "-o", model, "--outtype", "f32")
    step("parity", "ref", options.checkpoint, "-o", reference, *subset, *resume, "--jobs", options.jobs)
    step("parity", "run", "-m", model, "-o", run, *subset, *resume)
    step("parity", "compare", reference, run, "--gate", "strict-f32", "--json", folder / f"{name}-gate.json")
    step("parity", "invariance", "-m", model, "--every", "120", *subset[2:])


def step(*arguments: object) -> None:
    command = [str(argument) for argument in arguments]
    print(f"$ layactl {' '.join(command)}", flush=True)
    started = time.perf_counter()
    code = subprocess.run([sys.executable, "-m", "layactl", *command], check=False).returncode
    print(f"({time.perf_counter() - started:.1f} s)", flush=True)
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
