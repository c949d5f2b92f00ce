"""decide --jsonl: memory does not grow with the number of lines, nor with the length of one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Runs the command on one input after the other and prints the peak memory after each, in bytes.
SCRIPT = """
import re, sys
from pathlib import Path
from layactl.cli.app import main
model, out, *inputs = sys.argv[1:]
for path in inputs:
    code = main(["decide", "-q", "-m", model, "--ask", "q=noul: Urgent?", "--jsonl", path, "-o", out])
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    print(code, int(peak[1]) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_stays_the_same_over_many_lines(gguf_for: Callable[..., Path], tmp_path: Path):
    answered = json.dumps({"state": "a message of a few words"}).encode() + b"\n"
    refused = b'{"id": "x", "state": null}\n{\n\n'
    warm, few, many, long = (tmp_path / f"{name}.jsonl" for name in ("warm", "few", "many", "long"))
    warm.write_bytes(answered * 20 + refused * 10)
    few.write_bytes(answered * 20 + refused * 660)
    many.write_bytes(answered * 40 + refused * 26_660)
    # One line of 40 MB, refused without ever being held.
    long.write_bytes(b'{"state": "' + b"x" * 40_000_000 + b'"}\n')
    files = [str(path) for path in (gguf_for(), tmp_path / "out.jsonl", warm, few, many, long)]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *files], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    codes, peaks = zip(*(map(int, row.split()) for row in done.stdout.splitlines()), strict=True)
    assert codes == (3, 3, 3, 3)
    _, after_few, after_many, after_long = peaks
    # 78,000 more lines at only 256 bytes kept of each would show as 20 MB; loading a model again leaves a few behind.
    assert after_many - after_few < 10_000_000
    assert after_long - after_many < 8_000_000
