"""How long a conversion takes, against what moving its bytes costs and (with --stock) against llama.cpp's converter.

    python benchmarks/convert_speed.py CHECKPOINT [--repeat 3] [--stock LLAMA_CPP_TREE]

What the numbers mean. `copy_hash_s`: reading the weights, hashing them and writing and syncing a copy, which no
converter can beat. `tensor_s`: the source digest (measured alone: in the conversion it runs beside the tokenizer's
proof) plus the time from the first to the last tensor byte, sync included. `other_s`: what the conversion takes beyond
that (tokenizer, its proof, header); `allowed_s`: twice copy_hash_s and 3 s, the bound for total_s. `peak_mib`: largest
resident set of the converting process, mapped pages included. The repeats are interleaved, medians are reported, and
the last line is one JSON object.

--stock names a llama.cpp source tree; its convert_hf_to_gguf.py is run in a process of its own, with only
`get_vocab_base_pre` replaced (a hash of published vocabularies, which a checkpoint made for a test is not in).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_CONVERT = """
import json, sys, time
from pathlib import Path
from layactl.checkpoint.folder import read_checkpoint
from layactl.convert.convert import convert

first = None
def progress(done, total):
    global first
    first = first or time.perf_counter()
start = time.perf_counter()
convert(Path(sys.argv[1]), Path(sys.argv[2]), progress=progress)
end = time.perf_counter()
checkpoint = read_checkpoint(Path(sys.argv[1]))
hash_start = time.perf_counter()
checkpoint.source_sha256()
hash_s = time.perf_counter() - hash_start
print(json.dumps({"total_s": end - start, "hash_s": hash_s, "tensor_s": hash_s + end - first}))
"""

_STOCK = """
import runpy, sys
tree = sys.argv.pop(1)
sys.path[:0] = [tree, tree + "/gguf-py"]
try:
    from conversion.base import TextModel
except ImportError:
    import convert_hf_to_gguf
    TextModel = convert_hf_to_gguf.TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "mmbert" if len(tokenizer) > 200_000 else "modern-bert"
sys.argv[0] = tree + "/convert_hf_to_gguf.py"
import convert_hf_to_gguf
convert_hf_to_gguf.main()
"""


def copy_and_hash(weights: Path, out: Path) -> float:
    start = time.perf_counter()
    digest = hashlib.sha256()
    with weights.open("rb") as source, out.open("wb") as target:
        while chunk := source.read(16 * 2**20):
            digest.update(chunk)
            target.write(chunk)
        target.flush()
        os.fsync(target.fileno())
    return time.perf_counter() - start


def run(program: str, *args: object) -> tuple[float, float, str]:
    """(wall seconds, peak resident MiB, stdout) of a Python program in a process of its own."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", program, *map(str, args)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"error: the program exited with {child.returncode}")
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return time.perf_counter() - start, usage.ru_maxrss / scale, output


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a conversion against its bare bytes.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--stock", type=Path, help="a llama.cpp source tree")
    options = parser.parse_args()
    weights = options.checkpoint / "model.safetensors"
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.gguf"
        for n in range(options.repeat):
            row = {"copy_hash_s": copy_and_hash(weights, out)}
            _, row["peak_mib"], printed = run(_CONVERT, options.checkpoint, out)
            row |= json.loads(printed)
            row["other_s"] = row["total_s"] - row["tensor_s"]
            row["allowed_s"] = 2 * row["copy_hash_s"] + 3
            row["tensor_ratio"] = row["tensor_s"] / row["copy_hash_s"]
            if options.stock:
                arguments = (options.stock, options.checkpoint, "--outfile", out, "--outtype", "f16")
                row["stock_s"], row["stock_peak_mib"], _ = run(_STOCK, *arguments)
                row["stock_ratio"] = row["stock_s"] / row["total_s"]
            rows.append(row)
            print(f"run {n + 1}: " + "  ".join(f"{key} {value:.2f}" for key, value in row.items()), file=sys.stderr)
    medians = {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}
    print(json.dumps({"checkpoint": options.checkpoint.name, "bytes": weights.stat().st_size, **medians}))


if __name__ == "__main__":
    main()
