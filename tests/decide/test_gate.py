"""`--min-confidence`: one more field in each answer, and only where somebody asked for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ASKS = ("--ask", "refund=noul: Asks for money back?", "--ask", "team=choice: Which team? billing|technical|other")


def gate_file(path: Path, **fields: Any) -> Path:
    gate = {
        "format": "layactl.act-gate/1",
        "kind": "decision",
        "calibration": "gguf:laya.temperature",
        "gates": [{"type": "noul", "options": "2", "certified": True, "min_confidence": 0.0}],
    }
    path.write_text(json.dumps(gate | fields))
    return path


def answers(done: Any) -> dict[str, Any]:
    assert done.code == 0, done.err
    return json.loads(done.out)["answers"]


def test_answers_say_whether_to_act_and_change_in_nothing_else(cli: Callable[..., Any], gguf_for: Callable[..., Path]):
    plain = answers(cli("decide", "-m", gguf_for(), "Billed twice.", *ASKS))
    threshold = plain["refund"]["answer_confidence"]
    gated = answers(cli("decide", "-m", gguf_for(), "Billed twice.", *ASKS, "--min-confidence", repr(threshold)))
    for question_id, answer in gated.items():
        # The last field, decided by the unrounded confidence: at the threshold an answer acts.
        assert list(answer) == [*plain[question_id], "act"]
        assert answer.pop("act") is (answer["answer_confidence"] >= threshold)
        assert answer == plain[question_id]
    assert gated.keys() == plain.keys()


@pytest.mark.parametrize(("threshold", "acts"), [("0", True), ("1", False)])
def test_everything_or_nothing_can_be_acted_on(
    cli: Callable[..., Any], gguf_for: Callable[..., Path], threshold: str, acts: bool
):
    found = answers(
        cli("decide", "-m", gguf_for(), "Billed twice.", *ASKS, "--min-confidence", threshold, "--round", 2)
    )
    assert {answer["act"] for answer in found.values()} == {acts}


def test_a_gate_acts_where_it_is_certified_and_nowhere_else(
    tmp_path: Path, cli: Callable[..., Any], gguf_for: Callable[..., Path], model_for: Callable[..., Any]
):
    gate = gate_file(tmp_path / "gate.json", source_sha256=model_for().source_sha256)
    found = answers(cli("decide", "-m", gguf_for(), "Billed twice.", *ASKS, "--min-confidence", gate))
    assert (found["refund"]["act"], found["team"]["act"]) == (True, False)


def test_a_gate_of_another_calibration_or_checkpoint_is_refused(
    tmp_path: Path, cli: Callable[..., Any], gguf_for: Callable[..., Path], model_for: Callable[..., Any]
):
    own = {"calibration": "gguf:laya.temperature", "source_sha256": model_for().source_sha256}
    assert answers(
        cli("decide", "-m", gguf_for(), "x", *ASKS, "--min-confidence", gate_file(tmp_path / "own.json", **own))
    )
    for other in ({"calibration": "another"}, {"source_sha256": "another"}, {"source_sha256": None}):
        gate = gate_file(tmp_path / "other.json", **(own | other))
        done = cli("decide", "-m", gguf_for(), "x", *ASKS, "--min-confidence", gate)
        assert (done.code, done.out) == (2, "")
        assert "was certified with" in done.error_lines[0]


def test_a_gate_for_routers_is_refused(tmp_path: Path, cli: Callable[..., Any], gguf_for: Callable[..., Path]):
    done = cli(
        "decide", "-m", gguf_for(), "x", *ASKS, "--min-confidence", gate_file(tmp_path / "gate.json", kind="router")
    )
    assert done.code == 2 and "is a gate for router scores" in done.error_lines[0]


@pytest.mark.parametrize("value", ["1.5", "nan", "none.json"])
def test_a_confidence_that_is_none_is_one_line(cli: Callable[..., Any], gguf_for: Callable[..., Path], value: str):
    done = cli("decide", "-m", gguf_for(), "x", *ASKS, "--min-confidence", value)
    assert done.code in (1, 2) and len(done.error_lines) == 1


def test_the_table_shows_it(cli: Callable[..., Any], gguf_for: Callable[..., Path]):
    with_it = cli("decide", "-m", gguf_for(), "x", *ASKS, "--format", "table", "--min-confidence", "0")
    assert "act" in with_it.out and "yes" in with_it.out
    assert "act" not in cli("decide", "-m", gguf_for(), "x", *ASKS, "--format", "table").out


def test_lines_say_it_router_lines_do_not_and_a_resume_with_another_gate_is_refused(
    tmp_path: Path, cli: Callable[..., Any], gguf_for: Callable[..., Path]
):
    card = {"schema": "atomic.executor-card/1", "name": "A", "kind": "local"}
    lines = [
        {"id": 1, "state": "x"},
        {"id": 2, "task": "t", "criterion": "c", "candidates": [{"id": "a", "card": card}]},
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = (
        "decide",
        "-m",
        gguf_for(),
        "--jsonl",
        source,
        *ASKS,
        "--allow-uncalibrated",
        "-q",
        "-o",
        tmp_path / "out.jsonl",
    )
    assert cli(*run, "--min-confidence", "0.2").code == 0
    first, second = (json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines())
    assert all(answer["act"] for answer in first["answers"].values())
    assert "act" not in second["scores"][0]
    assert cli(*run, "--min-confidence", "0.2", "--resume").code == 0
    other = cli(*run, "--min-confidence", "0.3", "--resume")
    assert other.code == 2 and "options.gate" in other.error_lines[0]
    assert cli(*run, "--resume").code == 2
