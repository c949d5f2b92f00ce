"""The OpenAPI document of the routes in force: what a client generator or a contract test reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import layactl
from layactl.core import strict_json

Schema = dict[str, Any]

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_COUNT = {"type": "integer", "minimum": 0}
_FLAG = {"type": "boolean"}
_PROBABILITY = {"type": "number", "minimum": 0, "maximum": 1}
_TRUNCATION = {"type": "string", "enum": ["allow", "error"], "default": "allow"}
_ANYTHING: Schema = {}

# Status -> when. Every one of them carries the error envelope.
_REFUSALS = {
    "400": "The request is not what the route takes; `param` names the field.",
    "401": "An API key is required.",
    "405": "The path takes another method.",
    "408": "The request did not arrive in time.",
    "411": "The body has no length.",
    "413": "The body is over 1 MiB.",
    "414": "The request line is too long.",
    "415": "The body is not JSON.",
    "422": "The request does not fit the model's token budgets.",
    "429": "Too many requests wait.",
    "431": "The head is too large.",
    "500": "An internal error; the detail is in the server's log.",
    "501": "The model has no router calibration.",
    "503": "The model is being loaded, or the server is stopping.",
}
_ALWAYS = ("400", "401", "405", "408", "414", "431", "500", "503")
_WITH_BODY = (*_ALWAYS, "411", "413", "415", "422", "429")


def document(paths: Sequence[str]) -> Schema:
    """paths: of the routes in force."""
    operations = {**_info_operations(), **_decision_operations()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "layactl",
            "version": layactl.__version__,
            "description": "Typed decisions with calibrated probabilities.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {path: operations[path] for path in paths},
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": _schemas(),
        },
    }


def _info_operations() -> Schema:
    reference = {name: {"$ref": f"#/components/schemas/{name}"} for name in ("Health", "Models", "Props")}
    health = _get("Whether requests are answered.", reference["Health"], public=True)
    models = _get("The model served.", reference["Models"], public=True)
    metrics = _get("Counters in Prometheus' text format.", _TEXT)
    metrics["get"]["responses"]["200"]["content"] = {"text/plain": {"schema": _TEXT}}
    return {
        "/health": health,
        "/v1/health": health,
        "/models": models,
        "/v1/models": models,
        "/props": _get("What answers depend on, and the limits in force.", reference["Props"]),
        "/metrics": metrics,
        "/openapi.json": _get("This document.", {"type": "object"}),
    }


def _decision_operations() -> Schema:
    def schema(name: str) -> Schema:
        return {"$ref": f"#/components/schemas/{name}"}

    either = {"oneOf": [schema("Questions"), schema("Router")]}
    return {
        "/v1/systemone": _post("Answer typed questions about a state.", schema("Questions"), schema("Answers")),
        "/v1/router/score": _post("Score executors for a task.", schema("Router"), schema("Scores"), ("501",)),
        "/v1/decision/render": _post("What the model would read; nothing is computed.", either, {"type": "object"}),
    }


def _get(summary: str, schema: Schema, *, public: bool = False) -> Schema:
    statuses = [status for status in _ALWAYS if not (public and status == "401")]
    return {"get": _operation(summary, schema, statuses) | ({} if public else {"security": [{"key": []}, {}]})}


def _post(summary: str, body: Schema, schema: Schema, more: tuple[str, ...] = ()) -> Schema:
    operation = _operation(summary, schema, (*_WITH_BODY, *more))
    request = {"required": True, "content": {"application/json": {"schema": body}}}
    return {"post": operation | {"requestBody": request, "security": [{"key": []}, {}]}}


def _operation(summary: str, schema: Schema, statuses: Sequence[str]) -> Schema:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answers: Schema = {"200": {"description": "The answer.", "content": {"application/json": {"schema": schema}}}}
    return {
        "summary": summary,
        "responses": answers
        | {status: {"description": _REFUSALS[status], "content": error} for status in sorted(statuses)},
    }


def _object(required: Sequence[str], properties: Schema, *, closed: bool = False) -> Schema:
    schema: Schema = {"type": "object", "required": list(required), "properties": properties}
    return schema | ({"additionalProperties": False} if closed else {})


@cache
def _card_schemas() -> Schema:
    """The card's own schema, as parts of this document."""
    text = resources.files("layactl.router").joinpath("executor-card-v1.schema.json").read_text(encoding="utf-8")
    card: Schema = strict_json.loads_strict(text.replace("#/$defs/", "#/components/schemas/Card_"))
    parts = {f"Card_{name}": part for name, part in card["$defs"].items()}
    return {"Card": {key: value for key, value in card.items() if not key.startswith("$")}, **parts}


def _schemas() -> Schema:
    schemas = _request_schemas() | _card_schemas() | _answer_schemas() | _info_schemas()
    return schemas | {"Error": _error_schema()}


