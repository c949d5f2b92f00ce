"""Help needs no arithmetic, and what needs SciPy says how to get it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.calib.examples import jsonl
from tests.calib.simulated import answers, halves, record

COMMANDS = ("collect", "fit", "eval", "threshold", "baselines", "report")
HEAVY = ("torch", "numpy", "scipy", "sklearn", "tokenizers", "gguf", "safetensors")
SCRIPT = f"""
import sys
from layactl.cli.app import main
code = main(sys.argv[1:])
sys.stderr.write("heavy:" + " ".join(name for name in {HEAVY!r} if name in sys.modules) + "\\n")
sys.exit(code)
"""


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_loads_nothing_heavy(command: str):
    words = ["calib", *([command] if command else []), "--help"]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "heavy:"


@pytest.fixture
def logits(tmp_path: Path) -> Path:
    import numpy as np

    return jsonl(tmp_path / "logits.jsonl", map(record, halves(answers(np.random.default_rng(0), 600, 1.5))))


@pytest.mark.parametrize("command", ["fit", "threshold", "report"])
def test_without_the_extra_there_is_one_error_with_its_remedy(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, logits: Path, command: str
):
    for module in ("scipy", "scipy.optimize", "scipy.stats"):
        monkeypatch.setitem(sys.modules, module, None)
    done = cli("calib", command, logits, "--resamples", 10) if command != "threshold" else cli("calib", command, logits)
    assert done.code == 2
    assert done.err.splitlines()[-1] == "hint: pip install 'layactl[calib]'"
    assert len(done.error_lines) == 1


def test_judging_one_file_needs_no_extra(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, logits: Path):
    for module in ("scipy", "scipy.optimize", "scipy.stats", "sklearn"):
        monkeypatch.setitem(sys.modules, module, None)
    assert cli("calib", "eval", logits, "--resamples", 10).code == 0
