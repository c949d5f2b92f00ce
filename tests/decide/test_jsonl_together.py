"""Lines that are computed together: each gets the bits that it gets alone, in its own place."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import layactl
from layactl.core import strict_json
from layactl.decide.inputs import LineSource
from layactl.decide.jsonl import LineOptions, RunCount, run
from layactl.decide.local import LocalAnswering

QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Asks for money back?"},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "technical", "other"]},
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["low", "medium", "high", "now"]},
}
CARD = {"schema": "atomic.executor-card/1", "name": "One", "kind": "local"}
OPTIONS = LineOptions(questions=None, truncation="allow", debug=True, digits=None, allow_uncalibrated=True)


def line(number: int, draw: random.Random) -> bytes:
    kind = draw.random()
    if kind < 0.1:
        return b"{not json"
    if kind < 0.2:
        body: dict[str, Any] = {"task": "t " * draw.randint(1, 40), "criterion": "c"}
        body["candidates"] = [{"id": "one", "card": CARD}]
    else:
        chosen = draw.sample(sorted(QUESTIONS), draw.randint(1, 3))
        words = draw.choice([3, 20, 60, 150]) + draw.randint(0, 9)
        body = {"state": "please refund it " * words, "questions": {key: QUESTIONS[key] for key in chosen}}
    return strict_json.dumps({"id": number, **body}).encode()


def numbers(record: dict[str, Any]) -> Any:
    return {key: value for key, value in record.items() if key not in ("latency_ms", "timings")}


def answered(answering: Any, path: Path) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    with LineSource(str(path)) as source:
        run(
            answering,
            source,
            lambda text: out.append(numbers(strict_json.loads_strict(text))),
            OPTIONS,
            count=RunCount(),
        )
    return out


@pytest.fixture
def answering(gguf_for: Callable[..., Path], family: str) -> LocalAnswering:
    return LocalAnswering(layactl.load(gguf_for(family)), debug=True, allow_uncalibrated=True)


def test_a_line_among_others_is_answered_as_it_is_alone(answering: LocalAnswering, tmp_path: Path):
    draw = random.Random(0)
    lines = [line(number, draw) for number in range(80)]
    (tmp_path / "all.jsonl").write_bytes(b"\n".join(lines))
    together = answered(answering, tmp_path / "all.jsonl")
    assert len(together) == len(lines)
    for number, text in enumerate(lines):
        (tmp_path / "one.jsonl").write_bytes(text)
        (alone,) = answered(answering, tmp_path / "one.jsonl")
        if "error" in alone:
            alone |= {"line": number + 1, "id": alone["id"] if together[number]["id"] != number + 1 else number + 1}
        assert together[number] == alone


@pytest.mark.parametrize(("plan", "shared"), [("sequential", True), ("packed", False)])
def test_only_plan_sequential_lets_lines_share_passes(
    plan: str, shared: bool, gguf_for: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = layactl.load(gguf_for("tiny-english"), plan=plan)
    asked: list[int] = []
    compute = model.forward.run

    def counted(sequences: Sequence[Any], *rest: Any) -> Any:
        asked.append(len(sequences))
        return compute(sequences, *rest)

    monkeypatch.setattr(model.forward, "run", counted)
    body = strict_json.dumps({"state": "please", "questions": QUESTIONS}).encode()
    (tmp_path / "all.jsonl").write_bytes(b"\n".join([body] * 4))
    assert len(answered(LocalAnswering(model), tmp_path / "all.jsonl")) == 4
    assert asked == ([12] if shared else [3] * 4)


class Failing(LocalAnswering):
    """Computes nothing that holds a certain request."""

    def __init__(self, model: layactl.Model) -> None:
        super().__init__(model)
        self.counts: list[int] = []

    def compute(self, prepared: Sequence[Any]) -> list[Any]:
        self.counts.append(len(prepared))
        if any("poison" in each.request.state_text for each in prepared):
            raise RuntimeError("no memory")
        return super().compute(prepared)


def test_a_pass_that_fails_costs_the_line_whose_fault_it_is(gguf_for: Callable[..., Path], tmp_path: Path):
    states = ["fine", "poison", "fine too"]
    bodies = [{"state": state, "questions": {"refund": QUESTIONS["refund"]}} for state in states]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(strict_json.dumps(body).encode() for body in bodies))
    failing = Failing(layactl.load(gguf_for("tiny-english")))
    out = answered(failing, tmp_path / "in.jsonl")
    assert ["error" in record for record in out] == [False, True, False]
    assert out[1]["error"]["reason"] == "INTERNAL"
    assert failing.counts == [3, 1, 1, 1]
