"""What a server is told is checked before anything is loaded, by flag and by variable alike."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from gguf_edit import edited

from layactl.errors import LayactlError
from layactl.serve.access_log import access_log
from layactl.serve.settings import api_keys, cors_origins

REFUSED: dict[str, tuple[dict[str, str], tuple[str, ...], str]] = {
    "an empty key in the variable": ({"LAYACTL_API_KEY": ""}, (), "no API key"),
    "only a comma": ({"LAYACTL_API_KEY": ","}, (), "no API key"),
    "a passphrase in the variable": ({"LAYACTL_API_KEY": "correct horse"}, (), "without spaces"),
    "a passphrase as a flag": ({}, ("--api-key", "correct horse"), "without spaces"),
    "an origin with a path": ({}, ("--cors-origin", "https://app.example/"), "no origin"),
    "an origin that is a word": ({"LAYACTL_CORS_ORIGIN": "app"}, (), "no origin"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_open_or_break_the_server_is_refused(name: str, cli, gguf_for, monkeypatch: pytest.MonkeyPatch):
    variables, options, word = REFUSED[name]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    done = cli("serve", "-m", gguf_for(), "--port", 0, *options)
    assert done.code == 2
    assert word in done.error_lines[0]


def test_keys_come_from_flags_commas_and_files(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("# ours\n\nthree\n  four  \n")
    assert api_keys(["one,two"], file) == {"one", "two", "three", "four"}
    assert api_keys([], None) == frozenset()
    with pytest.raises(LayactlError):
        api_keys([], Path(os.devnull))


def test_origins_are_those_that_browsers_send():
    given = ["https://a.example,http://localhost:5173", "null"]
    assert cors_origins(given) == {"https://a.example", "http://localhost:5173", "null"}
    assert cors_origins(["*"]) == {"*"}


def test_a_model_whose_output_is_not_finite_does_not_become_ready(layactl, gguf_for, tmp_path: Path):
    broken = edited(gguf_for(), tmp_path / "x.gguf", tensors={"scorer.3.bias": np.array([np.nan], dtype=np.float32)})
    done = layactl("serve", "-m", broken, "--port", 0)
    assert done.code == 1
    assert "not finite" in done.error_lines[0]
    assert "may be damaged" in done.err and "note: ready" not in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_access_log_that_cannot_be_written_is_told_once_and_stops_nothing():
    told: list[str] = []
    write = access_log("/dev/full", told.append)
    for _ in range(3):
        write({"path": "/health"})
    assert len(told) == 1
    assert os.strerror(errno.ENOSPC) in told[0]


def test_a_line_of_the_access_log_is_whole_even_where_a_write_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "log"
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, data[:7]))
    access_log(str(path), lambda message: None)({"path": "/health"})
    assert json.loads(path.read_text())["path"] == "/health"
