"""router.score: the response, recomputed from what debug shows; what does not fit; no candidate sees another."""

from __future__ import annotations

import itertools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_edit import edited, u32
from hypothesis import given
from hypothesis import strategies as st
from router_examples import CARD, CARD_TEXT, CHECK, SMALL_CARD, body, candidate, card

import layactl as package
from layactl.core.calibration import platt
from layactl.core.decision_spec import ROUTER_QUESTION
from layactl.errors import RequestError
from layactl.gguf_file import names
from layactl.router.score import Router

PLATT = {"calibration": {"method": "platt", "a": 1.5, "b": -0.5}}
THREE = body(
    candidate("a", SMALL_CARD),
    candidate("b", card(description="another", checks=[])),
    candidate("c", SMALL_CARD | {"kind": "cloud"}),
    task="Sum the invoices of March and say which are unpaid",
)
LONG_TASK = "Please refund the double charge of last month. " * 40


def ask(router: Router, request: dict[str, Any], **options: Any) -> dict[str, Any]:
    return router.score(router.parse(request), **options)


def refused(router: Router, request: dict[str, Any]) -> RequestError:
    """The refusal, which rendering and scoring share."""
    with pytest.raises(RequestError) as rendering:
        router.render(router.parse(request))
    with pytest.raises(RequestError) as scoring:
        ask(router, request)
    assert rendering.value.to_json() == scoring.value.to_json()
    return scoring.value


# -- the response ----------------------------------------------------------------------------------------------------


def test_the_fields_of_a_response_are_in_order(family: str, model_with):
    model = model_with(family, router=PLATT)
    response = ask(Router(model), THREE)
    assert list(response) == [
        *("object", "model", "scores", "usage", "latency_ms", "timings", "runtime", "warnings"),
    ]
    assert (response["object"], response["model"], response["warnings"]) == ("router.scores", model.name, [])
    assert [score["id"] for score in response["scores"]] == ["a", "b", "c"]
    for score in response["scores"]:
        assert list(score) == ["id", "p_success", "logit", "calibrated", "input_tokens", "truncated_tokens"]
    tokens = sum(score["input_tokens"] for score in response["scores"])
    assert list(response["usage"].items()) == [("input_tokens", tokens), ("output_tokens", 0), ("passes", 3)]
    assert list(response["timings"]) == ["queue_ms", "render_ms", "compute_ms"]
    assert json.loads(json.dumps(response)) == response


def test_the_runtime_says_what_the_scores_depend_on(family: str, model_with):
    model = model_with(family, router=PLATT, plan={"name": "packed"})
    runtime = ask(Router(model), body())["runtime"]
    assert list(runtime.items()) == [
        ("layout", "laya"),
        ("format", "laya-v1"),
        ("plan", "sequential"),
        ("kernels", "onednn"),
        ("precision", "f32"),
        ("spec_sha256", model.spec.sha256),
        ("calibration", "platt"),
    ]
    # Not the temperatures': a router has its own calibration or none.
    uncalibrated = model_with(family, calibration={"method": "temperature", "temperature": {"all": 2}})
    assert ask(Router(uncalibrated, allow_uncalibrated=True), body())["runtime"]["calibration"] == "none"


def test_waiting_time_is_reported_and_counts(model_with):
    response = ask(Router(model_with(router=PLATT)), body(), queue_ms=250.0)
    timings = response["timings"]
    assert timings["queue_ms"] == 250.0
    assert response["latency_ms"] >= 250.0 + timings["render_ms"] + timings["compute_ms"] > 250.0


def test_the_logit_is_the_noul_question_of_a_plain_request(family: str, router_with, model_for):
    """The router adds nothing to the model: the same state and question through systemone give the same logits."""
    router, model = router_with(family), model_for(family)
    rendered = router.render(router.parse(THREE))
    scored = ask(router, THREE, debug=True)["scores"]
    for item, score in zip(rendered["items"], scored, strict=True):
        plain = model.decide(item["model_text"], {"q": dict(ROUTER_QUESTION)}, debug=True)["answers"]["q"]["debug"]
        assert score["debug"]["logits"] == plain["logits"]
        assert score["debug"]["token_ids"] == item["token_ids"] == plain["token_ids"]
        assert score["logit"] == plain["logits"][1] - plain["logits"][0]


