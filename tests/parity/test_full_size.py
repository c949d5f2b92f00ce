"""The published sizes: random checkpoints of both families, converted and held to the reference (minutes, gigabytes).

LAYACTL_FULL_SIZE_DIR names a folder with `multilingual/` and `english/` from fixtures/make_full_size.py, to save
making them anew.
"""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import layactl
from layactl.gguf_file.reader import GgufFile

from .comparison import Comparison
from .golden_file import Outcome
from .request_kinds import Case, Measure, cases, question_count, raw_texts

pytestmark = [pytest.mark.full, pytest.mark.reference]

SHAPES = ("multilingual", "english")
# Besides a state of every length, one or a few requests of the kinds that fill a sequence in other ways.
_KINDS = ("options at the head budget", "many long options", "long instructions", "several questions")
FEWEST_QUESTIONS = 30
# For checkpoints of 0.6 and 0.8 GB; the largest part is the multilingual tokenizer.
MOST_MEMORY = 2**30
_LOADED = """
import sys
import layactl
from layactl.bench.machine import memory
model = layactl.load(sys.argv[1])
found = memory()
print(found["rss"], found["peak"])
"""
_MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


@pytest.fixture(scope="module", autouse=True)
def all_threads() -> Iterator[None]:
    """A model of this size needs every core; the other tests run on one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=SHAPES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("laya")
    if ready := os.environ.get("LAYACTL_FULL_SIZE_DIR"):
        return Path(ready) / request.param
    from checkpoint_factory import write_checkpoint
    from make_full_size import RECIPES

    folder = tmp_path_factory.mktemp("full-size") / request.param
    write_checkpoint(RECIPES[request.param], folder)
    return folder


@pytest.fixture(scope="module")
def asked(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[tuple[Case, Outcome]], dict[str, list[int]]]:
    """Every request and every text with what the reference said; its gigabytes are free again afterwards."""
    from .reference_run import Reference

    reference = Reference(checkpoint, tmp_path_factory.mktemp("reference"))
    requests = [(case, reference.ask(case)) for case in _full_size_cases(reference.measure)]
    return requests, {text: reference.encode(text) for text in raw_texts(reference.measure)}


@pytest.mark.parametrize("outtype", ["f32", "f16"])
def test_a_full_size_model_agrees_with_the_reference(
    outtype: str,
    checkpoint: Path,
    asked: tuple[list[tuple[Case, Outcome]], dict[str, list[int]]],
    tmp_path: Path,
) -> None:
    gc.collect()
    requests, texts = asked
    path = tmp_path / f"{checkpoint.name}-{outtype}.gguf"
    started = time.perf_counter()
    peak = _convert(checkpoint, path, outtype)
    converted = time.perf_counter()
    comparison = Comparison(layactl.load(path)).compare_texts(texts).compare_all(requests)
    resident, highest, largest = _loaded(path)
    print(
        f"{checkpoint.name} {outtype}: loaded {resident / 2**20:.0f} MiB, {highest / 2**20:.0f} at most; "
        f"converted in {converted - started:.1f} s with {peak / 2**20:.0f} MiB at most; "
        f"answered in {time.perf_counter() - converted:.1f} s; {comparison.summary()}"
    )
    path.unlink()
    assert peak < MOST_MEMORY
    assert highest <= 1.2 * resident + largest
    assert [str(difference) for difference in comparison.differences] == []
    assert comparison.questions == question_count([case for case, _ in requests]) >= FEWEST_QUESTIONS


def _full_size_cases(measure: Measure) -> list[Case]:
    """States of every length from none to max_len and beyond, and the golden requests of a few other kinds."""
    found = cases(measure)
    lengths = [case for case in found if case.kind == "state lengths"]
    return lengths + [case for case in found if case.kind in _KINDS and case.golden]


def _convert(checkpoint: Path, path: Path, outtype: str) -> int:
    """Convert in a process of its own; returns the most memory it held, in bytes."""
    command = [sys.executable, "-m", "layactl", "convert", checkpoint, "-o", path, "--outtype", outtype]
    # Through a small process in between: a process counts what its parent held when it was started.
    done = subprocess.run([sys.executable, "-c", _MEASURED, *map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "exactly" not in done.stderr, done.stderr  # the note on weights that the type had to round
    return int(done.stdout) * (1 if sys.platform == "darwin" else 1024)


def _loaded(path: Path) -> tuple[int, int, int]:
    """Bytes that a process holds with the model loaded and at most before, and of the largest tensor that is packed."""
    done = subprocess.run([sys.executable, "-c", _LOADED, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    resident, highest = map(int, done.stdout.split())
    # The table of embeddings stays in the file.
    packed = [tensor for name, tensor in GgufFile(path).tensors.items() if name != "token_embd.weight"]
    return resident, highest, max(4 * math.prod(tensor.shape) for tensor in packed)
