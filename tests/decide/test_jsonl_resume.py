"""decide --jsonl --resume: after any interruption the output becomes what an uninterrupted run writes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NOUL = {"type": "noul", "instructions": "Urgent?"}
ASK = ("--ask", "urgent=noul: Urgent?")


def rows(count: int) -> list[bytes]:
    """Input lines: every third is refused, in turn blank, malformed and without a state."""
    refused = [b"", b"{", b'{"id": "r"}']
    return [
        refused[n // 3 % 3] if n % 3 == 2 else json.dumps({"id": f"line {n}", "state": f"message {n}"}).encode()
        for n in range(count)
    ]


def untimed(line: bytes) -> dict[str, Any]:
    return {key: value for key, value in json.loads(line).items() if key not in ("latency_ms", "timings")}


@dataclass
class Run:
    """A run of some lines: where its files are, and the command that makes or continues its output."""

    folder: Path
    model: Path
    cli: Callable[..., Any]

    @property
    def source(self) -> Path:
        return self.folder / "in.jsonl"

    @property
    def out(self) -> Path:
        return self.folder / "out.jsonl"

    @property
    def sidecar(self) -> Path:
        return self.folder / "out.meta.json"

    def arguments(self, *more: object) -> list[str]:
        files = ("-m", self.model, "--jsonl", self.source, "-o", self.out)
        return ["decide", *map(str, (*files, *(more or ASK)))]

    def start(self, *more: object) -> Any:
        return self.cli(*self.arguments(*more))

    def resume(self, *more: object) -> Any:
        return self.cli(*self.arguments(*(more or ASK)), "--resume")


@pytest.fixture
def run(cli, gguf_for, tmp_path: Path) -> Run:
    made = Run(tmp_path, gguf_for("tiny-multilingual"), cli)
    made.source.write_bytes(b"\n".join(rows(12)) + b"\n")
    return made


@pytest.fixture
def whole(run: Run) -> list[bytes]:
    """The output of an uninterrupted run, which `run` then has."""
    assert run.start().code == 3
    return run.out.read_bytes().splitlines(keepends=True)


# The length of what an interruption left: so many whole lines, and so much of the next.
CUTS = {
    "nothing": (0, 0),
    "the first byte": (0, 1),
    "one line": (1, 0),
    "one line and a torn one": (1, 20),
    "a refused line": (3, 0),
    "half a refused line": (2, 30),
    "all but the last line end": (11, -1),
    "everything": (12, 0),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_resumed_output_is_that_of_an_uninterrupted_run(name: str, run: Run, whole: list[bytes]):
    kept, torn = CUTS[name]
    left = b"".join(whole[:kept]) + (whole[kept][:torn] if torn else b"")
    run.out.write_bytes(left)
    done = run.resume()
    assert (done.code, done.out) == (3, "")
    lines = run.out.read_bytes().splitlines(keepends=True)
    # What was whole is kept to the byte: it was neither written again nor computed again.
    assert lines[:kept] == whole[:kept]
    assert [untimed(line) for line in lines] == [untimed(line) for line in whole]
    assert ("note: resumed after" in done.err) == (kept > 0)
    assert "note: 12 lines, 4 refused\n" in done.err


def test_resuming_twice_changes_nothing(run: Run, whole: list[bytes]):
    for _ in range(2):
        assert run.resume().code == 3
        assert run.out.read_bytes() == b"".join(whole)


def test_the_exit_code_counts_the_lines_of_the_earlier_run(run: Run):
    run.source.write_bytes(b"\n".join([b"", *rows(2)]) + b"\n")
    assert run.start().code == 3
    lines = run.out.read_bytes().splitlines(keepends=True)
    # Only answered lines are left to do; the refused one is in what is kept.
    run.out.write_bytes(lines[0])
    assert run.resume().code == 3


def test_resume_without_an_output_starts_one(run: Run):
    done = run.resume()
    assert done.code == 3
    assert len(run.out.read_bytes().splitlines()) == 12
    assert run.sidecar.exists()


def test_without_resume_a_run_starts_over(run: Run, whole: list[bytes]):
    run.out.write_bytes(b"".join(whole[:5]))
    assert run.start().code == 3
    assert [untimed(line) for line in run.out.read_bytes().splitlines()] == [untimed(line) for line in whole]


def test_the_sidecar_says_what_the_lines_depend_on(run: Run, whole: list[bytes]):
    meta = json.loads(run.sidecar.read_bytes())
    assert meta["format"] == "layactl-decide-run/1"
    assert meta["input"] == {"path": str(run.source), "sha256": hashlib.sha256(run.source.read_bytes()).hexdigest()}
    assert meta["model"] == {"path": str(run.model), "sha256": hashlib.sha256(run.model.read_bytes()).hexdigest()}
    assert meta["options"]["questions"] == {"urgent": NOUL}


def test_files_that_only_moved_are_the_same_run(run: Run, whole: list[bytes]):
    run.out.write_bytes(b"".join(whole[:4]))
    moved = Run(run.folder / "moved", run.folder / "moved" / "model.gguf", run.cli)
    moved.folder.mkdir()
    for path in (run.source, run.out, run.sidecar):
        shutil.move(path, moved.folder / path.name)
    shutil.copy(run.model, moved.model)
    # The model's name is part of every answer, so it has to stay.
    shutil.move(moved.model, moved.folder / run.model.name)
    moved.model = moved.folder / run.model.name
    assert moved.resume().code == 3
    assert [untimed(line) for line in moved.out.read_bytes().splitlines()] == [untimed(line) for line in whole]


# -- refused ---------------------------------------------------------------------------------------------------------


def another_model(run: Run, gguf_for: Callable[..., Path]) -> None:
    run.model = gguf_for("tiny-english")


def another_out_type(run: Run, gguf_for: Callable[..., Path]) -> None:
    run.model = gguf_for("tiny-multilingual", "f16")


DIFFERENCES: dict[str, tuple[Callable[..., object], tuple[str, ...], str]] = {
    "a changed line": (
        lambda run, _: run.source.write_bytes(run.source.read_bytes().replace(b"4", b"6")),
        ASK,
        "input",
    ),
    "a line more": (lambda run, _: run.source.write_bytes(run.source.read_bytes() + b"{}\n"), ASK, "input"),
    "another model": (another_model, ASK, "model"),
    "another out type": (another_out_type, ASK, "model"),
    "other questions": (lambda run, _: None, ("--ask", "urgent=noul: Really urgent?"), "options"),
    "another question id": (lambda run, _: None, ("--ask", "u=noul: Urgent?"), "options"),
    "truncation": (lambda run, _: None, (*ASK, "--truncation", "error"), "options"),
    "debug": (lambda run, _: None, (*ASK, "--debug"), "options"),
    "rounding": (lambda run, _: None, (*ASK, "--round", "3"), "options"),
    "another version of the file": (
        lambda run, _: run.sidecar.write_bytes(run.sidecar.read_bytes().replace(b"run/1", b"run/0")),
        ASK,
        "format",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_an_output_of_another_run_is_not_continued(name: str, run: Run, whole: list[bytes], gguf_for):
    change, options, field = DIFFERENCES[name]
    run.out.write_bytes(b"".join(whole[:5]) + b"torn")
    change(run, gguf_for)
    before = run.out.read_bytes()
    done = run.resume(*options)
    assert (done.code, done.out) == (2, "")
    (error,) = done.error_lines
    assert f"cannot be resumed: it was started with different {field}" in error
    assert "hint: without --resume the output starts over, and its lines are lost" in done.err
    assert run.out.read_bytes() == before


BROKEN: dict[str, tuple[Callable[[Run], object], str]] = {
    "no sidecar": (lambda run: run.sidecar.unlink(), "sidecar"),
    "a sidecar that is no JSON": (lambda run: run.sidecar.write_bytes(b"{"), "sidecar"),
    "a sidecar that is a list": (lambda run: run.sidecar.write_bytes(b"[]"), "sidecar"),
    "an empty sidecar": (lambda run: run.sidecar.write_bytes(b""), "sidecar"),
    "a line that is no record": (
        lambda run: run.out.write_bytes(b"not json\n" + run.out.read_bytes()),
        "line 1 is not a record of a run",
    ),
    "a blank line": (lambda run: run.out.write_bytes(run.out.read_bytes() + b"\n"), "line 13 is not a record of a run"),
    "a number": (lambda run: run.out.write_bytes(b"3\n"), "line 1 is not a record of a run"),
    "a list": (lambda run: run.out.write_bytes(b"[]\n"), "line 1 is not a record of a run"),
    "a text": (lambda run: run.out.write_bytes(b'"error"\n'), "line 1 is not a record of a run"),
    "more lines than the input": (
        lambda run: run.out.write_bytes(run.out.read_bytes() + b'{"id": 13}\n'),
        "holds 13 lines, but the input only 12",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_output_that_cannot_be_continued_is_left_alone(name: str, run: Run, whole: list[bytes]):
    damage, fragment = BROKEN[name]
    damage(run)
    before = run.out.read_bytes()
    done = run.resume()
    assert done.code in (1, 2)
    assert done.out == ""
    (error,) = done.error_lines
    assert fragment in error
    assert run.out.read_bytes() == before


def test_a_stream_cannot_be_resumed(run: Run, whole: list[bytes]):
    before = run.out.read_bytes()
    done = run.cli("decide", "-m", run.model, "--jsonl", "-", "-o", run.out, "--resume", stdin=run.source.read_bytes())
    assert done.code == 2
    assert "--resume needs an input file" in done.error_lines[0]
    assert run.out.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("--jsonl", "x", "--resume"), "--resume needs -o"),
        (("text", "--resume", *ASK), "-o and --resume go with --jsonl"),
        (("text", "-o", "x", *ASK), "-o and --resume go with --jsonl"),
    ],
)
def test_resume_goes_with_an_input_and_an_output(arguments: tuple[str, ...], fragment: str, cli, gguf_for):
    done = cli("decide", "-m", gguf_for(), *arguments)
    assert done.code == 2
    assert fragment in done.error_lines[0]


# -- kill -9 ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_run_that_was_killed_loses_nothing_and_repeats_nothing(run: Run, tmp_path: Path):
    count = 600
    run.source.write_bytes(b"\n".join(rows(count)) + b"\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "layactl", *run.arguments()], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while not run.out.exists() or run.out.stat().st_size < 20_000:
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    left = run.out.read_bytes()
    kept = left.count(b"\n")
    assert 0 < kept < count
    done = run.resume()
    assert done.code == 3
    lines = run.out.read_bytes().splitlines(keepends=True)
    assert b"".join(lines).startswith(left[: left.rindex(b"\n") + 1])
    records = [json.loads(line) for line in lines]
    # Refused lines that name no id carry their number, which proves that none is missing or there twice.
    assert len(records) == count
    for n, (record, row) in enumerate(zip(records, rows(count), strict=True), start=1):
        assert record["id"] == (json.loads(row)["id"] if row.startswith(b'{"id"') else n)
        assert ("error" in record) == (n % 3 == 0)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_ctrl_c_ends_a_run_between_lines_and_it_can_be_resumed(run: Run):
    run.source.write_bytes(b"\n".join(rows(600)) + b"\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "layactl", *run.arguments()],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # A test run in the background may have it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not run.out.exists() or run.out.stat().st_size < 5_000:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "error: interrupted"
    assert run.out.read_bytes().endswith(b"\n")
    assert run.resume().code == 3
    assert run.out.read_bytes().count(b"\n") == 600