def test_debug_is_the_contracts_without_act_logits(family: str, router_with):
    plain = ask(router_with(family), THREE)["scores"]
    for score, bare in zip(ask(router_with(family), THREE, debug=True)["scores"], plain, strict=True):
        debug = score.pop("debug")
        assert score == bare
        assert list(debug) == [
            *("logits", "temperature", "token_ids", "markers", "n_state", "n_state_cut", "options_cut", "head_cut"),
        ]
        assert debug["temperature"] == 1.0
        assert len(debug["token_ids"]) == score["input_tokens"]
        assert len(debug["markers"]) == len(debug["logits"]) == 2


# -- calibration -----------------------------------------------------------------------------------------------------


def test_p_success_is_the_sigmoid_of_the_scaled_logit(family: str, model_with):
    for a, b in ((1.5, -0.5), (-2, 0), (0, 1e308), (1e300, 3), (0, 0)):
        model = model_with(family, router={"calibration": {"method": "platt", "a": a, "b": b}})
        for score in ask(Router(model), THREE)["scores"]:
            assert score["calibrated"] is True
            with np.errstate(over="ignore"):
                expected = 1 / (1 + np.exp(-(np.float64(a) * score["logit"] + np.float64(b))))
            assert score["p_success"] == pytest.approx(expected, rel=1e-12)


@given(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), st.floats(-100, 100))
def test_platt_is_a_sigmoid_everywhere(a: float, b: float, z: float):
    p = platt(a, b, z)
    x = a * z + b
    assert 0 <= p <= 1
    assert p + platt(-a, -b, z) == pytest.approx(1, abs=1e-15)
    if abs(x) < 30:
        assert math.log(p) - math.log1p(-p) == pytest.approx(x, abs=1e-3, rel=1e-9)


def test_without_a_calibration_the_score_must_be_asked_for(family: str, model_with):
    model = model_with(family)
    router = Router(model)
    for refusal in (router.require_calibration, lambda: ask(router, body())):
        with pytest.raises(RequestError) as error:
            refusal()
        assert error.value.to_json() == {
            "code": 501,
            "type": "not_supported_error",
            "reason": "ROUTER_NOT_CALIBRATED",
            "message": error.value.message,
        }
    assert router.render(router.parse(body()))["items"]
    (score,) = ask(Router(model, allow_uncalibrated=True), body())["scores"]
    assert score["calibrated"] is False
    assert score["p_success"] == pytest.approx(1 / (1 + math.exp(-score["logit"])), rel=1e-12)


def test_a_calibration_is_used_also_where_none_is_asked_for(model_with):
    model = model_with(router=PLATT)
    assert ask(Router(model, allow_uncalibrated=True), body())["scores"] == ask(Router(model), body())["scores"]


# -- independence ----------------------------------------------------------------------------------------------------


def numbers(response: dict[str, Any]) -> dict[str, Any]:
    return {score["id"]: score for score in response["scores"]}


def test_a_score_is_bitwise_the_same_whatever_stands_beside_it(family: str, router_with):
    router = router_with(family)
    alone = {
        item["id"]: numbers(ask(router, THREE | {"candidates": [item]}))[item["id"]] for item in THREE["candidates"]
    }
    for count in (2, 3):
        for some in itertools.permutations(THREE["candidates"], count):
            together = numbers(ask(router, THREE | {"candidates": list(some)}))
            assert together == {key: alone[key] for key in together}
            assert list(together) == [item["id"] for item in some]


def test_a_long_neighbour_and_sixteen_of_them_change_nothing(family: str, router_with):
    router = router_with(family, router={"max_card_tokens": 0})
    alone = numbers(ask(router, body(candidate("a"))))["a"]
    others = [candidate(f"c{i}", card(description="x " * i, checks=[])) for i in range(15)]
    assert numbers(ask(router, body(*others, candidate("a"))))["a"] == alone
    assert numbers(ask(router, body(candidate("a"), *others)))["a"] == alone


