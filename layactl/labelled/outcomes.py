"""Router outcomes: a task, the executors that tried it, and which of them met the criterion."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from layactl.core.decision_spec import DecisionSpec
from layactl.core.json_fields import JsonObject
from layactl.engine.spec_source import default_spec
from layactl.errors import InputError, RequestError
from layactl.labelled.split import Member, read_member
from layactl.layouts.laya import LAYA
from layactl.reporting.json_lines import read_records
from layactl.router.request import parse_router

KIND = "router"


@dataclass(frozen=True)
class Outcome:
    """One candidate of one task. outcome: 1 where it met the criterion; logit: raw, None where none is known."""

    candidate: str
    card: dict[str, Any]
    outcome: int
    logit: float | None


@dataclass(frozen=True)
class RouterOutcomes:
    """A task with all that tried it."""

    member: Member
    task: str
    criterion: str
    candidates: tuple[Outcome, ...]

    def body(self) -> dict[str, Any]:
        """The request that /v1/router/score takes."""
        candidates = [{"id": outcome.candidate, "card": outcome.card} for outcome in self.candidates]
        return {"task": self.task, "criterion": self.criterion, "candidates": candidates}


def read_outcomes(path: Path) -> list[RouterOutcomes]:
    """`{"id", "task", "criterion", "candidates": [{"id", "card", "outcome": 0 or 1, "logit"?}], "group"?, "split"?}`.

    One a line; every record must be a valid router request. Raises InputError naming the line and the field.
    """
    seen: dict[str, str] = {}
    found = [parse_outcomes(fields, seen) for fields in read_records(path)]
    if not found:
        raise InputError("holds no records", where=str(path))
    return found


def parse_outcomes(fields: JsonObject, seen: dict[str, str]) -> RouterOutcomes:
    """One record. seen: ids of the records before it. Raises InputError."""
    member = read_member(fields, seen)
    body = {key: fields.get(key) for key in ("task", "criterion", "candidates")}
    try:
        parse_router(body, _any_spec())
    except RequestError as error:
        raise InputError(f"is no router request: {error.message} ({error.param})", where=fields.where) from None
    candidates = tuple(
        _outcome(fields.inside(value, f"candidates[{i}]")) for i, value in enumerate(fields.items("candidates"))
    )
    if 0 < sum(outcome.logit is None for outcome in candidates) < len(candidates):
        raise fields.error("candidates", "have logits in part only")
    return RouterOutcomes(member, fields.text("task"), fields.text("criterion"), candidates)


def _outcome(candidate: JsonObject) -> Outcome:
    outcome = candidate.get("outcome")
    if outcome not in (0, 1) or not isinstance(outcome, int):
        raise candidate.error("outcome", "is missing" if outcome is None else f"must be 0 or 1, not {outcome!r:.40}")
    logit = None if candidate.get("logit") is None else candidate.number("logit")
    return Outcome(candidate.text("id"), candidate.get("card"), int(outcome), logit)


@cache
def _any_spec() -> DecisionSpec:
    """The rules for router requests that every model shares."""
    return default_spec(LAYA)
