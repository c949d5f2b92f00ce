"""layactl.load and Model: the Python API, from one thread and from many."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType as Kind
from gguf_edit import array, edited

import layactl
from layactl import Model
from layactl.errors import GgufError, RequestError, UsageError
from layactl.gguf_file import names

NOUL = {"type": "noul", "instructions": "Urgent?"}
QUESTIONS = {
    "urgent": NOUL,
    "topic": {"type": "choice", "instructions": "Topic?", "criteria": ["billing", "other", "spam"]},
}


def untimed(response: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in response.items() if key not in ("latency_ms", "timings")}


def test_the_public_names():
    assert layactl.__all__ == ["Model", "__version__", "load"]
    assert all(hasattr(layactl, name) for name in layactl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = layactl.nothing


@pytest.mark.parametrize("kind", [str, Path])
def test_load_takes_a_path_or_its_text(kind: type, gguf_for: Callable[..., Path]):
    path = gguf_for()
    model = layactl.load(kind(path))
    assert isinstance(model, Model)
    assert model.name == path.name.removesuffix(".gguf")


def test_load_gives_the_digest_of_the_checkpoint_and_notes_clamped_temperatures(model_for):
    english, multilingual = model_for("tiny-english"), model_for("tiny-multilingual")
    assert len(english.source_sha256) == 64
    assert english.source_sha256 != multilingual.source_sha256
    assert [note for note in english.notes if "0.1006 of choice with 11+ options" in note] == english.notes
    assert multilingual.notes == []


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_load_refuses_an_impossible_number_of_threads(threads: int, gguf_for):
    with pytest.raises(UsageError, match="between 1 and 1024"):
        layactl.load(gguf_for(), threads=threads)


def test_load_of_a_missing_file_names_it(tmp_path: Path):
    with pytest.raises(GgufError) as error:
        layactl.load(tmp_path / "none.gguf")
    assert str(tmp_path / "none.gguf") in str(error.value)


def test_the_same_request_gives_the_same_numbers_every_time(family: str, model_for):
    model = model_for(family)
    first = untimed(model.decide("Billed twice", QUESTIONS, debug=True))
    assert all(untimed(model.decide("Billed twice", QUESTIONS, debug=True)) == first for _ in range(3))


def test_f16_storage_of_the_fixtures_changes_no_number(family: str, model_for):
    # Every weight of the two checkpoints fits f16 exactly.
    wide = model_for(family, "f32").decide("Billed twice", QUESTIONS, debug=True)
    half = model_for(family, "f16").decide("Billed twice", QUESTIONS, debug=True)
    assert half["answers"] == wide["answers"]


# -- decide_many -----------------------------------------------------------------------------------------------------


def test_decide_many_answers_in_order_and_each_as_if_alone(model_for):
    model = model_for()
    requests = [{"state": f"message {n}", "questions": QUESTIONS} for n in range(5)]
    together = [untimed(response) for response in model.decide_many(requests)]
    assert together == [untimed(model.decide(**request)) for request in requests]


BAD_REQUESTS = {
    "no mapping": ([1], "BODY_NOT_OBJECT"),
    "no state": ({"questions": QUESTIONS}, "INVALID_REQUEST"),
    "bad question": ({"state": "x", "questions": {"q": {"type": "x"}}}, "UNKNOWN_QUESTION_TYPE"),
    "nan": ({"state": float("nan"), "questions": QUESTIONS}, "UNSUPPORTED_NUMBER"),
    "does not fit": ({"state": "x " * 500, "questions": QUESTIONS, "truncation": "error"}, "STATE_TRUNCATED"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_decide_many_yields_the_error_of_a_bad_request_and_goes_on(name: str, model_for):
    bad, reason = BAD_REQUESTS[name]
    good = {"state": "x", "questions": {"q": NOUL}}
    first, refused, last = model_for().decide_many([good, bad, good])
    assert isinstance(refused, RequestError)
    assert refused.reason == reason
    assert isinstance(first, dict)
    assert first["answers"] == last["answers"]


def test_decide_many_is_lazy(model_for):
    endless = ({"state": f"message {n}", "questions": {"q": NOUL}} for n in itertools.count())
    assert len(list(itertools.islice(model_for().decide_many(endless), 3))) == 3


# -- threads ---------------------------------------------------------------------------------------------------------


def test_eight_threads_get_the_answers_of_one(family: str, model_for):
    model = model_for(family)
    requests = [
        {"state": f"message {n} " * (1 + n % 7), "questions": QUESTIONS, "truncation": ("allow", "error")[n % 2]}
        for n in range(64)
    ]
    requests[13] = {"state": None, "questions": QUESTIONS}

    def ask(request: dict[str, Any]) -> dict[str, Any]:
        try:
            return untimed(model.decide(**request, debug=True))
        except RequestError as error:
            return error.to_json()

    alone = [ask(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, requests))
    assert together == alone
    assert [n for n, answer in enumerate(alone) if "reason" in answer] == [13]


# -- values JSON does not have ---------------------------------------------------------------------------------------

NO_JSON = {
    "set state": ({1, 2}, {}, "INVALID_REQUEST", "state"),
    "bytes state": (b"x", {}, "INVALID_REQUEST", "state"),
    "array state": (np.zeros(3), {}, "INVALID_REQUEST", "state"),
    "numpy integer": ({"n": np.int64(3)}, {}, "INVALID_REQUEST", "state"),
    "path": ({"file": Path("x")}, {}, "INVALID_REQUEST", "state"),
    "tuple as a key": ({("a", "b"): 1}, {}, "INVALID_REQUEST", "state"),
    "nan": ([float("nan")], {}, "UNSUPPORTED_NUMBER", "state"),
    "huge integer": (10**30, {}, "UNSUPPORTED_NUMBER", "state"),
    "surrogate": ("\ud800", {}, "MALFORMED_JSON", "state"),
    "surrogate in instructions": ("x", {"q": NOUL | {"instructions": "\udcff"}}, "MALFORMED_JSON", "questions"),
    "set of labels": (
        "x",
        {"q": {"type": "choice", "instructions": "?", "criteria": {"a"}}},
        "INVALID_REQUEST",
        "questions",
    ),
    "tuple of levels": (
        "x",
        {"q": {"type": "score", "instructions": "?", "criteria": ("a", "b")}},
        "UNSUPPORTED_CRITERIA_VALUE",
        "questions.q.criteria",
    ),
    "infinite description": (
        "x",
        {"q": {"type": "choice", "instructions": "?", "criteria": {"a": float("inf")}}},
        "UNSUPPORTED_NUMBER",
        "questions",
    ),
    "one answer key for two Python labels": (
        "x",
        {"q": {"type": "choice", "instructions": "?", "criteria": {1: "a", "1": "b"}}},
        "UNSUPPORTED_CRITERIA_VALUE",
        "questions.q.criteria",
    ),
    "None as a label": (
        "x",
        {"q": {"type": "choice", "instructions": "?", "criteria": {None: "a"}}},
        "UNSUPPORTED_CRITERIA_VALUE",
        "questions.q.criteria",
    ),
}


@pytest.mark.parametrize("name", NO_JSON)
def test_a_python_value_that_is_no_json_is_refused(name: str, model_for):
    state, questions, reason, param = NO_JSON[name]
    with pytest.raises(RequestError) as refusal:
        model_for().decide(state, questions)
    assert (refusal.value.reason, refusal.value.param) == (reason, param)


def test_tuples_and_other_key_types_read_as_json_writes_them(model_for):
    model = model_for()
    state = {"a": (1, 2), 3: "x", True: None}
    plain = json.loads(json.dumps(state))
    assert model.decide(state, {"q": NOUL})["answers"] == model.decide(plain, {"q": NOUL})["answers"]
    labels = {"type": "choice", "instructions": "?", "criteria": {1: "one", 2.5: "two", False: None}}
    answer = model.decide("x", {"q": labels})["answers"]["q"]
    assert list(answer["probabilities"]) == ["1", "2.5", "false"]
    assert answer["choice"] in labels["criteria"]


def test_an_output_that_is_not_finite_is_never_an_answer(gguf_for, tmp_path: Path):
    broken = edited(gguf_for(), tmp_path / "x.gguf", tensors={"scorer.3.bias": np.array([np.nan], dtype=np.float32)})
    with pytest.raises(ArithmeticError, match="not finite"):
        layactl.load(broken).decide("x", {"q": NOUL})


def test_a_temperature_beyond_the_clamp_is_noted(gguf_for, tmp_path: Path):
    hot = {names.TEMPERATURE: array([9.0, 1.0, 1.0], Kind.FLOAT32)}
    model = layactl.load(edited(gguf_for("tiny-multilingual"), tmp_path / "x.gguf", keys=hot))
    assert len(model.notes) == 1
    assert "temperature 9 of choice" in model.notes[0]
    debug = model.decide("x", {"q": QUESTIONS["topic"]}, debug=True)["answers"]["q"]["debug"]
    assert debug["temperature"] == 5.0


def test_decide_many_goes_on_after_an_output_that_is_not_finite(model_for, monkeypatch):
    model = model_for("tiny-english")
    real = model.forward.run
    runs = iter(range(3))

    def run(sequences, stop):
        outputs = real(sequences, stop)
        if next(runs) == 1:
            outputs = [dataclasses.replace(output, logits=[float("nan")] * len(output.logits)) for output in outputs]
        return outputs

    monkeypatch.setattr(model.forward, "run", run)
    request = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "ok?"}}}
    first, second, third = model.decide_many([request] * 3)
    assert "answers" in first and "answers" in third
    assert isinstance(second, RequestError) and (second.reason, second.code) == ("INTERNAL", 500)


def test_a_question_id_that_is_no_text_is_refused(model_for):
    with pytest.raises(RequestError) as refusal:
        model_for("tiny-english").decide("x", {1: {"type": "noul", "instructions": "ok?"}})
    assert (refusal.value.reason, refusal.value.param) == ("INVALID_REQUEST", "questions")
