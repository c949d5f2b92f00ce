"""An answer depends on its own state and question alone: not on its neighbours, the threads or the time of asking."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import layactl
from layactl.reporting.identity import host

from .comparison import with_limits
from .conftest import COMMITTED
from .golden_file import golden_path, read_golden
from .request_kinds import Case

# Last-bit differences of float32 after a few layers; the reference itself shows them.
THREAD_TOLERANCE = 1e-5
Outputs = dict[str, tuple[list[float], list[float]]]


@pytest.fixture(params=COMMITTED)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def requests(name: str) -> list[Case]:
    """Every golden request that is answered: all kinds, up to the full length."""
    return [case for case, outcome in read_golden(golden_path(name)).requests if outcome.refusal is None]


def _outputs(model: layactl.Model, case: Case, questions: dict[str, Any] | None = None) -> Outputs:
    """Raw outputs by question; == on them is equality of every bit (no output is NaN, and -0.0 never differs alone)."""
    response = with_limits(model, case.limits).decide(case.state, questions or case.questions, debug=True)
    debug = {question_id: answer["debug"] for question_id, answer in response["answers"].items()}
    return {question_id: (item["logits"], item["act_logits"]) for question_id, item in debug.items()}


def test_the_same_request_gives_the_same_bits(
    name: str, requests: list[Case], model_of: Callable[..., layactl.Model], gguf_of: Callable[..., Path]
) -> None:
    first, second_load = model_of(name), layactl.load(gguf_of(name, "f32"))
    for case in requests:
        once = _outputs(first, case)
        assert _outputs(first, case) == once
        assert _outputs(second_load, case) == once


def test_a_longer_request_before_changes_no_bit(
    name: str, requests: list[Case], model_of: Callable[..., layactl.Model], gguf_of: Callable[..., Path]
) -> None:
    """Whatever a model keeps and grows with use (position tables) gives a short request the same numbers."""
    used = with_limits(layactl.load(gguf_of(name, "f32")), (3000, 100))
    used.decide("word " * 3000, {"q": {"type": "noul", "instructions": "Is it?"}})
    for case in requests:
        assert _outputs(used, case) == _outputs(with_limits(model_of(name), (3000, 100)), case)


def test_an_f16_file_that_holds_the_weights_exactly_gives_the_same_bits(
    name: str, requests: list[Case], model_of: Callable[..., layactl.Model]
) -> None:
    for case in requests:
        assert _outputs(model_of(name, "f16"), case) == _outputs(model_of(name, "f32"), case)


def test_a_question_gives_the_same_bits_beside_any_others(
    name: str, requests: list[Case], model_of: Callable[..., layactl.Model]
) -> None:
    model = model_of(name)
    neighbours = next(case.questions for case in requests if case.kind == "several questions")
    for case in requests:
        together = _outputs(model, case)
        backwards = _outputs(model, case, dict(reversed(case.questions.items())))
        crowd = {**{f"before {key}": item for key, item in neighbours.items()}, **case.questions}
        # Limits made for one case leave no room for another's options.
        crowded = _outputs(model, case, crowd) if case.limits is None else together
        for question_id, item in case.questions.items():
            alone = _outputs(model, case, {question_id: item})[question_id]
            assert together[question_id] == backwards[question_id] == crowded[question_id] == alone


# Where oneDNN multiplies with AVX-512 it does so row by row, whatever the number of threads; elsewhere nobody measured.
BITWISE = "avx512f" in host()["instruction_sets"]


@pytest.mark.parametrize(("kernels", "bitwise"), [("onednn", BITWISE), ("reference", False)])
@pytest.mark.parametrize("count", [2, 3])
def test_another_number_of_threads_moves_no_output_beyond_rounding(
    name: str,
    count: int,
    kernels: str,
    bitwise: bool,
    requests: list[Case],
    gguf_of: Callable[..., Path],
    threads: Callable[[int], None],
) -> None:
    """Plain torch is not bitwise: where it splits an erf between threads, the elements at the seam go its scalar way.

    Each number of threads is bitwise repeatable.
    """
    model = layactl.load(gguf_of(name, "f32"), kernels=kernels)
    # A few of all kinds: on a busy machine threads wait for each other far longer than they compute.
    requests = requests[::6]
    threads(1)
    single = [_outputs(model, case) for case in requests]
    threads(count)
    for case, expected in zip(requests, single, strict=True):
        found = _outputs(model, case)
        assert _outputs(model, case) == found
        assert found == expected or not bitwise, case.kind
        for question_id, parts in expected.items():
            for mine, theirs in zip(found[question_id], parts, strict=True):
                assert mine == pytest.approx(theirs, rel=0, abs=THREAD_TOLERANCE), (case.kind, question_id)


def test_requests_at_the_same_time_give_the_same_bits(
    name: str, requests: list[Case], model_of: Callable[..., layactl.Model]
) -> None:
    model = model_of(name)
    expected = [_outputs(model, case) for case in requests]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda case: _outputs(model, case), requests)) == expected
