"""Requests of every kind that the tests send."""

from __future__ import annotations

import json
from typing import Any

from layactl.engine.request import MAX_BODY_BYTES

SYSTEMONE, ROUTER, RENDER = "/v1/systemone", "/v1/router/score", "/v1/decision/render"

NOUL = {"type": "noul", "instructions": "Asks for money back?"}
CHOICE = {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "payments", "other": None}}
SCORE = {"type": "score", "instructions": "How urgent?", "criteria": ["low", "mid", "high"]}

# One of each type, and each of their further forms: the example of the specification and what it leaves out.
QUESTIONS: dict[str, Any] = {
    "refund": NOUL,
    "topic": CHOICE,
    "tone": {"type": "choice", "instructions": "Tone?", "criteria": ["calm", "angry", 3, True]},
    "sev": SCORE,
    "levels": {"type": "score", "instructions": {"ask": "Severity?"}, "criteria": [{"n": 1}, 2, "three \u00e9"]},
    "urgent": {
        "type": "noul",
        "instructions": "Urgent?",
        "criteria": {"True": "today"},
        "labels": {"false": "later", "true": "now"},
    },
    "many": {"type": "choice", "instructions": "Number?", "criteria": [f"option {n}" for n in range(20)]},
}
STATES: dict[str, Any] = {
    "text": "Billed twice, please refund me.",
    "other scripts": "\u8acb\u6c42\u66f8 \u0441\u0447\u0451\u0442 cafe\u0301 \U0001f4b8 <mask> [MASK]",
    "object": {"amount": 1234567.89, "paid": False, "items": [1, None, "x"]},
    "list": [{"role": "user", "text": "hello"}, {"role": "agent", "text": "how can I help?"}],
    "number": 12.5,
    "bool": False,
    "long": "the invoice was paid twice and nobody answers " * 200,
    "long list": [f"turn {n}: still waiting" for n in range(200)],
}


def systemone(state: Any = "Billed twice, please refund me.", **questions: Any) -> dict[str, Any]:
    return {"state": state, "questions": questions or {"refund": NOUL}}


def of_size(size: int) -> bytes:
    """A sound body of exactly so many bytes, answered at once: it asks nothing."""
    head, tail = b'{"state": "', b'", "questions": {}}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


GOOD = json.dumps(systemone()).encode()
LARGEST, TOO_LARGE = of_size(MAX_BODY_BYTES), of_size(MAX_BODY_BYTES + 1)

CARD: dict[str, Any] = {
    "schema": "atomic.executor-card/1",
    "name": "Qwen3.5-4B local",
    "kind": "local",
    "description": "4B general model on this laptop (Q4_K_M)",
    "checks": [
        {
            "skill": "field extraction",
            "status": "measured",
            "passed": 188,
            "total": 200,
            "criterion": "exact match",
            "source": "atomic-evals/extract",
            "version": "2026-09",
        },
        {"skill": "long-document QA", "status": "missing", "source": "atomic-evals/longqa", "version": "2026-09"},
    ],
}


def router(*candidates: Any, **fields: Any) -> dict[str, Any]:
    listed = list(candidates) or [
        {"id": "local/qwen3.5-4b-q4_k_m", "card": CARD},
        {"id": "cloud", "card": {"schema": "atomic.executor-card/1", "name": "Big", "kind": "cloud"}},
    ]
    task = {"task": "Extract invoice number, date and total", "criterion": "All three fields exact."}
    return task | {"candidates": listed} | fields


# A spec with a router calibration, as one that was fitted would carry it.
CALIBRATED_SPEC = {
    "spec_version": 1,
    "model_id": "test/router",
    "model_version": "1.2.0",
    "layout": "laya",
    "calibration": {"method": "temperature", "version": "t-1", "temperature": {"all": {"*": 1.7}}},
    "router": {"max_card_tokens": 200, "calibration": {"method": "platt", "a": 1.5, "b": -0.5}},
}
