"""Start-up is a contract: what needs no model loads none of the heavy packages."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

HEAVY = ("torch", "numpy", "transformers", "laya", "tokenizers", "gguf", "safetensors")
SCRIPT = f"""
import sys
from layactl.cli.app import main
try:
    code = main(sys.argv[1:])
finally:
    sys.stderr.write("heavy:" + " ".join(name for name in {HEAVY!r} if name in sys.modules) + "\\n")
sys.exit(code)
"""

COMMANDS: dict[str, tuple[list[str], int]] = {
    "help": (["--help"], 0),
    "short help": (["-h"], 0),
    "version": (["--version"], 0),
    "presets": (["presets"], 0),
    "one preset": (["presets", "triage"], 0),
    "convert help": (["convert", "--help"], 0),
    "decide help": (["decide", "--help"], 0),
    "serve help": (["serve", "--help"], 0),
    "asking a server that is not there": (["decide", "--server", "http://127.0.0.1:9", "x", "--ask", "noul: Hm?"], 1),
    "tokenize help": (["tokenize", "--help"], 0),
    "tokenizer help": (["tokenizer", "--help"], 0),
    "verify help": (["tokenizer", "verify", "--help"], 0),
    "no command": ([], 2),
    "an unknown command": (["bogus"], 2),
    "an unknown option": (["decide", "--bogus"], 2),
    "a missing option": (["decide", "text"], 2),
    "an unknown preset": (["presets", "none"], 2),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_needs_no_model_loads_nothing_heavy(name: str):
    arguments, code = COMMANDS[name]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1] == "heavy:"


def test_completion_in_the_shell_loads_nothing_heavy():
    asked = {"_LAYACTL_COMPLETE": "complete_bash", "COMP_WORDS": "layactl deci", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, env=os.environ | asked
    )
    assert done.stdout.split() == ["decide"]
    assert done.stderr.splitlines()[-1] == "heavy:"


def test_the_package_loads_nothing_heavy_until_it_is_used():
    script = f"import sys, layactl; print(layactl.__version__, [name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "0.1.0 []\n"


def test_the_version_is_that_of_the_distribution(layactl):
    assert layactl("--version").out == f"layactl {version('layactl')}\n"
