"""Whatever a file holds, reading it gives records or one clear error."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layactl.calib.bootstrap import Bootstrap
from layactl.calib.calibrator import from_fit, recorded
from layactl.calib.evaluation import Selection, evaluate
from layactl.calib.logits import read_logits
from layactl.errors import LayactlError
from layactl.labelled.decisions import read_decisions
from layactl.labelled.labelled_file import read_labelled
from layactl.labelled.outcomes import read_outcomes
from layactl.reporting.act_gate import read_gate
from tests.calib.examples import candidate, decision, outcomes
from tests.calib.simulated import answers, fit_of, halves, logits_file, record

FIT = fit_of(halves(answers(np.random.default_rng(0), 400, 1.5))).to_json()
GATE = {
    "format": "layactl.act-gate/1",
    "kind": "decision",
    "calibration": "none",
    "gates": [{"type": "choice", "options": "3-5", "certified": True, "min_confidence": 0.9}],
}


def read_and_judge(path: Path) -> None:
    found = read_logits(path)
    evaluate(found, Selection(recorded(found)), Bootstrap(2)).to_json()


def fit_of_file(path: Path) -> None:
    items = answers(np.random.default_rng(0), 2, 1.0)
    from_fit(path, logits_file(items)).temperature(items[0])


def gate_of_file(path: Path) -> None:
    read_gate(str(path)).acts("q", "choice", 4, 0.9)


READERS: dict[str, tuple[Callable[[Path], Any], Any]] = {
    "decisions": (read_decisions, decision(lang="en", group="g", split="fit")),
    "outcomes": (read_outcomes, outcomes(candidates=[candidate(logit=1.5)])),
    "labelled": (read_labelled, decision()),
    "logits": (read_and_judge, record(halves(answers(np.random.default_rng(0), 1, 1.0))[0])),
    "scores": (
        read_and_judge,
        outcomes(candidates=[candidate(logit=1.5)]) | {"engine": {"router_calibration": [1, 0]}},
    ),
    "fit": (fit_of_file, FIT),
    "gate": (gate_of_file, GATE),
}
ODD = st.sampled_from(
    [None, True, 0, -1, 1e308, 2**63, "", "x", "\u0000", [], [[]], {}, {"": None}, "1e999", ["a"] * 30]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inside for place in places(child, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_an_odd_value_anywhere_is_read_or_refused(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
):
    read, sound = READERS[name]
    sound = json.loads(json.dumps(sound))
    place = data.draw(st.sampled_from(places(sound)))
    path = tmp_path_factory.getbasetemp() / f"{name}.json"
    path.write_text(json.dumps(replaced(sound, place, data.draw(ODD))) + "\n")
    with contextlib.suppress(LayactlError):
        read(path)


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_any_bytes_are_read_or_refused(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory):
    read, sound = READERS[name]
    whole = json.dumps(sound).encode()
    at = data.draw(st.integers(0, len(whole)))
    path = tmp_path_factory.getbasetemp() / f"{name}.bytes"
    path.write_bytes(whole[:at] + data.draw(st.binary(max_size=4)) + whole[at + data.draw(st.integers(0, 8)) :])
    with contextlib.suppress(LayactlError):
        read(path)


@pytest.mark.parametrize("name", READERS)
def test_a_sound_file_reads_and_a_folder_is_refused(name: str, tmp_path: Path):
    read, sound = READERS[name]
    (tmp_path / "sound.json").write_text(json.dumps(sound) + "\n")
    read(tmp_path / "sound.json")
    with pytest.raises(LayactlError):
        read(tmp_path)
