"""layactl against the golden files: what the reference said once, checked where it is not installed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layactl import Model

from .comparison import ACT_TOLERANCE, ANSWER_STEP, LOGIT_TOLERANCE, Comparison
from .conftest import COMMITTED, FIXTURES
from .golden_file import Golden, checkpoint_sha256, golden_path, read_golden

LARGEST_FILE = 300_000
FEWEST_REQUESTS = 60


@pytest.fixture(params=COMMITTED)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("outtype", ["f32", "f16"])
def test_every_golden_number_is_met(name: str, outtype: str, model_of: Callable[..., Model]) -> None:
    golden = read_golden(golden_path(name))
    comparison = Comparison(model_of(name, outtype)).compare_golden(golden)
    print(f"{name} {outtype}: {comparison.summary()}")
    assert [str(difference) for difference in comparison.differences] == []
    refused = sum(outcome.refusal is not None for _, outcome in golden.requests)
    assert (comparison.refusals, len(golden.requests) >= FEWEST_REQUESTS) == (refused, True)
    assert comparison.questions == sum(len(outcome.questions) for _, outcome in golden.requests)


def test_the_golden_file_is_small_and_belongs_to_the_committed_checkpoint(name: str) -> None:
    """A new fixture needs new golden numbers: python fixtures/make_golden.py."""
    assert read_golden(golden_path(name)).sha256 == checkpoint_sha256(FIXTURES / name)
    assert golden_path(name).stat().st_size < LARGEST_FILE


def test_a_golden_file_reads_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    golden = read_golden(golden_path(name))
    golden.write(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == golden_path(name).read_bytes()


@pytest.mark.reference
def test_the_script_writes_the_committed_file_up_to_tolerance(name: str, tmp_path: Path) -> None:
    pytest.importorskip("laya")
    from make_golden import make_golden

    made, kept = make_golden(FIXTURES / name, tmp_path), read_golden(golden_path(name))
    assert _exact_parts(made) == _exact_parts(kept)
    tolerances = {"logits": LOGIT_TOLERANCE, "act_logits": ACT_TOLERANCE, "answer": ANSWER_STEP * (1 + 1e-9)}
    for (_, new), (case, old) in zip(made.requests, kept.requests, strict=True):
        for question_id, expected in old.questions.items():
            for part, tolerance in tolerances.items():
                found = getattr(new.questions[question_id], part), getattr(expected, part)
                assert _close(*found, tolerance), (case.kind, question_id, part, found)


def _exact_parts(golden: Golden) -> Any:
    """All but the numbers that differ between machines and the versions that made them."""
    requests = [
        (
            (case.kind, case.state, case.questions, case.limits),
            (outcome.refusal, outcome.usage, outcome.state_tokens),
            {key: (expected.ids, expected.markers, expected.options) for key, expected in outcome.questions.items()},
        )
        for case, outcome in golden.requests
    ]
    return golden.checkpoint, golden.sha256, requests, golden.texts


def _close(found: Any, expected: Any, tolerance: float) -> bool:
    """Equal but for floats, which may differ by `tolerance` of the larger one or of 1."""
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(found, expected, rel_tol=0, abs_tol=tolerance * max(abs(found), abs(expected), 1.0))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_close(found[k], expected[k], tolerance) for k in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(
            _close(a, b, tolerance) for a, b in zip(found, expected, strict=True)
        )
    return bool(found == expected)
