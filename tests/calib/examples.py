"""Records that the tests start from, and the files made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SCHEMA = "atomic.executor-card/1"
QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Asks for money back?"},
    "team": {
        "type": "choice",
        "instructions": "Which team?",
        "criteria": {"billing": "payments", "tech": None, "3": ""},
    },
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["low", "mid", "high"]},
}


def decision(record_id: Any = "d1", **fields: Any) -> dict[str, Any]:
    """A labelled decision; a field given as None is left out."""
    record = {
        "id": record_id,
        "state": "Billed twice.",
        "questions": QUESTIONS,
        "gold": {"refund": True, "team": "billing", "urgency": 1},
    } | fields
    return {key: value for key, value in record.items() if value is not None}


def card(passed: int = 8, total: int = 10, kind: str = "local") -> dict[str, Any]:
    check = {"skill": "sums", "status": "measured", "passed": passed, "total": total}
    return {"schema": SCHEMA, "name": "A", "kind": kind, "checks": [check]}


def candidate(candidate_id: Any = "a", **fields: Any) -> dict[str, Any]:
    record = {"id": candidate_id, "card": card(), "outcome": 1} | fields
    return {key: value for key, value in record.items() if value is not None}


def outcomes(record_id: Any = "t1", **fields: Any) -> dict[str, Any]:
    """A task with the outcomes of two candidates; a field given as None is left out."""
    candidates = [candidate("a"), candidate("b", outcome=0)]
    record = {"id": record_id, "task": "Add up.", "criterion": "Exact.", "candidates": candidates} | fields
    return {key: value for key, value in record.items() if value is not None}


def jsonl(path: Path, records: Iterable[Any]) -> Path:
    """One record a line; text and bytes stand as they are."""
    lines = (
        r if isinstance(r, bytes) else r.encode() if isinstance(r, str) else json.dumps(r).encode() for r in records
    )
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path