def test_a_score_repeats_bit_for_bit_also_from_eight_threads(family: str, router_with):
    router = router_with(family)
    requests = [body(candidate("a"), task=f"task {n} " * (1 + n % 5)) for n in range(24)]
    alone = [ask(router, request)["scores"] for request in requests]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda request: ask(router, request)["scores"], requests)) == alone


def test_stop_ends_a_request_between_passes(router_with):
    calls = []

    def stop() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        # Too long to share a pass.
        ask(router_with(), THREE | {"task": "word " * 200}, stop=stop)
    assert len(calls) == 2


# -- the question ----------------------------------------------------------------------------------------------------


def test_the_built_in_question(family: str, router_with):
    router = router_with(family)
    assert router.render(router.parse(body()))["question"] == {
        "type": "noul",
        "instructions": "Will the executor meet the success criterion on this task?",
        "options": ["false: does not meet the criterion", "true: meets the criterion"],
    }


QUESTIONS = {
    "own instructions": ({"instructions": "Ok?"}, ["false: does not meet the criterion", "true: meets the criterion"]),
    "own criteria": (
        {"criteria": {"TRUE": "works", "false": ""}},
        ["false: no, the statement does not hold", "true: works"],
    ),
    "own labels": (
        {"labels": {"false": " no ", "true": "yes"}},
        ["no: does not meet the criterion", "yes: meets the criterion"],
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_specs_question_is_asked(name: str, family: str, router_with):
    fields, options = QUESTIONS[name]
    question = {"type": "noul", "instructions": "Will it work?"} | fields
    router = router_with(family, router={"question": question})
    rendered = router.render(router.parse(body()))["question"]
    assert rendered == {"type": "noul", "instructions": question["instructions"], "options": options}
    assert ask(router, body())["scores"] != ask(router_with(family), body())["scores"]


# -- what does not fit -----------------------------------------------------------------------------------------------


def card_of_tokens(router: Router, count: int) -> dict[str, Any]:
    """A card whose text has this many tokens."""
    for words, end in itertools.product(range(count), ("", "y", "zq")):
        value = SMALL_CARD | {"description": "x " * words + end}
        (item,) = router.render(router.parse(body(candidate(card=value))))["items"]
        if item["card_tokens"] == count:
            return value
    raise AssertionError(count)


def test_a_card_may_have_three_eighths_of_the_sequence(family: str, router_with, model_for):
    limit = model_for(family).limits.max_len * 3 // 8
    assert limit == {"tiny-multilingual": 96, "tiny-english": 72}[family]
    router = router_with(family)
    assert router.render(router.parse(body()))["max_card_tokens"] == limit
    unlimited = router_with(family, router={"max_card_tokens": 0})
    fits, too_long = (card_of_tokens(unlimited, count) for count in (limit, limit + 1))
    assert ask(router, body(candidate(card=fits)))["scores"][0]["truncated_tokens"] == 0
    error = refused(router, body(candidate("a"), candidate("b", too_long)))
    assert (error.reason, error.param, error.code) == ("CARD_TOO_LONG", "candidates[1].card", 422)
    assert f"{limit + 1} tokens; at most {limit}" in error.message
    assert ask(unlimited, body(candidate(card=too_long)))["scores"]


def test_the_specs_card_limit_is_in_force(family: str, router_with):
    unlimited = router_with(family, router={"max_card_tokens": 0})
    (item,) = unlimited.render(unlimited.parse(body()))["items"]
    exact = router_with(family, router={"max_card_tokens": item["card_tokens"]})
    assert ask(exact, body())["scores"]
    below = router_with(family, router={"max_card_tokens": item["card_tokens"] - 1})
    assert refused(below, body()).reason == "CARD_TOO_LONG"


def test_cards_are_counted_as_they_are_read(family: str, model_for, router_with):
    """Escaped text is shorter: the same card passes where control tokens are replaced and not where they are tokens."""
    special = "<eos>" if family == "tiny-multilingual" else "[SEP]"
    value = SMALL_CARD | {"description": f"a{special}b" * 12}
    counts = {}
    for mode in ("mask-to-space", "escape-control"):
        router = router_with(family, special_tokens=mode, router={"max_card_tokens": 0})
        (item,) = router.render(router.parse(body(candidate(card=value))))["items"]
        counts[mode] = item["card_tokens"]
    assert counts["escape-control"] < counts["mask-to-space"]
    limit = {"max_card_tokens": counts["escape-control"]}
    assert refused(router_with(family, router=limit), body(candidate(card=value))).reason == "CARD_TOO_LONG"
    assert ask(router_with(family, special_tokens="escape-control", router=limit), body(candidate(card=value)))[
        "scores"
    ]


def test_a_cut_takes_the_end_of_the_task_and_is_told(family: str, router_with, model_for):
    router, tokenizer = router_with(family), model_for(family).tokenizer
    request = body(candidate("a"), candidate("b", SMALL_CARD | {"kind": "cloud"}), task=LONG_TASK)
    response = ask(router, request, debug=True)
    rendered = router.render(router.parse(request))
    for score, item in zip(response["scores"], rendered["items"], strict=True):
        whole = tokenizer.encode(item["model_text"])
        kept = len(whole) - score["truncated_tokens"]
        assert item["fixed_tokens"] < kept < len(whole)
        assert score["debug"]["token_ids"][-kept - 1 : -1] == whole[:kept]
        assert (item["n_state"], item["n_state_cut"]) == (len(whole), score["truncated_tokens"])
        assert score["input_tokens"] == model_for(family).limits.max_len
    assert [(w["reason"], w["param"]) for w in response["warnings"]] == [("task_truncated", "task")] * 2
    assert response["warnings"] == rendered["warnings"]
    assert response["warnings"][0]["message"].startswith(
        f"candidate 'a': {response['scores'][0]['truncated_tokens']} of {rendered['items'][0]['n_state']} state tokens"
    )


def test_under_error_a_cut_task_is_refused(family: str, router_with):
    request = body(task=LONG_TASK, truncation="error")
    error = refused(router_with(family), request)
    assert (error.reason, error.param, error.code) == ("STATE_TRUNCATED", "task", 422)
    assert ask(router_with(family), body(truncation="error"))["warnings"] == []


def test_card_and_criterion_must_fit_to_the_last_token(family: str, router_with):
    """The task may go whole; of what stands before it no token may."""
    router = router_with(family, router={"max_card_tokens": 0})
    (item,) = router.render(router.parse(body(task="t " * 300)))["items"]
    room = item["n_state"] - item["n_state_cut"]
    seen = set()
    for words, end in itertools.product(range(1, 100), ("", "y", "zq")):
        request = body(candidate("a"), candidate("b"), criterion="x " * words + end, task="t " * 300)
        (state,) = router._states.read(
            ["executor: A\nkind: local\nchecks: none"], request["criterion"], request["task"]
        )
        seen.add(state.fixed_tokens - room)
        if state.fixed_tokens <= room:
            items = router.render(router.parse(request))["items"]
            assert [item["n_state"] - item["n_state_cut"] for item in items] == [room, room]
        else:
            for truncation in ("allow", "error"):
                error = refused(router, request | {"truncation": truncation})
                assert (error.reason, error.param, error.code) == ("CRITERION_TOO_LONG", "candidates[0]", 422)
    assert {-1, 0, 1} < seen


def test_only_the_candidate_that_does_not_fit_is_named(family: str, router_with):
    router = router_with(family, router={"max_card_tokens": 0})
    long = card(description="x " * 400, checks=[])
    error = refused(router, body(candidate("a"), candidate("b"), candidate("c", long), task=LONG_TASK))
    assert (error.reason, error.param) == ("CRITERION_TOO_LONG", "candidates[2]")
    assert "'c'" in error.message


def test_every_card_is_measured_before_any_state(family: str, router_with):
    router = router_with(family)
    long_card = card(description="x " * 400, checks=[])
    request = body(candidate("a"), candidate("b", long_card), criterion="exact " * 400)
    assert refused(router, request).reason == "CARD_TOO_LONG"
    assert refused(router, request | {"candidates": [candidate("a")]}).reason == "CRITERION_TOO_LONG"


LONG_QUESTIONS = {
    "instructions": ({"instructions": "word " * 200}, "instructions_truncated", "PROMPT_TOO_LONG"),
    "criteria": ({"criteria": {"true": "word " * 200, "false": "no"}}, "options_truncated", "OPTIONS_TRUNCATED"),
}


@pytest.mark.parametrize("name", LONG_QUESTIONS)
def test_a_question_of_the_spec_that_does_not_fit_is_told_too(name: str, family: str, router_with):
    fields, warning, reason = LONG_QUESTIONS[name]
    router = router_with(family, router={"question": {"type": "noul", "instructions": "Ok?"} | fields})
    assert [(w["reason"], w["param"]) for w in ask(router, body())["warnings"]] == [(warning, "candidates[0]")]
    error = refused(router, body(truncation="error"))
    assert (error.reason, error.param, error.code) == (reason, "candidates[0]", 422)


def test_lost_option_markers_are_refused_before_the_criterion_is_blamed(gguf_for, tmp_path: Path):
    small = edited(
        gguf_for("tiny-english"), tmp_path / "s.gguf", keys={names.MAX_LEN: u32(24), names.HEAD_MAX_LEN: u32(96)}
    )
    router = Router(package.load(small), allow_uncalibrated=True)
    error = refused(router, body(candidate(card=SMALL_CARD), criterion="c"))
    assert error.reason == "CARD_TOO_LONG"
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"spec_version": 1, "layout": "laya", "router": {"max_card_tokens": 0}}))
    error = refused(Router(package.load(small, spec=spec), allow_uncalibrated=True), body())
    assert (error.reason, error.param, error.code) == ("OPTIONS_TRUNCATED", "candidates[0]", 422)


