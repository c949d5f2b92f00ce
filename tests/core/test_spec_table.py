"""core.spec_parser: which specs are read, as what, and the field that a refused one names.

The same tables go through a stamped GGUF for a sample, and every refused spec through `spec set`, which must not take
what the loader would not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_edit import edited
from gguf_edit import text as text_value

import layactl
from layactl.core.calibration import Calibration
from layactl.core.decision_spec import ROUTER_QUESTION, DecisionSpec
from layactl.core.spec_parser import default_spec_text, parse_spec
from layactl.engine.stamp import set_spec
from layactl.errors import SpecError
from layactl.gguf_file import names
from layactl.layouts.laya import LAYA

BASE = {"spec_version": 1, "layout": "laya"}
SHIPPED = Calibration("gguf:laya.temperature", {"noul": {"1-2": 1.43, "*": 1.12}})
QUESTION = {"type": "noul", "instructions": "Will it work?"}
FULL_TEMPERATURES = {
    "noul": {"2": 1.37},
    "choice": {"2": 1.2, "3-5": 1.45, "6-10": 1.6, "11+": 1.8},
    "score": {"*": 1.3},
}
EXAMPLE = {
    "spec_version": 1,
    "model_id": "atomic/router-laya",
    "model_version": "1.0.0",
    "layout": "laya",
    "input_contract": "laya-router-v1",
    "special_tokens": "escape-control",
    "limits": {"max_options": 20, "max_candidates": 16},
    "calibration": {
        "method": "temperature",
        "required": True,
        "clamp": [0.5, 5.0],
        "temperature": FULL_TEMPERATURES,
    },
    "confidence": "laya",
    "plan": {"name": "sequential", "recipe": "Q8_0-mixed", "n_threads": 4},
    "router": {
        "card_schema": "atomic.executor-card/1",
        "card_renderer": "card-v1",
        "max_card_tokens": 384,
        "question": ROUTER_QUESTION,
        "calibration": {"method": "platt", "a": 1.0, "b": 0.0},
    },
}


def with_(**fields: Any) -> dict[str, Any]:
    return BASE | fields


def temperature(temperatures: Any = None, **fields: Any) -> dict[str, Any]:
    block = {"method": "temperature"} | ({} if temperatures is None else {"temperature": temperatures})
    return with_(calibration=block | fields)


def required(temperatures: Any, **limits: int) -> dict[str, Any]:
    return temperature(temperatures, required=True) | {"limits": limits}


def question(**fields: Any) -> dict[str, Any]:
    return with_(router={"question": QUESTION | fields})


def platt(**fields: Any) -> dict[str, Any]:
    return with_(router={"calibration": {"method": "platt", "a": 1, "b": 0} | fields})


def parse(spec: Any, source: str = "gguf") -> DecisionSpec:
    return parse_spec(
        spec if isinstance(spec, str) else json.dumps(spec),
        source=source,
        where="spec.json",
        shipped=SHIPPED,
        model_id="the-file",
        parse_question=LAYA.parse_question,
    )


# spec -> what some of its fields become
ACCEPTED: dict[str, tuple[Any, Callable[[DecisionSpec], Any], Any]] = {
    "the least": (
        BASE,
        lambda s: (s.layout, s.input_contract, s.special_tokens, s.confidence, s.max_options, s.max_candidates),
        ("laya", "laya-v1", "mask-to-space", "laya", 20, 16),
    ),
    "the specification's example": (
        EXAMPLE,
        lambda s: (s.model_id, s.model_version, s.input_contract, s.router.platt, s.router.max_card_tokens),
        ("atomic/router-laya", "1.0.0", "laya-router-v1", (1.0, 0.0), 384),
    ),
    "unknown keys": (with_(parity={"reference": "x"}, letters=None), lambda s: s.layout, "laya"),
    "no model_id": (BASE, lambda s: (s.model_id, s.model_version), ("the-file", "")),
    "null model_id": (
        with_(model_id=None, model_version=None),
        lambda s: (s.model_id, s.model_version),
        ("the-file", ""),
    ),
    "confidence typesafe": (with_(confidence="typesafe"), lambda s: s.confidence, "typesafe"),
    "confidence max_p": (with_(confidence="max_p"), lambda s: s.confidence, "max_p"),
    "null confidence": (with_(confidence=None), lambda s: s.confidence, "laya"),
    "escape-control": (with_(special_tokens="escape-control"), lambda s: s.special_tokens, "escape-control"),
    "router contract": (
        with_(input_contract="laya-router-v1", special_tokens="escape-control"),
        lambda s: s.input_contract,
        "laya-router-v1",
    ),
    "layout semif-letters": ({"spec_version": 1, "layout": "semif-letters"}, lambda s: s.max_options, 16),
    "layout clef": ({"spec_version": 1, "layout": "clef"}, lambda s: (s.confidence, s.max_options), ("max_p", 255)),
    "null limits": (with_(limits=None), lambda s: (s.max_options, s.max_candidates), (20, 16)),
    "lower limits": (
        with_(limits={"max_options": 3, "max_candidates": 2}),
        lambda s: (s.max_options, s.max_candidates),
        (3, 2),
    ),
    "limits above what there is": (
        with_(limits={"max_options": 50, "max_candidates": 99}),
        lambda s: (s.max_options, s.max_candidates),
        (20, 16),
    ),
    "limits of 0 set none": (
        with_(limits={"max_options": 0, "max_candidates": 0, "max_prompt_tokens": 0}),
        lambda s: (s.max_options, s.max_candidates),
        (20, 16),
    ),
    "no calibration key keeps what the file ships": (BASE, lambda s: s.calibration, SHIPPED),
    "null calibration turns it off": (with_(calibration=None), lambda s: s.calibration.calibrated, False),
    "method none turns it off": (
        with_(calibration={"method": "none"}),
        lambda s: (s.calibration.version, s.calibration.temperature_for("noul", 2)),
        ("none", 1.0),
    ),
    "method none with temperatures": (
        with_(calibration={"method": "none", "temperature": {"all": 2}}),
        lambda s: (s.calibration.calibrated, s.calibration.temperature_for("noul", 2)),
        (False, 1.0),
    ),
    "method temperature without any": (temperature(), lambda s: s.calibration.version, "none"),
    "empty temperatures": (temperature({}), lambda s: s.calibration.version, "none"),
    "null temperatures": (temperature(None, temperature=None), lambda s: s.calibration.version, "none"),
    "temperature for all": (temperature({"all": 1.2}), lambda s: s.calibration.temperature_for("score", 7), 1.2),
    "temperature as an integer": (temperature({"all": 2}), lambda s: s.calibration.temperature_for("score", 7), 2.0),
    "a type before all": (
        temperature({"all": 1.2, "noul": 3.0}),
        lambda s: [s.calibration.temperature_for(t, 2) for t in ("noul", "choice")],
        [3.0, 1.2],
    ),
    "a type without the bucket does not fall back to all": (
        temperature({"all": 1.2, "choice": {"2": 3.0}}),
        lambda s: [s.calibration.temperature_for("choice", k) for k in (2, 3)],
        [3.0, 1.0],
    ),
    "buckets of every kind": (
        temperature({"choice": {"*": 1.1, "3+": 1.2, "2-4": 1.3, "3": 1.4}}),
        lambda s: [s.calibration.temperature_for("choice", k) for k in (1, 2, 3, 4, 5)],
        [1.1, 1.3, 1.4, 1.3, 1.2],
    ),
    "temperatures are clamped to the layout's": (
        temperature({"noul": 0.1, "choice": 9}),
        lambda s: [s.calibration.temperature_for(t, 2) for t in ("noul", "choice")],
        [0.5, 5.0],
    ),
    "clamp": (
        temperature({"noul": 0.1, "choice": 99}, clamp=[0.25, 50]),
        lambda s: [s.calibration.temperature_for(t, 2) for t in ("noul", "choice")],
        [0.25, 50.0],
    ),
    "clamp to one value": (
        temperature({"all": 9}, clamp=[2, 2]),
        lambda s: s.calibration.temperature_for("noul", 2),
        2,
    ),
    "no temperature found is exactly 1 outside the clamp": (
        temperature({"choice": 3}, clamp=[2, 4]),
        lambda s: s.calibration.temperature_for("noul", 2),
        1.0,
    ),
    "version": (temperature({"all": 1.2}, version="2026-09"), lambda s: s.calibration.version, "2026-09"),
    "no version: named after the temperatures": (
        temperature({"all": 1.2}) | {"model_id": "other"},
        lambda s: s.calibration.version == parse(temperature({"all": 1.2})).calibration.version != "none",
        True,
    ),
    "empty version": (temperature({"all": 1.2}, version=""), lambda s: s.calibration.version[:4], "cal-"),
    "null version": (temperature({"all": 1.2}, version=None), lambda s: s.calibration.version[:4], "cal-"),
    "null required": (temperature({"noul": 1.2}, required=None), lambda s: s.calibration.calibrated, True),
    "not required, with gaps": (temperature({"noul": 1.2}, required=False), lambda s: s.calibration.calibrated, True),
    "required by all": (required({"all": 1.2}), lambda s: s.calibration.calibrated, True),
    "required by every bucket": (required(FULL_TEMPERATURES), lambda s: s.calibration.calibrated, True),
    "required up to max_options": (
        required({"noul": {"2": 1.1}, "choice": {"2": 1.2, "3": 1.3}, "score": {"2-3": 1.3}}, max_options=3),
        lambda s: s.max_options,
        3,
    ),
    "required up to the layout's options": (
        required({"noul": 1.1, "choice": {"2-20": 1.2}, "score": {"2-20": 1.3}}, max_options=50),
        lambda s: s.max_options,
        20,
    ),
    "required, one option needs none": (
        required({"noul": 1.1, "choice": {"2+": 1.2}, "score": {"2+": 1.3}}),
        lambda s: s.calibration.temperature_for("choice", 1),
        1.0,
    ),
    "null plan": (with_(plan=None), lambda s: (s.plan.name, s.plan.kernels), ("sequential", "auto")),
    "plan without a name": (
        with_(plan={"recipe": "Q8_0"}),
        lambda s: (s.plan.name, s.plan.recipe),
        ("sequential", "Q8_0"),
    ),
    "plan packed": (with_(plan={"name": "packed"}), lambda s: s.plan.name, "packed"),
    "plan threads": (with_(plan={"n_threads": 4}), lambda s: s.plan.n_threads, 4),
    "null recipe and threads": (with_(plan={"recipe": None, "n_threads": None}), lambda s: s.plan.recipe, None),
    **{
        f"kernels {name}": (with_(plan={"kernels": name}), lambda s: s.plan.kernels, name)
        for name in ("auto", "default", "repack", "blas", "repack+blas", "reference", "onednn", "onednn-bf16", "int8")
    },
    "null router": (with_(router=None), lambda s: (s.router.question, s.router.platt), (ROUTER_QUESTION, None)),
    "empty router": (with_(router={}), lambda s: s.router.question, ROUTER_QUESTION),
    "null router fields": (
        with_(router={"card_schema": None, "card_renderer": None, "max_card_tokens": None, "question": None}),
        lambda s: (s.router.question, s.router.max_card_tokens),
        (ROUTER_QUESTION, None),
    ),
    "no card limit": (with_(router={"max_card_tokens": 0}), lambda s: s.router.max_card_tokens, 0),
    "question without criteria gets the built-in ones": (
        question(),
        lambda s: s.router.question,
        QUESTION | {"criteria": ROUTER_QUESTION["criteria"]},
    ),
    "question with null criteria": (
        question(criteria=None),
        lambda s: s.router.question["criteria"],
        ROUTER_QUESTION["criteria"],
    ),
    "question with criteria in capitals": (
        question(criteria={"TRUE": "works", "False": "fails"}),
        lambda s: s.router.question["criteria"],
        {"TRUE": "works", "False": "fails"},
    ),
    "question with one criterion": (
        question(criteria={"true": "works"}),
        lambda s: s.router.question["criteria"],
        {"true": "works"},
    ),
    "question with structured criteria": (
        question(criteria={"true": 1.5, "false": None}),
        lambda s: s.router.question["criteria"],
        {"true": 1.5, "false": None},
    ),
    "question with labels": (
        question(labels={"false": "no", "true": " yes "}),
        lambda s: s.router.question["labels"],
        {"false": "no", "true": " yes "},
    ),
    "question with null labels": (question(labels=None), lambda s: s.router.question["instructions"], "Will it work?"),
    "platt": (platt(a=-1.5, b=2), lambda s: s.router.platt, (-1.5, 2.0)),
    "null router calibration": (with_(router={"calibration": None}), lambda s: s.router.platt, None),
    "leading BOM": ("\ufeff" + json.dumps(BASE), lambda s: s.text[0], "\ufeff"),
    "repeated key: the last counts": (
        '{"layout": "x", "spec_version": 1, "layout": "laya"}',
        lambda s: s.layout,
        "laya",
    ),
}

# spec -> the field its refusal names ("" for the document)
REFUSED: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", ""),
    "empty": ("", ""),
    "NaN": ('{"spec_version": 1, "layout": "laya", "x": NaN}', ""),
    "overflow": ('{"spec_version": 1, "layout": "laya", "x": 1e999}', ""),
    "list": ([BASE], ""),
    "text": ('"laya"', ""),
    "null": ("null", ""),
    "empty object": ({}, "spec_version"),
    "no version": ({"layout": "laya"}, "spec_version"),
    "version 2": (with_(spec_version=2), "spec_version"),
    "version 0": (with_(spec_version=0), "spec_version"),
    "version as a float": (with_(spec_version=1.0), "spec_version"),
    "version as text": (with_(spec_version="1"), "spec_version"),
    "version as a bool": (with_(spec_version=True), "spec_version"),
    "null version": (with_(spec_version=None), "spec_version"),
    "no layout": ({"spec_version": 1}, "layout"),
    "null layout": (with_(layout=None), "layout"),
    "unknown layout": (with_(layout="onnx"), "layout"),
    "layout as a list": (with_(layout=["laya"]), "layout"),
    "layout in capitals": (with_(layout="Laya"), "layout"),
    "model_id as a number": (with_(model_id=3), "model_id"),
    "model_version as a list": (with_(model_version=["1"]), "model_version"),
    "unknown confidence": (with_(confidence="entropy"), "confidence"),
    "confidence as a number": (with_(confidence=1), "confidence"),
    "unknown contract": (with_(input_contract="laya-v2"), "input_contract"),
    "contract of another layout": (with_(input_contract="semif-v1"), "input_contract"),
    "special_tokens of another layout": (with_(special_tokens="escape"), "special_tokens"),
    "special_tokens parse": (with_(special_tokens="parse"), "special_tokens"),
    "router contract without escape-control": (with_(input_contract="laya-router-v1"), "special_tokens"),
    "router contract with mask-to-space": (
        with_(input_contract="laya-router-v1", special_tokens="mask-to-space"),
        "special_tokens",
    ),
    "semif with a laya contract": (with_(layout="semif-letters", input_contract="laya-v1"), "input_contract"),
    "semif with escape-control": (with_(layout="semif-letters", special_tokens="escape-control"), "special_tokens"),
    "clef with a packed plan": (with_(layout="clef", plan={"name": "packed"}), "plan.name"),
    "limits as a list": (with_(limits=[20]), "limits"),
    "negative max_options": (with_(limits={"max_options": -1}), "limits.max_options"),
    "fraction of an option": (with_(limits={"max_options": 1.5}), "limits.max_options"),
    "max_options as a bool": (with_(limits={"max_options": True}), "limits.max_options"),
    "max_options as text": (with_(limits={"max_options": "20"}), "limits.max_options"),
    "max_candidates over 2^31": (with_(limits={"max_candidates": 2**31}), "limits.max_candidates"),
    "max_candidates as a float": (with_(limits={"max_candidates": 16.0}), "limits.max_candidates"),
    "calibration as a list": (with_(calibration=[1]), "calibration"),
    "calibration as text": (with_(calibration="none"), "calibration"),
    "empty calibration": (with_(calibration={}), "calibration.method"),
    "temperatures without a method": (with_(calibration={"temperature": {"all": 1.2}}), "calibration.method"),
    "calibration method platt": (with_(calibration={"method": "platt"}), "calibration.method"),
    "required as text": (temperature({"all": 1.2}, required="yes"), "calibration.required"),
    "required as a number": (temperature({"all": 1.2}, required=1), "calibration.required"),
    "version as a number": (temperature({"all": 1.2}, version=2), "calibration.version"),
    'version "none"': (temperature({"all": 1.2}, version="none"), "calibration.version"),
    "clamp of zero": (temperature({"all": 1.2}, clamp=[0, 5]), "calibration.clamp"),
    "negative clamp": (temperature({"all": 1.2}, clamp=[-1, 5]), "calibration.clamp"),
    "clamp in the wrong order": (temperature({"all": 1.2}, clamp=[5, 0.5]), "calibration.clamp"),
    "clamp of one value": (temperature({"all": 1.2}, clamp=[0.5]), "calibration.clamp"),
    "clamp of three values": (temperature({"all": 1.2}, clamp=[0.5, 1, 5]), "calibration.clamp"),
    "null clamp": (temperature({"all": 1.2}, clamp=None), "calibration.clamp"),
    "clamp as an object": (temperature({"all": 1.2}, clamp={"min": 1}), "calibration.clamp"),
    "clamp of text": (temperature({"all": 1.2}, clamp=["0.5", 5]), "calibration.clamp[0]"),
    "clamp of bools": (temperature({"all": 1.2}, clamp=[0.5, True]), "calibration.clamp[1]"),
    "bad clamp with method none": (with_(calibration={"method": "none", "clamp": [0]}), "calibration.clamp"),
    "temperatures as a number": (temperature(1.2), "calibration.temperature"),
    "temperatures as a list": (temperature([1.2]), "calibration.temperature"),
    "temperature of an unknown type": (temperature({"vote": 1.2}), "calibration.temperature.vote"),
    "temperature of a star type": (temperature({"*": 1.2}), "calibration.temperature.*"),
    "bad temperature with method none": (
        with_(calibration={"method": "none", "temperature": {"all": 0}}),
        "calibration.temperature.all",
    ),
    **{
        f"bucket {bucket!r}": (temperature({"choice": {bucket: 1.2}}), f"calibration.temperature.choice.{bucket}")
        for bucket in ("two", "3-", "-3", "1-2-3", "+", "0", "5-3", "2 ", " 2", "2.0", "+2", "", "**", "\u0662", "1e1")
    },
    "temperature of zero": (temperature({"all": 0}), "calibration.temperature.all"),
    "negative temperature": (temperature({"choice": {"2": -1}}), "calibration.temperature.choice.2"),
    "temperature as text": (temperature({"all": "hot"}), "calibration.temperature.all"),
    "temperature as a bool": (temperature({"all": True}), "calibration.temperature.all"),
    "null temperature": (temperature({"all": None}), "calibration.temperature.all"),
    "list of temperatures": (temperature({"noul": [1, 2]}), "calibration.temperature.noul"),
    "required without temperatures": (temperature(required=True), "calibration.temperature"),
    "required with empty temperatures": (required({}), "calibration.temperature"),
    "required with method none": (
        with_(calibration={"method": "none", "required": True, "temperature": {"all": 1.2}}),
        "calibration.required",
    ),
    "required for one option count only": (required({"choice": {"2": 1.2}}), "calibration.temperature"),
    "required without score": (required({"noul": 1.1, "choice": 1.2}), "calibration.temperature"),
    "required with a gap": (
        required({"noul": 1.1, "score": 1.3, "choice": {"2-5": 1.2, "7+": 1.4}}),
        "calibration.temperature",
    ),
    "required with an empty type": (required({"all": 1.2, "score": {}}), "calibration.temperature"),
    "required short of max_options": (
        required({"noul": {"2": 1.1}, "choice": {"2": 1.2, "3": 1.3}, "score": {"2-3": 1.3}}, max_options=4),
        "calibration.temperature",
    ),
    "plan as a list": (with_(plan=["sequential"]), "plan"),
    "plan as text": (with_(plan="sequential"), "plan"),
    "plan name as a number": (with_(plan={"name": 1}), "plan.name"),
    "null plan name": (with_(plan={"name": None}), "plan.name"),
    "unknown plan": (with_(plan={"name": "parallel"}), "plan.name"),
    "plan of another layout": (with_(plan={"name": "joint"}), "plan.name"),
    "unknown kernels": (with_(plan={"kernels": "fast"}), "plan.kernels"),
    "null kernels": (with_(plan={"kernels": None}), "plan.kernels"),
    "kernels as a list": (with_(plan={"kernels": ["auto"]}), "plan.kernels"),
    "kernels as a number": (with_(plan={"kernels": 1}), "plan.kernels"),
    "recipe as a number": (with_(plan={"recipe": 8}), "plan.recipe"),
    "no threads": (with_(plan={"n_threads": 0}), "plan.n_threads"),
    "threads as text": (with_(plan={"n_threads": "4"}), "plan.n_threads"),
    "router as a list": (with_(router=[]), "router"),
    "router as true": (with_(router=True), "router"),
    "another card schema": (with_(router={"card_schema": "other/1"}), "router.card_schema"),
    "another card renderer": (with_(router={"card_renderer": "card-v2"}), "router.card_renderer"),
    "negative card limit": (with_(router={"max_card_tokens": -1}), "router.max_card_tokens"),
    "card limit as a float": (with_(router={"max_card_tokens": 384.0}), "router.max_card_tokens"),
    "card limit over 2^31": (with_(router={"max_card_tokens": 2**31}), "router.max_card_tokens"),
    "question as text": (with_(router={"question": "Will it work?"}), "router.question"),
    "question without a type": (with_(router={"question": {"instructions": "x"}}), "router.question.type"),
    "question of another type": (question(type="choice"), "router.question.type"),
    "question without instructions": (with_(router={"question": {"type": "noul"}}), "router.question.instructions"),
    "question with blank instructions": (question(instructions=" \t\u3000"), "router.question.instructions"),
    "question with structured instructions": (question(instructions={"ask": "x"}), "router.question.instructions"),
    "question with a list of criteria": (question(criteria=["yes", "no"]), "router.question.criteria"),
    "question with another key": (question(criteria={"true": "works", "maybe": "?"}), "router.question.criteria"),
    "question with a spaced key": (question(criteria={" true": "works"}), "router.question.criteria"),
    "labels that strip to one": (question(labels={"false": "yes", "true": "yes\u2028"}), "router.question.labels"),
    "labels with a capital key": (question(labels={"False": "no", "true": "yes"}), "router.question.labels"),
    "labels that are no text": (question(labels={"false": 0, "true": 1}), "router.question.labels"),
    "one label": (question(labels={"true": "yes"}), "router.question.labels"),
    "blank label": (question(labels={"false": " ", "true": "yes"}), "router.question.labels"),
    "labels as a list": (question(labels=["no", "yes"]), "router.question.labels"),
    "router calibration as a list": (with_(router={"calibration": [1, 0]}), "router.calibration"),
    "router calibration without a method": (
        with_(router={"calibration": {"a": 1, "b": 0}}),
        "router.calibration.method",
    ),
    "isotonic": (platt(method="isotonic"), "router.calibration.method"),
    "router calibration none": (with_(router={"calibration": {"method": "none"}}), "router.calibration.method"),
    "platt without b": (with_(router={"calibration": {"method": "platt", "a": 1}}), "router.calibration.b"),
    "platt with null a": (platt(a=None), "router.calibration.a"),
    "platt with text": (platt(a="1"), "router.calibration.a"),
    "platt with a bool": (platt(b=True), "router.calibration.b"),
}


def test_the_tables_are_as_long_as_promised():
    assert len(ACCEPTED) + len(REFUSED) >= 100


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_accepted_spec(name: str):
    spec, look, expected = ACCEPTED[name]
    parsed = parse(spec)
    assert look(parsed) == expected
    assert parsed.source == "gguf"
    assert parsed.text == (spec if isinstance(spec, str) else json.dumps(spec))


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_spec_names_its_field(name: str):
    spec, field = REFUSED[name]
    with pytest.raises(SpecError) as refusal:
        parse(spec)
    assert refusal.value.where == "spec.json"
    assert refusal.value.message.startswith(
        f"{field} " if field else ("not valid JSON", "a spec must be", "NaN", "number")
    )


def test_a_gap_of_a_required_calibration_is_named():
    with pytest.raises(SpecError, match="none for choice with 6 options"):
        parse(REFUSED["required with a gap"][0])
    with pytest.raises(SpecError, match="none for noul with 2 options"):
        parse(REFUSED["required without temperatures"][0])


# -- a bare calibration.json -----------------------------------------------------------------------------------------

SIDECARS: dict[str, tuple[Any, list[float]]] = {
    "one number": ({"temperature": 1.3}, [1.3, 1.3, 1.3]),
    "an integer": ({"temperature": 2}, [2.0, 2.0, 2.0]),
    "outside the clamp": ({"temperature": 0.1}, [0.5, 0.5, 0.5]),
    "by type": ({"temperature": {"all": 1.2, "noul": 1.7}}, [1.7, 1.2, 1.2]),
    "by bucket": ({"temperature": FULL_TEMPERATURES}, [1.37, 1.2, 1.3]),
    "with other keys": ({"temperature": 1.3, "nll": 0.4, "calibration": None}, [1.3, 1.3, 1.3]),
}
BAD_SIDECARS: dict[str, tuple[Any, str]] = {
    "null": ({"temperature": None}, "temperature"),
    "zero": ({"temperature": 0}, "temperature"),
    "text": ({"temperature": "1.3"}, "temperature"),
    "bool": ({"temperature": True}, "temperature"),
    "list": ({"temperature": [1.3]}, "temperature"),
    "unknown type": ({"temperature": {"vote": 1.3}}, "temperature.vote"),
    "bad bucket": ({"temperature": {"noul": {"x": 1.3}}}, "temperature.noul.x"),
    "gap": ({"temperature": {"noul": 1.3}}, "temperature"),
    "empty": ({"temperature": {}}, "temperature"),
    "with a layout": ({"temperature": 1.3, "layout": "laya"}, "spec_version"),
    "with a version of null": ({"temperature": 1.3, "spec_version": None}, "spec_version"),
}


@pytest.mark.parametrize("name", SIDECARS)
def test_a_bare_calibration_is_a_required_calibration_of_a_laya_model(name: str):
    sidecar, temperatures = SIDECARS[name]
    spec = parse(sidecar, source="file")
    assert [spec.calibration.temperature_for(kind, 2) for kind in ("noul", "choice", "score")] == temperatures
    assert (spec.layout, spec.confidence, spec.model_id, spec.source) == ("laya", "laya", "the-file", "file")
    assert spec.calibration.version.startswith("cal-")
    assert spec.text == json.dumps(sidecar)


@pytest.mark.parametrize("name", BAD_SIDECARS)
def test_a_bare_calibration_that_is_refused(name: str):
    sidecar, field = BAD_SIDECARS[name]
    with pytest.raises(SpecError) as refusal:
        parse(sidecar, source="file")
    assert refusal.value.message.startswith(f"{field} ")


@pytest.mark.parametrize(("version", "named"), [("v7", "v7"), (7, None), ("", None), (None, None), ("none", None)])
def test_a_bare_calibration_is_called_by_its_own_version_or_by_its_temperatures(version: Any, named: str | None):
    found = parse({"version": version, "temperature": 1.3}, source="file").calibration.version
    assert found == (named or parse({"temperature": {"all": 1.3}}, source="file").calibration.version)


def test_a_bare_calibration_is_no_spec_of_a_gguf():
    with pytest.raises(SpecError, match="spec_version is missing"):
        parse({"temperature": 1.3}, source="gguf")


# -- defaults --------------------------------------------------------------------------------------------------------


def test_what_a_file_ships_is_its_default_calibration_even_where_a_spec_may_not_say_it():
    shipped = Calibration("gguf:laya.temperature", {"noul": {"*": 0.0}, "choice": {"2": -1.0}})
    spec = parse_spec(
        default_spec_text("laya", "m", shipped),
        source="default",
        where="m.gguf",
        shipped=shipped,
        model_id="m",
        parse_question=LAYA.parse_question,
    )
    assert spec.calibration == shipped
    assert spec.calibration.temperature_for("noul", 2) == 0.5


# -- the same through a stamped file ---------------------------------------------------------------------------------


def stamped(source: Path, target: Path, spec: Any) -> Path:
    """A file with this spec, whatever it says."""
    return edited(
        source, target, keys={names.DECISION_SPEC: text_value(spec if isinstance(spec, str) else json.dumps(spec))}
    )


def runnable(spec: Any) -> bool:
    return "repack" not in json.dumps(spec) and "onednn" not in json.dumps(spec) and "int8" not in json.dumps(spec)


LOADED = [name for name, (spec, *_) in ACCEPTED.items() if parse(spec).layout == "laya" and runnable(spec)][::4]


@pytest.mark.parametrize("name", LOADED)
def test_an_accepted_spec_loads_from_a_gguf(name: str, gguf_for, tmp_path: Path):
    path = stamped(gguf_for("tiny-multilingual"), tmp_path / "the-file.gguf", ACCEPTED[name][0])
    spec = layactl.load(path).spec
    expected = parse(ACCEPTED[name][0])
    if "calibration" not in json.loads(expected.text.removeprefix("\ufeff")):
        # tiny-multilingual ships none.
        assert not spec.calibration.calibrated
        spec = DecisionSpec(**vars(spec) | {"calibration": expected.calibration})
    assert spec == expected


@pytest.mark.parametrize("name", list(REFUSED)[::7])
def test_a_refused_spec_does_not_load_from_a_gguf(name: str, gguf_for, tmp_path: Path):
    path = stamped(gguf_for("tiny-multilingual"), tmp_path / "x.gguf", REFUSED[name][0])
    with pytest.raises(SpecError) as refusal:
        layactl.load(path)
    with pytest.raises(SpecError) as parsed:
        parse(REFUSED[name][0])
    assert refusal.value.message == parsed.value.message
    assert refusal.value.where == f"decision.spec of {path}"


@pytest.mark.parametrize("name", ["layout semif-letters", "layout clef"])
def test_a_spec_for_another_layout_does_not_load(name: str, gguf_for, tmp_path: Path):
    path = stamped(gguf_for("tiny-multilingual"), tmp_path / "x.gguf", ACCEPTED[name][0])
    with pytest.raises(SpecError, match="but the model's is laya"):
        layactl.load(path)


@pytest.mark.parametrize("name", [*REFUSED, "layout semif-letters", "layout clef"])
def test_set_takes_no_spec_that_would_not_load(name: str, gguf_for, tmp_path: Path):
    spec = (ACCEPTED | REFUSED)[name][0]
    file = tmp_path / "spec.json"
    file.write_text(spec if isinstance(spec, str) else json.dumps(spec), encoding="utf-8")
    source = gguf_for("tiny-multilingual")
    with pytest.raises(SpecError):
        set_spec(source, file, tmp_path / "out.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spec.json"]
