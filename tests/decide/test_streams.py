"""Inputs that are no regular files: pipes that hand over a byte at a time, and pipes where a file must stand."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

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


def test_a_file_is_read_ahead_and_never_by_more_than_a_few_lines():
    from layactl.decide.jsonl import _WINDOW_LINES, _prepared, _Row

    read: list[int] = []

    def lines() -> Iterator[tuple[int, bytes]]:
        for number in range(1, 101):
            read.append(number)
            yield number, b""

    rows = _prepared(lines(), lambda number, line: _Row(number, number, ValueError()), _WINDOW_LINES)
    for number, row in enumerate(rows, start=1):
        assert row.number == number
        assert len(read) <= number + _WINDOW_LINES
    assert len(read) == 100


def test_a_stream_is_answered_line_by_line():
    from layactl.decide.jsonl import _prepared, _Row

    read: list[int] = []

    def lines() -> Iterator[tuple[int, bytes]]:
        for number in (1, 2, 3):
            read.append(number)
            yield number, b""

    for row in _prepared(lines(), lambda number, line: _Row(number, number, ValueError()), 0):
        assert read[-1] == row.number
