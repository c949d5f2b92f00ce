"""Two runs on one output: the second is refused, whichever way it starts, and the lines of the first stay whole."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest


@pytest.mark.parametrize("second", [(), ("--resume",)], ids=["new", "resume"])
def test_an_output_that_a_run_is_writing_is_refused_to_another(gguf_for, layactl, tmp_path, second):
    lines, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines.write_text("".join(json.dumps({"id": n, "state": f"line {n}"}) + "\n" for n in range(50)))
    command = ("decide", "-q", "-m", gguf_for("tiny-english"), "--ask", "noul: Is it a line?", "-o", out)
    with subprocess.Popen(
        [sys.executable, "-m", "layactl", *map(str, command), "--jsonl", "/dev/stdin"], stdin=subprocess.PIPE
    ) as first:
        assert first.stdin is not None
        first.stdin.write(lines.read_bytes())
        first.stdin.flush()
        deadline = time.monotonic() + 60
        while (not out.exists() or not out.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        refused = layactl(*command, "--jsonl", lines, *second)
        assert refused.code == 1 and "another run is writing it" in refused.error_lines[0]
        first.stdin.close()
        assert first.wait(60) == 0
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == list(range(50))
    assert layactl(*command, "--jsonl", lines).code == 0
