"""engine.decider: the response body, field by field and in its order, recomputed from what debug shows of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from layactl import Model
from layactl.core import strict_json
from layactl.engine.decider import respond

STATE = {"subject": "Billed twice", "text": "Please refund the second charge."}
QUESTIONS = {
    "topic": {"type": "choice", "instructions": "Topic?", "criteria": {"billing": "payments", "other": None}},
    "rank": {"type": "choice", "instructions": "Rank?", "criteria": [3, 2.5, True, "x"]},
    "severity": {"type": "score", "instructions": "Severity?", "criteria": ["low", {"is": "mid"}, 3]},
    "refund": {"type": "noul", "instructions": "Asks for money back?"},
}


@pytest.fixture(scope="module", params=["tiny-multilingual", "tiny-english"])
def asked(request: pytest.FixtureRequest, model_for: Callable[..., Model]) -> tuple[Model, dict[str, Any]]:
    model = model_for(request.param)
    return model, model.decide(STATE, QUESTIONS, debug=True)


def expected_probabilities(debug: dict[str, Any]) -> np.ndarray:
    z = np.array(debug["logits"], dtype=np.float64) / debug["temperature"]
    exps = np.exp(z - z.max())
    return exps / exps.sum()


def test_the_fields_of_a_response_are_in_order(asked):
    model, response = asked
    assert list(response) == ["model", "answers", "usage", "latency_ms", "timings", "warnings", "runtime"]
    assert list(response["answers"]) == list(QUESTIONS)
    assert response["model"] == model.name
    assert response["warnings"] == []
    assert json.loads(strict_json.dumps(response)) == json.loads(json.dumps(response))


FIELDS = {
    "topic": ["type", "choice", "probabilities", "confidence", "answer_confidence", "action", "debug"],
    "rank": ["type", "choice", "probabilities", "confidence", "answer_confidence", "action", "debug"],
    "severity": ["type", "score", "probabilities", "legend", "confidence", "answer_confidence", "action", "debug"],
    "refund": ["type", "noul", "confidence", "answer_confidence", "action", "debug"],
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_fields_of_an_answer_are_in_order(question: str, asked):
    model, response = asked
    assert list(response["answers"][question]) == FIELDS[question]
    plain = model.decide(STATE, QUESTIONS)["answers"][question]
    assert list(plain) == [field for field in FIELDS[question] if field != "debug"]
    assert plain == {key: value for key, value in response["answers"][question].items() if key != "debug"}


def test_choice_answers(asked):
    for question, keys in (("topic", ["billing", "other"]), ("rank", ["3", "2.5", "true", "x"])):
        answer = asked[1]["answers"][question]
        p = expected_probabilities(answer["debug"])
        assert list(answer["probabilities"]) == keys
        np.testing.assert_allclose(list(answer["probabilities"].values()), p, rtol=1e-12)
        labels = list(QUESTIONS[question]["criteria"])
        # repr: the label comes back as it was given, a number stays a number.
        assert repr(answer["choice"]) == repr(labels[int(p.argmax())])
        entropy = -float((p * np.log(p)).sum())
        assert answer["confidence"] == pytest.approx(1 - entropy / math.log(len(p)), abs=1e-12)
        assert answer["answer_confidence"] == max(answer["probabilities"].values())


def test_score_answers(asked):
    answer = asked[1]["answers"]["severity"]
    p = expected_probabilities(answer["debug"])
    assert answer["score"] == pytest.approx(float((np.arange(3) * p).sum()), rel=1e-12)
    assert list(answer["probabilities"]) == ["0", "1", "2"]
    assert answer["legend"] == {"0": "low", "1": {"is": "mid"}, "2": 3}
    assert answer["answer_confidence"] == max(answer["probabilities"].values())


def test_noul_answers(asked):
    answer = asked[1]["answers"]["refund"]
    p = expected_probabilities(answer["debug"])
    assert answer["noul"] == pytest.approx(float(p[1]), rel=1e-12)
    assert answer["confidence"] == pytest.approx(float(p.max()), rel=1e-12)
    assert answer["answer_confidence"] == pytest.approx(answer["confidence"], rel=1e-12)


def test_probabilities_are_unrounded_doubles_that_sum_to_1(asked):
    for answer in asked[1]["answers"].values():
        if "probabilities" in answer:
            assert math.fsum(answer["probabilities"].values()) == pytest.approx(1.0, abs=1e-15)
            assert any(p != round(p, 10) for p in answer["probabilities"].values())


def test_only_the_act_probability_has_4_digits(asked):
    for answer in asked[1]["answers"].values():
        z = np.array(answer["debug"]["act_logits"], dtype=np.float32)
        exps = np.exp(z - z.max())
        assert list(answer["action"]) == ["act_probability"]
        assert answer["action"]["act_probability"] == round(float(exps[0] / exps.sum()), 4)


def test_debug_shows_what_the_model_read(asked):
    model, response = asked
    special = model.tokenizer.special
    for question, answer in response["answers"].items():
        debug = answer["debug"]
        assert list(debug) == [
            "logits",
            "act_logits",
            "temperature",
            "token_ids",
            "markers",
            "n_state",
            "n_state_cut",
            "options_cut",
            "head_cut",
        ]
        options = 2 if question == "refund" else len(QUESTIONS[question]["criteria"])
        assert len(debug["logits"]) == len(debug["markers"]) == options
        assert debug["token_ids"][0] == special.cls
        assert debug["token_ids"][-1] == special.sep
        assert [n for n, token in enumerate(debug["token_ids"]) if token == special.mask] == debug["markers"]
        state = model.tokenizer.encode(json.dumps(STATE))
        assert debug["token_ids"][-1 - len(state) : -1] == state
        assert (debug["n_state"], debug["n_state_cut"], debug["options_cut"], debug["head_cut"]) == (
            len(state),
            0,
            0,
            0,
        )


@pytest.mark.parametrize("options", range(1, 21))
def test_the_temperature_in_force_is_the_one_the_checkpoint_ships_for_the_option_count(options: int, model_for):
    question = {"type": "choice", "instructions": "?", "criteria": list(range(options))}
    debug = model_for().decide("x", {"q": question}, debug=True)["answers"]["q"]["debug"]
    # choice:11+ ships as 0.1006, below the smallest temperature that is applied.
    shipped = 1.21 if options <= 2 else 1.76 if options <= 5 else 2.2 if options <= 10 else 0.5
    assert debug["temperature"] == shipped


def test_runtime_says_what_the_numbers_depend_on(asked):
    model, response = asked
    runtime = response["runtime"]
    assert list(runtime) == ["layout", "format", "plan", "kernels", "precision", "spec_sha256", "calibration"]
    assert (runtime["layout"], runtime["format"], runtime["plan"]) == ("laya", "laya-v1", "sequential")
    assert (runtime["kernels"], runtime["precision"]) == ("onednn", "f32")
    assert runtime["spec_sha256"] == model.spec.sha256
    calibrated = model.name.startswith("tiny-english")
    assert runtime["calibration"] == ("gguf:laya.temperature" if calibrated else "none")


def test_times_are_milliseconds_that_add_up(asked):
    response = asked[1]
    timings = response["timings"]
    assert list(timings) == ["queue_ms", "render_ms", "compute_ms"]
    assert timings["queue_ms"] == 0.0
    assert 0 < timings["render_ms"] + timings["compute_ms"] <= response["latency_ms"]


def test_no_questions_are_no_answers_and_no_usage(asked):
    model, full = asked
    response = model.decide("x", {})
    assert list(response) == list(full)
    assert response["answers"] == {}
    assert response["usage"] == {"input_tokens": 0, "output_tokens": 0, "evaluated_tokens": 0, "questions": {}}
    assert response["warnings"] == []
    assert response["runtime"] == full["runtime"]


def test_an_answer_does_not_depend_on_the_other_questions(asked):
    model, response = asked
    for question, definition in QUESTIONS.items():
        alone = model.decide(STATE, {question: definition}, debug=True)["answers"][question]
        assert alone == response["answers"][question]


def test_the_mask_text_in_any_text_places_no_marker(asked):
    model, _ = asked
    mask = model.tokenizer.mask_text
    definition = {"type": "choice", "instructions": f"a{mask}b?", "criteria": {f"c{mask}": f"{mask}d", "e": None}}
    debug = model.decide(f"{mask} state {mask}", {"q": definition}, debug=True)["answers"]["q"]["debug"]
    assert debug["token_ids"].count(model.tokenizer.special.mask) == len(debug["markers"]) == 2


def test_stop_is_asked_between_passes_and_ends_the_request(asked):
    model, _ = asked
    calls = []

    class Left(Exception):
        pass

    def stop() -> None:
        calls.append(None)
        if len(calls) == 2:
            raise Left

    # Too long to share a pass.
    request = model.parse({"state": "Please refund the second charge. " * 60, "questions": QUESTIONS})
    with pytest.raises(Left):
        respond(model, request, stop=stop)
    assert len(calls) == 2


def test_waiting_time_is_reported_and_counted(asked):
    model, _ = asked
    response = respond(model, model.parse({"state": STATE, "questions": {}}), queue_ms=1000.0)
    assert response["timings"]["queue_ms"] == 1000.0
    assert response["latency_ms"] >= 1000.0
