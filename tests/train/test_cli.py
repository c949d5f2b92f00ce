"""`layactl train` as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import CHECKPOINTS
from tests.train.data import data_files, decision, write

BASE = str(CHECKPOINTS / "tiny-english")


def arguments(folder: Path, *more: str) -> list[str]:
    train, dev = data_files(folder)
    return ["train", BASE, "--train", str(train), "--dev", str(dev), "-o", str(folder / "run"), *more]


def test_a_run_prints_where_the_checkpoint_is(cli, tmp_path: Path):
    done = cli(*arguments(tmp_path, "--epochs", "1"))
    assert (done.code, done.out) == (0, f"{tmp_path / 'run' / 'model'}\n")
    assert "train: 72 examples" in done.err
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["status"] == "complete"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--epochs", "0"], "error: must be from 1 to 100000 (--epochs)"),
        (["--freeze-encoder"], "error: needs a folder for the encoder's states (--freeze-encoder)"),
        (["--objective", "ppo"], "error: Invalid value for '--objective'"),
        (["--train", ""], "error: the path is empty (--train)"),
    ],
)
def test_wrong_usage_is_one_line_and_leaves_nothing(cli, more: list[str], message: str, tmp_path: Path):
    done = cli(*arguments(tmp_path, *more))
    assert done.code == 2
    assert done.err.splitlines()[-2 if "hint:" in done.err.splitlines()[-1] else -1].startswith(message)
    assert not (tmp_path / "run").exists()


def test_overlapping_splits_are_one_line(cli, tmp_path: Path):
    train, _ = data_files(tmp_path)
    done = cli("train", BASE, "--train", str(train), "--dev", str(train), "-o", str(tmp_path / "run"))
    assert done.code == 1
    assert len(done.error_lines) == 1
    assert "shares its id with the train data" in done.error_lines[0]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("stated", "noted"), [("eval", True), ("fit", False), ("test", False), (None, False)])
def test_training_on_what_calibrations_are_judged_by_is_noted(cli, stated: str | None, noted: bool, tmp_path: Path):
    _, dev = data_files(tmp_path)
    records = [decision("train", number) | {"split": stated} for number in range(8)]
    train = write(tmp_path / "stated.jsonl", records)
    done = cli("train", BASE, "--train", str(train), "--dev", str(dev), "-o", str(tmp_path / "run"), "--epochs", "1")
    assert done.code == 0
    assert ('train: 8 records say "split": "eval"' in " ".join(done.err.split())) == noted


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_run_goes_on(number: int, code: int, tmp_path: Path):
    command = [sys.executable, "-m", "layactl", *arguments(tmp_path, "--epochs", "300", "--patience", "1000")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "--resume goes on" in err
    assert "Traceback" not in err
    assert (tmp_path / "run" / "latest.safetensors").is_file()
    assert not (tmp_path / "run" / "model").exists()


def test_help_needs_no_torch():
    code = "import sys; from layactl.cli.app import main; main(['train', '--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--freeze-encoder" in done.stdout
