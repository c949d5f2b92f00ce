"""Inputs that are no regular files: pipes that hand over a byte at a time, and pipes where a file must stand."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time

import pytest

from layactl.checkpoint.folder import read_checkpoint
from layactl.errors import CheckpointError, GgufError
from layactl.gguf_file.reader import GgufFile

LINES = b"".join(json.dumps({"id": n, "state": f"line {n}"}).encode() + b"\n" for n in range(5))


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzip"])
def test_a_pipe_that_hands_over_its_first_byte_alone_is_read_whole(gguf_for, zipped):
    data = gzip.compress(LINES) if zipped else LINES
    command = ("decide", "-q", "-m", gguf_for("tiny-english"), "--jsonl", "-", "--ask", "noul: Is it a line?")
    with subprocess.Popen(
        [sys.executable, "-m", "layactl", *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(data[:1])
        child.stdin.flush()
        time.sleep(0.5)
        child.stdin.write(data[1:])
        child.stdin.close()
        records = [json.loads(line) for line in child.stdout]
    assert [record["id"] for record in records] == [0, 1, 2, 3, 4]
    assert all("answers" in record for record in records)


@pytest.mark.parametrize("name", ["rl_agent_config.json", "tokenizer/tokenizer.json", "model.safetensors"])
def test_a_pipe_in_place_of_a_checkpoint_file_is_refused_without_waiting(checkpoint, name):
    root = checkpoint()
    (root / name).unlink()
    os.mkfifo(root / name)
    with pytest.raises(CheckpointError):
        read_checkpoint(root)


def test_a_pipe_in_place_of_a_model_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(GgufError, match="not a regular file"):
        GgufFile(tmp_path / "model.gguf")