def _request_schemas() -> Schema:
    # What a question is beyond its type is said by the errors: JSON Schema cannot say that labels differ by value.
    question = _object(
        ("type", "instructions"),
        {
            "type": {"type": "string", "enum": ["choice", "score", "noul"]},
            "instructions": _ANYTHING,
            "criteria": {"type": ["object", "array", "null"]},
            "labels": {"type": ["object", "null"], "properties": {"false": _TEXT, "true": _TEXT}},
        },
    )
    candidate_id = {"type": "string", "pattern": "^[A-Za-z0-9._:/@+-]{1,128}$"}
    candidate = _object(("id", "card"), {"id": candidate_id, "card": {"$ref": "#/components/schemas/Card"}})
    return {
        "Questions": _object(
            ("state", "questions"),
            {
                "model": {"description": "Ignored.", **_ANYTHING},
                "state": {"type": ["string", "object", "array", "number", "boolean"]},
                "questions": {"type": "object", "additionalProperties": question},
                "truncation": _TRUNCATION,
            },
        ),
        "Router": _object(
            ("task", "criterion", "candidates"),
            {
                "task": {"type": "string", "minLength": 1},
                "criterion": {"type": "string", "minLength": 1},
                "candidates": {"type": "array", "minItems": 1, "items": candidate},
                "truncation": _TRUNCATION,
            },
        ),
    }


def _answer_schemas() -> Schema:
    warning = _object(("reason", "message"), {"reason": _TEXT, "message": _TEXT, "param": _TEXT})
    times = ("queue_ms", "render_ms", "compute_ms")
    timings = _object(times, dict.fromkeys(times, _NUMBER))
    runtime = _object(
        ("layout", "format", "plan", "kernels", "precision", "spec_sha256", "calibration"),
        dict.fromkeys(("layout", "format", "plan", "kernels", "precision", "spec_sha256", "calibration"), _TEXT),
    )
    answer = _object(
        ("type", "confidence", "answer_confidence"),
        {
            "type": {"type": "string", "enum": ["choice", "score", "noul"]},
            "noul": _PROBABILITY,
            "choice": {"type": ["string", "number", "boolean"]},
            "score": {"type": "number", "minimum": 0},
            "probabilities": {"type": "object", "additionalProperties": _PROBABILITY},
            "legend": {"type": "object"},
            "confidence": _PROBABILITY,
            "answer_confidence": _PROBABILITY,
            "action": _object(("act_probability",), {"act_probability": _PROBABILITY}),
        },
    )
    score = _object(
        ("id", "p_success", "logit", "calibrated", "input_tokens", "truncated_tokens"),
        {
            "id": _TEXT,
            "p_success": _PROBABILITY,
            "logit": _NUMBER,
            "calibrated": _FLAG,
            "input_tokens": _COUNT,
            "truncated_tokens": _COUNT,
        },
    )
    shared = {
        "latency_ms": _NUMBER,
        "timings": timings,
        "warnings": {"type": "array", "items": warning},
        "runtime": runtime,
    }
    return {
        "Answers": _object(
            ("model", "answers", "usage", "latency_ms", "timings", "warnings", "runtime"),
            {
                "model": _TEXT,
                "answers": {"type": "object", "additionalProperties": answer},
                "usage": _object(
                    ("input_tokens", "output_tokens", "evaluated_tokens"),
                    dict.fromkeys(("input_tokens", "output_tokens", "evaluated_tokens"), _COUNT),
                ),
                **shared,
            },
        ),
        "Scores": _object(
            ("object", "model", "scores", "usage", "latency_ms", "timings", "runtime", "warnings"),
            {
                "object": {"const": "router.scores"},
                "model": _TEXT,
                "scores": {"type": "array", "items": score},
                "usage": _object(
                    ("input_tokens", "output_tokens", "passes"),
                    dict.fromkeys(("input_tokens", "output_tokens", "passes"), _COUNT),
                ),
                **shared,
            },
        ),
    }


def _info_schemas() -> Schema:
    block = _object(("api_version", "layout", "model_id", "model_version"), {"api_version": {"const": 1}})
    entry = _object(("id", "object", "capabilities", "decision"), {"id": _TEXT, "decision": block})
    return {
        "Health": _object(("status", "ok", "model", "layout"), {"status": {"const": "ok"}, "ok": {"const": True}}),
        "Models": _object(("object", "data"), {"object": {"const": "list"}, "data": {"type": "array", "items": entry}}),
        "Props": _object(
            ("model_alias", "model_path", "build_info", "decision"),
            {"decision": _object(("api_version", "limits", "plan", "spec_sha256"), {"api_version": {"const": 1}})},
        ),
    }


def _error_schema() -> Schema:
    error = _object(
        ("code", "type", "reason", "message"),
        {
            "code": {"type": "integer", "minimum": 400, "maximum": 599},
            "type": {
                "type": "string",
                "enum": [
                    *("invalid_request_error", "authentication_error", "not_found_error", "overloaded_error"),
                    *("server_error", "not_supported_error", "unavailable_error"),
                ],
            },
            "reason": {"type": "string", "pattern": "^[A-Z_]+$"},
            "message": _TEXT,
            "param": _TEXT,
        },
        closed=True,
    )
    return _object(("error",), {"error": error}, closed=True)
