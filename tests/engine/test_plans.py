"""Plans: packed and sequential give the same answers, groups keep to their limit, the router stays sequential."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import layactl
from layactl.engine import forward
from layactl.engine.groups import alone_or_shared, packed
from layactl.errors import UsageError
from layactl.layouts.interface import Cuts, TokenSequence
from layactl.reporting.identity import host

LONG = "The parcel came late and the invoice was wrong, please help. " * 6
QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Asks for money back?"},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "technical", "other"]},
    "one": {"type": "choice", "instructions": "Which?", "criteria": ["this"]},
    "urgency": {"type": "score", "instructions": "How urgent? " * 5, "criteria": ["low", "medium", "high"]},
}


def outputs(model: layactl.Model, state: Any) -> dict[str, tuple[list[float], list[float]]]:
    answers = model.decide(state, QUESTIONS, debug=True)["answers"]
    return {key: (answer["debug"]["logits"], answer["debug"]["act_logits"]) for key, answer in answers.items()}


@pytest.mark.parametrize("kernels", ["reference", "onednn"])
@pytest.mark.parametrize("limit", [1, 100, 2048])
def test_packed_answers_are_the_sequential_ones(
    kernels: str, limit: int, family: str, gguf_for: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(forward, "PACKED_TOKENS", limit)
    path = gguf_for(family)
    apart, packed = (layactl.load(path, kernels=kernels, plan=plan) for plan in ("sequential", "packed"))
    for state in ("short", LONG, [LONG, "x"]):
        for key, (logits, act_logits) in outputs(packed, state).items():
            expected = outputs(apart, state)[key]
            # There a row of a packed product does not depend on the other rows.
            if kernels == "onednn" and "avx512f" in host()["instruction_sets"]:
                assert (logits, act_logits) == expected
            assert logits == pytest.approx(expected[0], abs=2e-5)
            assert act_logits == pytest.approx(expected[1], rel=1e-5, abs=2e-5)


def sequence(tokens: int, options: int = 2) -> TokenSequence:
    return TokenSequence([0] * tokens, list(range(options)), 0, Cuts(tokens, 0, 0, 0, 0, options, None, None))


@pytest.mark.parametrize(
    ("lengths", "limit", "groups"),
    [
        ([], 10, []),
        ([3, 3, 3, 3], 10, [[3, 3, 3], [3]]),
        ([5, 5, 1], 10, [[5, 5], [1]]),
        ([20, 3, 20], 10, [[20], [3], [20]]),
        ([3, 3], 0, [[3], [3]]),
    ],
)
def test_groups_are_neighbours_within_the_limit(lengths: list[int], limit: int, groups: list[list[int]]):
    made = packed([sequence(length) for length in lengths], limit)
    assert [[lengths[n] for n in group.indices] for group in made] == groups
    assert not any(group.fill for group in packed([sequence(length) for length in lengths], limit))


def independent(rows: int) -> bytes:
    return b"the same"


def of_one_block(rows: int) -> bytes:
    """Kernels that take another path from 81 rows on."""
    return b"small" if rows < 81 else b"large"


SHARED = {
    "nothing": ([], independent, []),
    "one": ([30], independent, [((0,), 0)]),
    "two are filled up": ([30, 40], independent, [((0, 1), 26)]),
    "as many as fit": ([90] * 6, independent, [((0, 1, 2, 3, 4), 30), ((5,), 0)]),
    "a long one stays alone": ([30, 97, 40], independent, [((1,), 0), ((0, 2), 26)]),
    "nothing is known": ([30, 40], lambda rows: None, [((0,), 0), ((1,), 0)]),
    "a group takes another path than its members": ([32, 32, 32], of_one_block, [((0, 1), 0), ((2,), 0)]),
    "a member takes another path than the group": ([90, 40], of_one_block, [((0,), 0), ((1,), 0)]),
}


@pytest.mark.parametrize("case", SHARED)
def test_short_sequences_share_a_pass_where_no_row_changes(case: str):
    lengths, row_bits, expected = SHARED[case]
    made = list(alone_or_shared([sequence(length) for length in lengths], row_bits))
    assert [(group.indices, group.fill) for group in made] == expected


def test_rows_of_the_last_layer_count_too():
    """Three of each sequence and two of the filling."""
    rows_of_eight = {8: b"other"}
    made = list(alone_or_shared([sequence(40), sequence(40)], lambda rows: rows_of_eight.get(rows, b"the same")))
    assert [group.indices for group in made] == [(0,), (1,)]


def test_a_filling_is_no_answer(gguf_for: Callable[..., Path], family: str):
    """Questions that share a pass get the bits that each of them gets alone."""
    model = layactl.load(gguf_for(family))
    alone = {
        key: model.decide("short", {key: QUESTIONS[key]}, debug=True)["answers"][key]
        for key in ("refund", "team", "one")
    }
    passes: list[int] = []
    encode = model.forward._encode
    model.forward._encode = lambda ids, *rest: passes.append(len(ids)) or encode(ids, *rest)  # type: ignore
    together = model.decide("short", {key: QUESTIONS[key] for key in alone}, debug=True)["answers"]
    assert together == alone
    if model.forward.kernels == "onednn" and "avx512f" in host()["instruction_sets"]:
        assert passes == [4]  # the filling is the fourth


def test_answers_say_which_plan_made_them_and_the_router_is_always_sequential(gguf_for: Callable[..., Path]):
    from layactl.router.score import Router

    model = layactl.load(gguf_for("tiny-english"), plan="packed")
    assert model.decide("s", QUESTIONS)["runtime"]["plan"] == "packed"
    router = Router(model, allow_uncalibrated=True)
    cards = [{"schema": "atomic.executor-card/1", "name": name, "kind": "local"} for name in ("One", "Two")]
    body = {"task": "t", "criterion": "c", "candidates": [{"id": card["name"], "card": card} for card in cards]}
    response = router.score(router.parse(body))
    assert response["runtime"]["plan"] == "sequential"
    alone = layactl.load(gguf_for("tiny-english"))
    assert response["scores"] == Router(alone, allow_uncalibrated=True).score(router.parse(body))["scores"]


def test_an_unknown_plan_is_refused(gguf_for: Callable[..., Path]):
    with pytest.raises(UsageError, match="no plan is called 'joint'"):
        layactl.load(gguf_for("tiny-english"), plan="joint")


def test_the_plan_of_a_spec_is_used_unless_another_is_asked_for(gguf_for: Callable[..., Path], tmp_path: Path):
    spec = tmp_path / "spec.json"
    spec.write_text('{"spec_version": 1, "layout": "laya", "plan": {"name": "packed"}}')
    path = gguf_for("tiny-english")
    assert layactl.load(path, spec=spec).forward.plan == "packed"
    assert layactl.load(path, spec=spec, plan="sequential").forward.plan == "sequential"


def test_the_command_takes_a_plan(cli: Callable[..., Any], gguf_for: Callable[..., Path]):
    arguments = ("decide", "-q", "-m", gguf_for("tiny-english"), "text", "--ask", "noul: Is it?")
    assert '"plan": "packed"' in cli(*arguments, "--plan", "packed").out
    assert cli(*arguments, "--plan", "joint").code == 2
