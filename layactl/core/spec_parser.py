"""decision.spec as JSON text -> a checked DecisionSpec, or an error that names the field.

One set of rules for every way in: the spec of a GGUF, a file given to --spec, the defaults of an unstamped file, and
`layactl spec set|verify`, so that what one accepts all accept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from layactl.core import strict_json
from layactl.core.calibration import Calibration, bucket_span, find_bucket
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

# layout -> (input contracts, special-token rules, default confidence, most options, clamp); the first of each is the
# default.
_LAYOUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str, int, tuple[float, float]]] = {
    "laya": (("laya-v1", "laya-router-v1"), (MASK_TO_SPACE, ESCAPE_CONTROL), "laya", 20, (0.5, 5.0)),
    "semif-letters": (("semif-v1",), ("escape",), "typesafe", 16, (0.05, 20.0)),
    "clef": (("clef-v1",), ("parse",), "max_p", 255, (0.05, 20.0)),
}
RUNNABLE_LAYOUTS = ("laya",)
_CONFIDENCE = ("laya", "typesafe", "max_p")
_PLANS = ("sequential", "packed", "joint")
FOREIGN_KERNELS = ("default", "blas", "repack", "repack+blas")
OWN_KERNELS = ("reference", "onednn", "onednn-bf16", "int8")
KERNELS = ("auto", *FOREIGN_KERNELS, *OWN_KERNELS)
_QUESTION_TYPES = ("choice", "score", "noul")
_MAX_CANDIDATES = 16

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
    if root.get("spec_version") is None and _is_sidecar(root):
        return _sidecar(root, text, source, model_id, parse_question)
    version = root.integer("spec_version")
    if version != SPEC_VERSION:
        raise root.error("spec_version", f"is {version}; only {SPEC_VERSION} is understood")
    layout = _one_of(root, "layout", tuple(_LAYOUTS))
    contracts, tokens, confidence, most_options, clamp = _LAYOUTS[layout]
    contract = _one_of(root, "input_contract", contracts, contracts[0])
    special_tokens = _one_of(root, "special_tokens", tokens, tokens[0])
    if contract == "laya-router-v1" and special_tokens != ESCAPE_CONTROL:
        raise root.error("special_tokens", f"must be {ESCAPE_CONTROL} with input_contract laya-router-v1")
    limits = root.object("limits", {})
    max_options = min(most_options, _positive(limits, "max_options", most_options))
    return DecisionSpec(
        layout=layout,
        model_id=root.text("model_id", model_id),
        model_version=root.text("model_version", ""),
        input_contract=contract,
        special_tokens=special_tokens,
        confidence=_one_of(root, "confidence", _CONFIDENCE, confidence),
        max_options=max_options,
        max_candidates=min(_MAX_CANDIDATES, _positive(limits, "max_candidates", _MAX_CANDIDATES)),
        calibration=_calibration(root, shipped, clamp, max_options, text),
        plan=_plan(root.object("plan", {})),
        router=_router(root, parse_question),
        text=text,
        source=source,
    )


def default_spec_text(layout: str, model_id: str, shipped: Calibration) -> str:
    """The spec of an unstamped file, as JSON text."""
    contracts, tokens, confidence, _, _ = _LAYOUTS[layout]
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
            "input_contract": contracts[0],
            "special_tokens": tokens[0],
            "calibration": calibration,
            "confidence": confidence,
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
    return "temperature" in root.values and "layout" not in root.values


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
    version = root.text("version", f"cal-{hashlib.sha256(text.encode('utf-8')).hexdigest()[:12]}")
    calibration = Calibration(version, _temperatures(root), _LAYOUTS["laya"][4])
    _check_coverage(root, calibration, base.max_options)
    return DecisionSpec(**{**vars(base), "calibration": calibration, "text": text})


def _one_of(fields: JsonObject, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
    value = fields.text(key, default)
    if value not in allowed:
        raise fields.error(key, f"is {value!r:.60}; one of: {', '.join(allowed)}")
    return value


def _positive(fields: JsonObject, key: str, default: int) -> int:
    value = fields.integer(key, default)
    if value < 1:
        raise fields.error(key, f"must be at least 1, not {value}")
    return value


def _calibration(
    root: JsonObject, shipped: Calibration, layout_clamp: tuple[float, float], max_options: int, text: str
) -> Calibration:
    if "calibration" not in root.values:
        return shipped
    if root.get("calibration") is None:
        return Calibration(clamp=layout_clamp)
    block = root.object("calibration")
    method = _one_of(block, "method", ("none", "temperature"))
    required = _boolean(block, "required", False)
    clamp = _clamp(block, layout_clamp)
    if method == "none":
        if required:
            raise block.error("required", 'is true, but method "none" calibrates nothing')
        return Calibration(clamp=clamp)
    version = block.text("version", f"cal-{hashlib.sha256(text.encode('utf-8')).hexdigest()[:12]}")
    calibration = Calibration(version, _temperatures(block), clamp)
    if required:
        _check_coverage(block, calibration, max_options)
    return calibration


def _boolean(fields: JsonObject, key: str, default: bool) -> bool:
    value = fields.values.get(key, default)
    if not isinstance(value, bool):
        raise fields.error(key, f"must be true or false, not {value!r:.60}")
    return value


def _clamp(block: JsonObject, default: tuple[float, float]) -> tuple[float, float]:
    if block.get("clamp") is None:
        return default
    bounds = block.items("clamp")
    if len(bounds) != 2:
        raise block.error("clamp", "must be [lowest, highest]")
    low, high = (block.as_number(f"clamp[{i}]", bound) for i, bound in enumerate(bounds))
    if not 0 < low <= high:
        raise block.error("clamp", f"[{low:g}, {high:g}] must be positive and in order")
    return low, high


def _temperatures(block: JsonObject) -> dict[str, dict[str, float]]:
    """{"noul": {"2": 1.37}, "all": {"*": 1.3}}; a number in place of either level stands for "*" or "all"."""
    value = block.get("temperature")
    if not isinstance(value, dict):
        return {"all": {"*": _temperature(block, "temperature", value)}}
    types = block.object("temperature")
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


def _plan(block: JsonObject) -> PlanSpec:
    threads = None if block.get("n_threads") is None else _positive(block, "n_threads", 1)
    kernels = block.values.get("kernels", "auto")
    if kernels not in KERNELS:
        raise block.error("kernels", f"is {kernels!r:.60}; one of: {', '.join(KERNELS)}")
    recipe = None if block.get("recipe") is None else block.text("recipe")
    return PlanSpec(_one_of(block, "name", _PLANS, "sequential"), kernels, recipe, threads)


def _router(root: JsonObject, parse_question: ParseQuestion) -> RouterSpec:
    if root.get("router") is None:
        return RouterSpec(ROUTER_QUESTION)
    block = root.object("router")
    _one_of(block, "card_schema", (CARD_SCHEMA,), CARD_SCHEMA)
    _one_of(block, "card_renderer", (CARD_RENDERER,), CARD_RENDERER)
    max_card_tokens = None if block.get("max_card_tokens") is None else block.integer("max_card_tokens")
    if max_card_tokens is not None and max_card_tokens < 0:
        raise block.error("max_card_tokens", f"must not be negative, not {max_card_tokens}")
    return RouterSpec(_router_question(block, parse_question), max_card_tokens, _platt(block))


def _router_question(block: JsonObject, parse_question: ParseQuestion) -> Mapping[str, Any]:
    if block.get("question") is None:
        return ROUTER_QUESTION
    question = block.object("question")
    _one_of(question, "type", ("noul",))
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
    if _one_of(calibration, "method", ("none", "platt")) == "none":
        return None
    return calibration.number("a"), calibration.number("b")
