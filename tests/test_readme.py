"""The README's console blocks, run as they stand: what it shows is what happens.

`python tests/test_readme.py` rewrites the shown output after a deliberate change.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
_BLOCK = re.compile(r"(?<=```console\n)(\$ .*?)(?=```)", re.DOTALL)
_TIMES = re.compile(r'("(?:latency_ms|queue_ms|render_ms|compute_ms)": )[0-9.e-]+')


def _run_block(block: str) -> str:
    """The block with each command's real output under it."""
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    shown = []
    # A terminal of fixed width, and this environment's commands first.
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        shown.append(f"$ {command}\n{done.stdout}")
    return "".join(shown)


def _without_times(text: str) -> str:
    return _TIMES.sub(r"\g<1>...", text)


def test_every_readme_command_prints_what_the_readme_shows():
    (ROOT / "build").mkdir(exist_ok=True)
    blocks = _BLOCK.findall(README.read_text(encoding="utf-8"))
    assert len(blocks) >= 8
    for block in blocks:
        assert _without_times(_run_block(block)) == _without_times(block)


if __name__ == "__main__":
    (ROOT / "build").mkdir(exist_ok=True)
    README.write_text(_BLOCK.sub(lambda match: _run_block(match[0]), README.read_text(encoding="utf-8")), "utf-8")
