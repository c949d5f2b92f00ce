"""A damaged GGUF is refused by name or loads: nothing else, and never at the price of memory it has no right to."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("header_fuzz.py")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
@pytest.mark.parametrize("seed", [20_260_930])
def test_cuts_and_flips_of_the_header_are_refused_or_load(
    family: str, seed: int, gguf_for: Callable[..., Path], tmp_path: Path
):
    whole = gguf_for(family)
    path = Path(shutil.copy(whole, tmp_path / "x.gguf"))
    run = [sys.executable, str(SCRIPT), str(path), str(seed), "200", "1000"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["failures"] == []
    # Both happen often, so neither "refuse everything" nor "load everything" would pass.
    assert result["tried"] > 1150
    assert result["tried"] // 20 < result["tried"] - result["refused"] < result["tried"] // 2
    assert path.read_bytes() == whole.read_bytes()


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
@pytest.mark.parametrize("seed", range(20))
def test_many_more_cuts_and_flips(family: str, seed: int, gguf_for: Callable[..., Path], tmp_path: Path):
    path = Path(shutil.copy(gguf_for(family), tmp_path / "x.gguf"))
    run = [sys.executable, str(SCRIPT), str(path), str(seed), "1000", "10000"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["failures"] == []
