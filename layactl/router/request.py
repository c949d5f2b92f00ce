"""A router body -> a checked RouterRequest (specification, POST /v1/router/score)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from layactl.core.decision_spec import DecisionSpec
from layactl.engine.request import parse_truncation
from layactl.errors import RequestError
from layactl.router.card import Card, parse_card, unknown_fields

_ID = re.compile(r"[A-Za-z0-9._:/@+-]{1,128}")


@dataclass(frozen=True)
class Candidate:
    """An executor to score. param: its path in the request."""

    id: str
    card: Card
    param: str


@dataclass(frozen=True)
class RouterRequest:
    """warnings: of fields that were ignored, in document order of the candidates."""

    task: str
    criterion: str
    truncation: str
    candidates: tuple[Candidate, ...]
    warnings: tuple[dict[str, Any], ...]


def parse_router(body: dict[str, Any], spec: DecisionSpec, max_candidates: int | None = None) -> RouterRequest:
    """Check a router body; its values already meet the rules of strict JSON.

    max_candidates: a server's limit, where it is below the spec's.

    Raises RequestError with the specification's reason and the JSON path of the bad field, the first in the order task,
    criterion, truncation, candidates.
    """
    task, criterion = _text(body, "task"), _text(body, "criterion")
    truncation = parse_truncation(body)
    values = body.get("candidates")
    if not isinstance(values, list) or not values:
        raise RequestError("INVALID_REQUEST", "candidates must be a list of at least one", param="candidates")
    most = spec.max_candidates if max_candidates is None else min(max_candidates, spec.max_candidates)
    if len(values) > most:
        raise RequestError("TOO_MANY_CANDIDATES", f"{len(values)} candidates; at most {most}", param="candidates")
    candidates: list[Candidate] = []
    warnings: list[dict[str, Any]] = []
    ids: set[str] = set()
    for i, value in enumerate(values):
        candidate = _candidate(value, f"candidates[{i}]", ids)
        ids.add(candidate.id)
        candidates.append(candidate)
        warnings += [*candidate.card.warnings, *unknown_fields(value, ("id", "card"), candidate.param)]
    return RouterRequest(task, criterion, truncation, tuple(candidates), tuple(warnings))


def _text(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value.strip():
        raise RequestError("INVALID_REQUEST", f"{key} must be text and not blank", param=key)
    return value


def _candidate(value: Any, param: str, taken: set[str]) -> Candidate:
    if not isinstance(value, dict):
        raise RequestError("INVALID_CARD", "a candidate must be an object", param=param)
    candidate_id = value.get("id")
    if not isinstance(candidate_id, str) or not _ID.fullmatch(candidate_id):
        raise RequestError("INVALID_CANDIDATE_ID", f"an id must match {_ID.pattern}", param=f"{param}.id")
    if candidate_id in taken:
        raise RequestError("DUPLICATE_CANDIDATE_ID", f"{candidate_id!r} is there twice", param=f"{param}.id")
    if "card" not in value:
        raise RequestError("INVALID_CARD", "the candidate has no card", param=f"{param}.card")
    return Candidate(candidate_id, parse_card(value["card"], f"{param}.card"), param)
