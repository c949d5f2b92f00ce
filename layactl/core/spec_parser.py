"""decision.spec as JSON text -> a checked DecisionSpec, or an error that names the field.

One set of rules for every way in: the spec of a GGUF, a file given to --spec, the defaults of an unstamped file, and
`layactl spec set|verify`, so that what one accepts all accept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from layactl.core import strict_json
from layactl.core.calibration import UNCALIBRATED_VERSION, Calibration, bucket_span, find_bucket
from layactl.core.decision_spec import (
    CARD_RENDERER,
    CARD_SCHEMA,
    ESCAPE_CONTROL,
    MASK_TO_SPACE,
    ROUTER_QUESTION,
    SPEC_VERSION,
    DecisionSpec,
    PlanSpec,
    RouterSpec,
)
from layactl.core.json_fields import JsonObject
from layactl.errors import RequestError, SpecError


@dataclass(frozen=True)
class _LayoutRules:
    """What a spec of one layout may say; the first contract and special-token rule are the defaults.

    plans: () where this version does not know them; clamp: of temperatures, where the spec names none.
    """

    contracts: tuple[str, ...]
    special_tokens: tuple[str, ...]
    plans: tuple[str, ...]
    confidence: str
    max_options: int
    clamp: tuple[float, float]


_LAYOUTS = {
    "laya": _LayoutRules(
        contracts=("laya-v1", "laya-router-v1"),
        special_tokens=(MASK_TO_SPACE, ESCAPE_CONTROL),
        plans=("sequential", "packed"),
        confidence="laya",
        max_options=20,
        clamp=(0.5, 5.0),
    ),
    "semif-letters": _LayoutRules(
        contracts=("semif-v1",),
        special_tokens=("escape",),
        plans=(),
        confidence="typesafe",
        max_options=16,
        clamp=(0.05, 20.0),
    ),
    "clef": _LayoutRules(
        contracts=("clef-v1",),
        special_tokens=("parse",),
        plans=("joint",),
        confidence="max_p",
        max_options=255,
        clamp=(0.05, 20.0),
    ),
}
_CONFIDENCE = ("laya", "typesafe", "max_p")
FOREIGN_KERNELS = ("default", "blas", "repack", "repack+blas")
OWN_KERNELS = ("reference", "onednn", "onednn-bf16", "int8")
KERNELS = ("auto", *FOREIGN_KERNELS, *OWN_KERNELS)
_QUESTION_TYPES = ("choice", "score", "noul")
_MAX_CANDIDATES = 16
# Counts of a spec are signed 32-bit numbers in the engines that read it.
_MAX_COUNT = 2**31 - 1

ParseQuestion = Callable[[str, Any], Any]


def parse_spec(
    text: str, *, source: str, where: str, shipped: Calibration, model_id: str, parse_question: ParseQuestion
) -> DecisionSpec:
    """Check a whole spec.

    source: "gguf", "file" or "default"; where: what errors name; shipped: the calibration of the model file's own keys,
    kept by a spec that does not speak of calibration; model_id: used when the spec names none; parse_question: the
    layout's question rules, for the router question.
    Raises SpecError.
    """
    root = _document(text, where)
    if _is_sidecar(root):
        return _sidecar(root, text, source, model_id, parse_question)
    version = root.integer("spec_version")
    if version != SPEC_VERSION:
        raise root.error("spec_version", f"is {version}; only {SPEC_VERSION} is understood")
    layout = _one_of(root, "layout", tuple(_LAYOUTS))
    rules = _LAYOUTS[layout]
    contract = _one_of(root, "input_contract", rules.contracts, rules.contracts[0])
    special_tokens = _one_of(root, "special_tokens", rules.special_tokens, rules.special_tokens[0])
    if contract == "laya-router-v1" and special_tokens != ESCAPE_CONTROL:
        raise root.error("special_tokens", f"must be {ESCAPE_CONTROL} with input_contract laya-router-v1")
    limits = root.object("limits", {})
    max_options = _limit(limits, "max_options", rules.max_options)
    # The defaults are made from the shipped calibration, which may hold what a spec may not say (a temperature of 0).
    calibration = shipped if source == "default" else _calibration(root, shipped, rules.clamp, max_options)
    return DecisionSpec(
        layout=layout,
        model_id=root.text("model_id", model_id),
        model_version=root.text("model_version", ""),
        input_contract=contract,
        special_tokens=special_tokens,
        confidence=_one_of(root, "confidence", _CONFIDENCE, rules.confidence),
        max_options=max_options,
        max_candidates=_limit(limits, "max_candidates", _MAX_CANDIDATES),
        calibration=calibration,
        plan=_plan(root.object("plan", {}), rules.plans),
        router=_router(root, parse_question),
        text=text,
        source=source,
    )


def default_spec_text(layout: str, model_id: str, shipped: Calibration) -> str:
    """The spec of an unstamped file, as JSON text."""
    rules = _LAYOUTS[layout]
    calibration: dict[str, Any] = {"method": "none"}
    if shipped.calibrated:
        calibration = {
            "method": "temperature",
            "version": shipped.version,
            "clamp": list(shipped.clamp),
            "temperature": {kind: dict(buckets) for kind, buckets in shipped.temperature.items()},
        }
    return strict_json.dumps(
        {
            "spec_version": SPEC_VERSION,
            "model_id": model_id,
            "layout": layout,
            "input_contract": rules.contracts[0],
            "special_tokens": rules.special_tokens[0],
            "calibration": calibration,
            "confidence": rules.confidence,
        }
    )


def _document(text: str, where: str) -> JsonObject:
    try:
        value = strict_json.loads_strict(text)
    except RequestError as error:
        raise SpecError(error.message, where=where) from None
    if not isinstance(value, dict):
        raise SpecError("a spec must be a JSON object", where=where)
    return JsonObject(value, where, SpecError)


def _is_sidecar(root: JsonObject) -> bool:
    return "temperature" in root.values and not {"spec_version", "layout"} & set(root.values)


def _sidecar(root: JsonObject, text: str, source: str, model_id: str, parse_question: ParseQuestion) -> DecisionSpec:
    """A bare calibration.json, {"temperature": x} or {"temperature": {...}}: a required calibration of a laya model."""
    if source != "file":
        raise root.error("spec_version", "is missing")
    base = parse_spec(
        default_spec_text("laya", model_id, Calibration()),
        source=source,
        where=root.where,
        shipped=Calibration(),
        model_id=model_id,
        parse_question=parse_question,
    )
    temperature = root.get("temperature")
    if not isinstance(temperature, dict):
        temperature = {"all": _temperature(root, "temperature", temperature)}
    # The file is another tool's: a version that is no text, or that would read as "uncalibrated", names nothing.
    version = root.get("version")
    named = isinstance(version, str) and version not in ("", UNCALIBRATED_VERSION)
    calibration = Calibration(
        version if named else _version_of(temperature),
        _temperatures(root.inside(temperature, "temperature")),
        base.calibration.clamp,
    )
    _check_coverage(root, calibration, base.max_options)
    return replace(base, calibration=calibration, text=text)


def _one_of(fields: JsonObject, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
    value = fields.text(key, default)
    if value not in allowed:
        raise fields.error(key, f"is {value!r:.60}; one of: {', '.join(allowed)}")
    return value


def _count(fields: JsonObject, key: str, default: int) -> int:
    value = fields.integer(key, default)
    if not 0 <= value <= _MAX_COUNT:
        raise fields.error(key, f"must be between 0 and {_MAX_COUNT}, not {value}")
    return value


def _limit(limits: JsonObject, key: str, most: int) -> int:
    """A limit of the spec, never above the one it is meant to lower; 0 or none at all leaves that one."""
    return min(most, _count(limits, key, 0) or most)


def _calibration(
    root: JsonObject, shipped: Calibration, layout_clamp: tuple[float, float], max_options: int
) -> Calibration:
    if "calibration" not in root.values:
        return shipped
    if root.get("calibration") is None:
        return Calibration(clamp=layout_clamp)
    block = root.object("calibration")
    method = _one_of(block, "method", ("none", "temperature"))
    required = _boolean(block, "required", False)
    uncalibrated = Calibration(clamp=_clamp(block, layout_clamp))
    temperature = block.object("temperature", {})
    table = _temperatures(temperature)
    version = _version(block, temperature.values)
    if method == "none":
        if required:
            raise block.error("required", 'is true, but method "none" calibrates nothing')
        return uncalibrated
    calibration = replace(uncalibrated, version=version, temperature=table) if table else uncalibrated
    if required:
        _check_coverage(block, calibration, max_options)
    return calibration


def _version(block: JsonObject, temperature: dict[str, Any]) -> str:
    version = block.text("version", "")
    if version == UNCALIBRATED_VERSION:
        raise block.error("version", f'is "{UNCALIBRATED_VERSION}", which answers say of a model without calibration')
    return version or _version_of(temperature)


def _version_of(temperature: dict[str, Any]) -> str:
    """What a calibration without a version is called: the same temperatures always get the same name."""
    return f"cal-{hashlib.sha256(strict_json.dumps(temperature).encode('utf-8')).hexdigest()[:12]}"


def _boolean(fields: JsonObject, key: str, default: bool) -> bool:
    value = fields.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise fields.error(key, f"must be true or false, not {value!r:.60}")
    return value


def _clamp(block: JsonObject, default: tuple[float, float]) -> tuple[float, float]:
    if "clamp" not in block.values:
        return default
    bounds = block.get("clamp")
    if not isinstance(bounds, list) or len(bounds) != 2:
        raise block.error("clamp", f"must be [lowest, highest], not {bounds!r:.60}")
    low, high = (block.as_number(f"clamp[{i}]", bound) for i, bound in enumerate(bounds))
    if not 0 < low <= high:
        raise block.error("clamp", f"[{low:g}, {high:g}] must be positive and in order")
    return low, high


def _temperatures(types: JsonObject) -> dict[str, dict[str, float]]:
    """{"noul": {"2": 1.37}, "all": {"*": 1.3}}; a number in place of the buckets stands for "*"."""
    table: dict[str, dict[str, float]] = {}
    for kind, buckets in types.values.items():
        if kind not in (*_QUESTION_TYPES, "all"):
            raise types.error(kind, f"is no question type; one of: {', '.join(_QUESTION_TYPES)}, all")
        if not isinstance(buckets, dict):
            table[kind] = {"*": _temperature(types, kind, buckets)}
            continue
        inner = types.object(kind)
        for bucket in buckets:
            if bucket_span(bucket) is None:
                raise inner.error(bucket, 'is no bucket; write "N", "A-B", "N+" or "*"')
        table[kind] = {bucket: _temperature(inner, bucket, t) for bucket, t in buckets.items()}
    return table


def _temperature(fields: JsonObject, key: str, value: Any) -> float:
    number = fields.as_number(key, value)
    if number <= 0:
        raise fields.error(key, f"must be positive, not {number:g}")
    return number


def _check_coverage(block: JsonObject, calibration: Calibration, max_options: int) -> None:
    """A required calibration has a temperature for everything the model accepts."""
    wanted = [("noul", 2), *((kind, k) for kind in ("choice", "score") for k in range(2, max_options + 1))]
    for kind, options in wanted:
        if find_bucket(calibration.buckets_for(kind), options) is None:
            raise block.error("temperature", f"is required but has none for {kind} with {options} options")


def _plan(block: JsonObject, plans: tuple[str, ...]) -> PlanSpec:
    name = PlanSpec.name
    if "name" in block.values:
        name = _one_of(block, "name", plans) if plans else block.text("name")
    kernels = block.values.get("kernels", PlanSpec.kernels)
    if kernels not in KERNELS:
        raise block.error("kernels", f"is {kernels!r:.60}; one of: {', '.join(KERNELS)}")
    recipe = None if block.get("recipe") is None else block.text("recipe")
    threads = None if block.get("n_threads") is None else _count(block, "n_threads", 0)
    if threads == 0:
        raise block.error("n_threads", "must be at least 1, not 0")
    return PlanSpec(name, kernels, recipe, threads)


def _router(root: JsonObject, parse_question: ParseQuestion) -> RouterSpec:
    if root.get("router") is None:
        return RouterSpec(ROUTER_QUESTION)
    block = root.object("router")
    _one_of(block, "card_schema", (CARD_SCHEMA,), CARD_SCHEMA)
    _one_of(block, "card_renderer", (CARD_RENDERER,), CARD_RENDERER)
    max_card_tokens = None if block.get("max_card_tokens") is None else _count(block, "max_card_tokens", 0)
    return RouterSpec(_router_question(block, parse_question), max_card_tokens, _platt(block))


def _router_question(block: JsonObject, parse_question: ParseQuestion) -> Mapping[str, Any]:
    if block.get("question") is None:
        return ROUTER_QUESTION
    question = block.object("question")
    _one_of(question, "type", ("noul",))
    if not question.text("instructions").strip():
        raise question.error("instructions", "must not be blank")
    # The criteria are part of the prompt; without them the built-in ones are.
    definition = {**question.values}
    if definition.get("criteria") is None:
        definition["criteria"] = ROUTER_QUESTION["criteria"]
    try:
        parse_question("question", definition)
    except RequestError as error:
        raise question.error((error.param or "").rpartition(".")[2] or "type", f"is refused: {error.message}") from None
    return definition


def _platt(block: JsonObject) -> tuple[float, float] | None:
    if block.get("calibration") is None:
        return None
    calibration = block.object("calibration")
    _one_of(calibration, "method", ("platt",))
    return calibration.number("a"), calibration.number("b")
