"""Blocks take turns, disturbed ones are measured again, and what was measured is on disk whatever ends the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from layactl.bench import run as run_module
from layactl.bench.kpi import read_measurements
from layactl.bench.run import Config, Plan, label_of, measure
from layactl.errors import ModelLoadError, UsageError

from .recorded import ENGINE, REQUESTS, block

A, B = (Config(label, {"kind": "engine", "model": label}) for label in ("a", "b"))


class FakeEngine:
    """Stands in for the processes: gives prepared blocks, and remembers what was asked."""

    def __init__(self, foreign: dict[str, list[float]] | None = None) -> None:
        self.asked: list[str] = []
        self.foreign = foreign or {}
        self.break_at: int | None = None

    def __call__(self, job: dict[str, Any], requests: Any, progress: Any) -> dict[str, Any]:
        self.asked.append(job["model"])
        if self.break_at == len(self.asked):
            raise KeyboardInterrupt
        progress({"event": "loaded"})
        values = self.foreign.get(job["model"], [])
        found = block(10.0, foreign_cores=values.pop(0) if values else 0.0)
        for key in ("cycle", "attempt", "disturbed"):
            del found[key]
        return found | ({"identity": ENGINE} if job["identity"] else {})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(run_module, "spawn_block", fake)
    return fake


def quiet(*event: object) -> None:
    pass


def test_the_order_of_the_configurations_flips_from_cycle_to_cycle(engine: FakeEngine, tmp_path: Path):
    measure([A, B], REQUESTS, Plan(cycles=3), tmp_path / "out", quiet)
    assert "".join(engine.asked) == "abbaab"


def test_a_disturbed_block_is_measured_again_twice_at_most_and_every_attempt_is_kept(
    engine: FakeEngine, tmp_path: Path
):
    engine.foreign = {"a": [0.9, 0.1, 0.9, 0.9, 0.9]}
    measure([A], REQUESTS, Plan(cycles=2, foreign_max=0.25), tmp_path / "out", quiet)
    blocks = json.loads((tmp_path / "out" / "a.json").read_text())["blocks"]
    assert [(b["cycle"], b["attempt"], b["disturbed"] is not None) for b in blocks] == [
        (0, 0, True),
        (0, 1, False),
        (1, 0, True),
        (1, 1, True),
        (1, 2, True),
    ]
    (found,) = read_measurements(tmp_path / "out")
    assert [(b["cycle"], b["attempt"]) for b in found.blocks] == [(0, 1), (1, 2)]


def test_what_was_measured_survives_an_interrupt(engine: FakeEngine, tmp_path: Path):
    engine.break_at = 4
    with pytest.raises(KeyboardInterrupt):
        measure([A, B], REQUESTS, Plan(cycles=2), tmp_path / "out", quiet)
    found = {one.label: one for one in read_measurements(tmp_path / "out")}
    assert {label: len(one.blocks) for label, one in found.items()} == {"a": 1, "b": 2}
    assert not found["a"].record["complete"]
    assert [path.name for path in (tmp_path / "out").iterdir() if path.suffix != ".json"] == []


def test_results_are_never_overwritten(engine: FakeEngine, tmp_path: Path):
    measure([A], REQUESTS, Plan(cycles=1), tmp_path / "out", quiet)
    with pytest.raises(UsageError, match="there already"):
        measure([A], REQUESTS, Plan(cycles=1), tmp_path / "out", quiet)
    with pytest.raises(UsageError, match="one name"):
        measure([B, B], REQUESTS, Plan(cycles=1), tmp_path / "other", quiet)


def test_a_result_says_what_was_measured_where_and_how(engine: FakeEngine, tmp_path: Path):
    measure([A], REQUESTS, Plan(repeat=4, cycles=1), tmp_path / "out", quiet)
    record = json.loads((tmp_path / "out" / "a.json").read_text())
    assert record["complete"] and record["identity"] == ENGINE
    assert record["plan"]["repeat"] == 4
    assert {"cpu", "instruction_sets", "physical_cores", "memory_bytes", "governor", "cgroup"} <= record[
        "machine"
    ].keys()
    assert record["suite"]["groups"] == {"systemone 1q": ["a", "b"], "router N=1": ["r"]}


def test_a_block_that_cannot_run_says_why(tmp_path: Path):
    broken = Config("x", {"kind": "engine", "model": str(tmp_path / "none.gguf"), "name": "x", "threads": 1})
    with pytest.raises(ModelLoadError, match=r"none\.gguf"):
        measure([broken], REQUESTS, Plan(cycles=1), tmp_path / "out", quiet)


@pytest.mark.parametrize(
    "parts, label",
    [(("a", "t1"), "a-t1"), (("a/b c", "x"), "a-b-c-x"), (("..",), "config"), (("\N{SNOWMAN}",), "config")],
)
def test_a_label_is_a_name_that_a_file_can_have(parts: tuple[str, ...], label: str):
    assert label_of(*parts) == label
