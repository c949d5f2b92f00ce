"""decide --server: the output of a local run, from a server's answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layactl.client.spawned_server import spawned_server

ASK = ("--ask", "q=noul: Urgent?", "--ask", "t=choice: Team? a|b|c", "--ask", "s=score: How bad? low|mid|high")
_TIMES = re.compile(r'("(?:latency_ms|queue_ms|render_ms|compute_ms)": )[0-9.e+-]+')
CARD = {"schema": "atomic.executor-card/1", "name": "Qwen", "kind": "local"}
ROUTE = {"id": "r", "task": "Add up", "criterion": "Exact", "candidates": [{"id": "a/b", "card": CARD}]}
LINES: list[Any] = [
    {"id": "plain", "state": "Where is my parcel?", "gold": {"q": True}},
    {
        "state": ["first turn", {"role": "user", "text": "second"}],
        "questions": {"n": {"type": "noul", "instructions": "?"}},
    },
    {"id": "no state"},
    {"id": "refused", "state": "x", "questions": {"n": {"type": "riddle", "instructions": "?"}}},
    ROUTE,
    {"id": "long", "state": "word " * 900, "truncation": "error"},
    {"id": 7, "state": 1.5},
]


def without_times(text: str) -> str:
    return _TIMES.sub(r"\1...", text)


def test_a_single_answer_is_that_of_a_local_run(cli, gguf_for, served_for: Callable[..., str], family: str):
    state = ("--state", json.dumps({"subject": "Invoice 4711", "total": 12.5, "lines": ["a", "b"]}))
    local = cli("decide", "-q", "-m", gguf_for(family), *state, *ASK)
    remote = cli("decide", "-q", "--server", served_for(family), *state, *ASK)
    assert local.code == remote.code == 0
    assert without_times(remote.out) == without_times(local.out)


@pytest.mark.parametrize("options", [("--format", "table"), ("--round", "3"), ("--debug",)], ids=lambda o: o[0])
def test_its_options_work_alike(cli, gguf_for, served_for: Callable[..., str], options: tuple[str, ...]):
    local = cli("decide", "-q", "-m", gguf_for(), "Billed twice", *ASK, *options)
    remote = cli("decide", "-q", "--server", served_for(), "Billed twice", *ASK, *options)
    assert (remote.code, without_times(remote.out)) == (0, without_times(local.out))


def test_a_refusal_is_the_same_error(cli, gguf_for, served_for: Callable[..., str]):
    question = ("--ask", "noul: Urgent?", "--truncation", "error")
    local = cli("decide", "-q", "-m", gguf_for(), "word " * 900, *question)
    remote = cli("decide", "-q", "--server", served_for(), "word " * 900, *question)
    assert (remote.code, remote.out, remote.err) == (local.code, local.out, local.err)
    assert local.code == 1


def test_a_jsonl_run_is_the_same_line_by_line(cli, gguf_for, served_for: Callable[..., str], tmp_path: Path):
    source = tmp_path / "in.jsonl"
    lines = [json.dumps(line) for line in LINES]
    source.write_text("\n".join([*lines, "", "not JSON", '{"state": NaN}']) + "\n")
    local = cli("decide", "-q", "-m", gguf_for(), "--jsonl", source, *ASK)
    remote = cli("decide", "-q", "--server", served_for(), "--jsonl", source, *ASK)
    assert local.code == remote.code == 3
    assert without_times(remote.out) == without_times(local.out)
    assert len(remote.out.splitlines()) == len(LINES) + 3


def test_a_run_goes_on_where_it_stopped_and_only_on_the_same_server(
    cli, served_for: Callable[..., str], tmp_path: Path
):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(json.dumps(line) for line in LINES) + "\n")
    run = ("decide", "-q", "--jsonl", source, "-o", out, *ASK)
    assert cli(*run, "--server", served_for()).code == 3
    whole = out.read_bytes()
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]) + b'{"id": "torn')
    assert cli(*run, "--server", served_for(), "--resume").code == 3
    assert without_times(out.read_text()) == without_times(whole.decode())
    other = cli(*run, "--server", served_for("tiny-multilingual"), "--resume")
    assert other.code == 2
    assert "model" in other.err or "runtime" in other.err


def test_a_run_is_not_continued_with_another_model_of_the_same_name(cli, gguf_for, tmp_path: Path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(json.dumps(line) for line in LINES) + "\n")
    for n, outtype in enumerate(("f32", "f16")):
        with spawned_server(gguf_for("tiny-english", outtype), ["--alias", "model"]) as server:
            resume = ("--resume",) if n else ()
            done = cli("decide", "-q", "--jsonl", source, "-o", out, *ASK, "--server", server.url, *resume)
        assert done.code == (2 if n else 3)
    assert "model" in done.error_lines[0]


def test_a_server_that_goes_away_ends_the_run_and_refuses_no_line(cli, gguf_for, tmp_path: Path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps(LINES[0]) + "\n")
    with spawned_server(gguf_for()) as server:
        url = server.url
    done = cli("decide", "-q", "--jsonl", source, "-o", out, *ASK, "--server", url)
    assert done.code == 1
    assert "cannot be reached" in done.error_lines[0]
    assert not out.exists()


def test_a_wrong_key_ends_the_run(cli, gguf_for, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(LINES[0]) + "\n")
    with spawned_server(gguf_for(), ["--api-key", "right,spare"]) as server:
        ask = ("decide", "-q", "--jsonl", source, *ASK, "--server", server.url)
        refused = cli(*ask, "--api-key", "wrong")
        assert (refused.code, refused.out) == (1, "")
        assert "UNAUTHORIZED" in refused.err
        assert cli(*ask, "--api-key", "spare").code == 0
        monkeypatch.setenv("LAYACTL_API_KEY", "right")
        assert cli(*ask).code == 0


USAGE = {
    "a model too": (("-m", "x.gguf"), "--server"),
    "threads": (("--threads", "1"), "--server"),
    "kernels": (("--kernels", "reference"), "--server"),
    "a type of weights": (("--outtype", "f32"), "--server"),
    "an uncalibrated router": (("--allow-uncalibrated",), "--server"),
}


@pytest.mark.parametrize("name", USAGE)
def test_what_is_the_servers_to_decide_is_not_asked_here(cli, name: str):
    options, word = USAGE[name]
    done = cli("decide", "--server", "http://127.0.0.1:9", "text", *ASK, *options)
    assert done.code == 2
    assert word in done.error_lines[0]


def test_debug_needs_a_server_that_gives_it(cli, gguf_for):
    with spawned_server(gguf_for()) as server:
        done = cli("decide", "--server", server.url, "text", *ASK, "--debug")
    assert done.code == 1
    assert "debug" in done.error_lines[0]