# -- warnings and values ---------------------------------------------------------------------------------------------


def test_warnings_of_fields_come_before_those_of_cuts(router_with):
    request = body(candidate("a", SMALL_CARD | {"owner": 1}, weight=2), task=LONG_TASK)
    assert [(w["reason"], w["param"]) for w in ask(router_with(), request)["warnings"]] == [
        ("unknown_field", "candidates[0].card.owner"),
        ("unknown_field", "candidates[0].weight"),
        ("task_truncated", "task"),
    ]


def test_the_example_card_is_what_the_model_reads(router_with):
    router = router_with(router={"max_card_tokens": 0})
    (item,) = router.render(router.parse(body(candidate("a", CARD), task="Sum", criterion="Exact")))["items"]
    assert list(item) == [
        *("id", "state", "model_text", "card_tokens", "fixed_tokens"),
        *("token_ids", "markers", "n_state", "n_state_cut", "options_cut", "head_cut"),
    ]
    assert item["state"] == f"{CARD_TEXT}\n\nsuccess criterion: Exact\n\ntask: Sum"


PYTHON_VALUES = {
    "no mapping": ([1], "BODY_NOT_OBJECT", None),
    "surrogate": (body(task="\ud800"), "MALFORMED_JSON", "task"),
    "surrogate in a card": (body(candidate(card=SMALL_CARD | {"name": "\udfff"})), "MALFORMED_JSON", "candidates"),
    "nan": (body(candidate(x=float("nan"))), "UNSUPPORTED_NUMBER", "candidates"),
    "set": (body(candidate(x={1})), "INVALID_REQUEST", "candidates"),
    "huge integer": (
        body(candidate(card=card(checks=[CHECK | {"total": 10**30}]))),
        "UNSUPPORTED_NUMBER",
        "candidates",
    ),
}


@pytest.mark.parametrize("name", PYTHON_VALUES)
def test_python_values_are_held_to_the_rules_of_json(name: str, router_with):
    value, reason, param = PYTHON_VALUES[name]
    with pytest.raises(RequestError) as refusal:
        router_with().parse(value)
    assert (refusal.value.reason, refusal.value.param) == (reason, param)


def test_an_output_that_is_not_finite_is_never_a_score(gguf_for, tmp_path: Path):
    nan = {"scorer.3.bias": np.array([np.nan], dtype=np.float32)}
    broken = edited(gguf_for("tiny-english"), tmp_path / "x.gguf", tensors=nan)
    with pytest.raises(ArithmeticError, match="candidate 'a': the model's output is not finite"):
        ask(Router(package.load(broken), allow_uncalibrated=True), body())
