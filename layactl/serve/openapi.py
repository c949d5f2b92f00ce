"""The OpenAPI document of the routes in force: what a client generator or a contract test reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
# More than white space, as str.strip knows it.
_FILLED = {"type": "string", "pattern": "[^\\s\\u001c-\\u001f\\u0085]"}
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
_REFUSAL_HEADERS = {
    "401": {"WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}},
    "405": {"Allow": {"required": True, "schema": _TEXT}},
    "429": {"Retry-After": {"required": True, "description": "Seconds.", "schema": _COUNT}},
    "503": {"Retry-After": {"description": "Seconds, while the model is being loaded.", "schema": _COUNT}},
}
_WITH_BODY = (*_ALWAYS, "411", "413", "415", "422", "429")


def document(paths: Sequence[str], limits: Mapping[str, int]) -> Schema:
    """paths: of the routes in force; limits: as /props shows them."""
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
            "schemas": _schemas(limits),
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

    either = {"if": {"required": ["candidates"]}, "then": schema("Router"), "else": schema("Questions")}
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
        | {
            status: {"description": _REFUSALS[status], "headers": _REFUSAL_HEADERS.get(status, {}), "content": error}
            for status in sorted(statuses)
        },
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


def _schemas(limits: Mapping[str, int]) -> Schema:
    schemas = _question_schemas(limits["max_options"]) | _request_schemas(limits) | _card_schemas()
    return schemas | _answer_schemas() | _info_schemas() | {"Error": _error_schema()}


def _question_schemas(max_options: int) -> Schema:
    # What JSON Schema cannot say, the errors do: two labels that Python holds equal or that share an answer key.
    text_of_any_kind = {"type": ["string", "number", "boolean", "object", "array"]}
    options = {"minItems": 1, "maxItems": max_options}
    label = {"type": ["string", "number", "boolean"]}
    labels = {"type": "array", "items": label, "uniqueItems": True, **options}
    described = {"type": "object", "minProperties": 1, "maxProperties": max_options}
    truth = {"pattern": "^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])$"}
    words = _object(("false", "true"), {"false": _FILLED, "true": _FILLED}, closed=True)

    def question(kind: str, required: tuple[str, ...], **properties: Schema | bool) -> Schema:
        return _object(("type", "instructions", *required), {"type": {"const": kind}, **properties})

    return {
        "Choice": question(
            "choice", ("criteria",), instructions=_ANYTHING, criteria={"anyOf": [described, labels]}, labels=False
        ),
        "Score": question(
            *("score", ("criteria",)),
            instructions=_ANYTHING,
            criteria={"type": "array", "items": text_of_any_kind, **options},
            labels=False,
        ),
        "Noul": question(
            *("noul", ()),
            instructions=_ANYTHING,
            criteria={"anyOf": [{"type": "null"}, {"type": "object", "propertyNames": truth}]},
            labels={"anyOf": [{"type": "null"}, words]},
        ),
    }


def _request_schemas(limits: Mapping[str, int]) -> Schema:
    question = {"oneOf": [{"$ref": f"#/components/schemas/{kind}"} for kind in ("Choice", "Score", "Noul")]}
    candidate_id = {"type": "string", "pattern": "^[A-Za-z0-9._:/@+-]{1,128}$"}
    candidate = _object(("id", "card"), {"id": candidate_id, "card": {"$ref": "#/components/schemas/Card"}})
    candidates = {"type": "array", "minItems": 1, "maxItems": limits["max_candidates"], "items": candidate}
    return {
        "Questions": _object(
            ("state", "questions"),
            {
                "model": {"description": "Ignored.", **_ANYTHING},
                "state": {"type": ["string", "object", "array", "number", "boolean"]},
                "questions": {
                    "type": "object",
                    "maxProperties": limits["max_questions"],
                    "additionalProperties": question,
                },
                "truncation": _TRUNCATION,
            },
        ),
        "Router": _object(
            ("task", "criterion", "candidates"),
            {"task": _FILLED, "criterion": _FILLED, "candidates": candidates, "truncation": _TRUNCATION},
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
    always = {
        "confidence": _PROBABILITY,
        "answer_confidence": _PROBABILITY,
        "action": _object(("act_probability",), {"act_probability": _PROBABILITY}),
    }
    probabilities = {"type": "object", "minProperties": 1, "additionalProperties": _PROBABILITY}

    def answer(kind: str, **properties: Schema) -> Schema:
        names = ("type", *properties, "confidence", "answer_confidence")
        return _object(names, {"type": {"const": kind}, **properties, **always})

    answers = [
        answer("noul", noul=_PROBABILITY),
        answer("choice", choice={"type": ["string", "number", "boolean"]}, probabilities=probabilities),
        answer("score", score={"type": "number", "minimum": 0}, probabilities=probabilities, legend={"type": "object"}),
    ]
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
                "answers": {"type": "object", "additionalProperties": {"oneOf": answers}},
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
