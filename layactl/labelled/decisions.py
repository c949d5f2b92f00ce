"""Labelled decisions: states, their questions and the right answers, a record a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.core import strict_json
from layactl.core.json_fields import JsonObject
from layactl.errors import InputError, RequestError
from layactl.labelled.gold import Gold, parse_gold
from layactl.labelled.split import Member, read_member
from layactl.layouts.laya import LAYA
from layactl.reporting.json_lines import read_records

KIND = "decision"
# Fields that results can be told apart by, beside what the questions themselves say.
TAGS = ("lang", "workflow")


@dataclass(frozen=True)
class LabelledDecision:
    """A state with its questions.

    gold: by question id, of the questions that have one; refusal: why the request cannot be asked, None where it can;
    tags: its language and the like.
    """

    member: Member
    state: Any
    questions: dict[str, Any]
    gold: Mapping[str, Gold]
    tags: Mapping[str, str]
    refusal: RequestError | None


def read_decisions(path: Path) -> list[LabelledDecision]:
    """`{"id", "state", "questions", "gold", "lang"?, "group"?, "split"?, "workflow"?}` a line.

    "questions" and "gold" may be JSON texts, as in an export of LocalLLaMA/typed-decisions; "state" then is one too.
    A question the engine would refuse is no error of the file: its record carries the refusal.
    Raises InputError naming the line and the field.
    """
    seen: dict[str, str] = {}
    found = [parse_decision(fields, seen) for fields in read_records(path)]
    if not found:
        raise InputError("holds no records", where=str(path))
    return found


def parse_decision(fields: JsonObject, seen: dict[str, str]) -> LabelledDecision:
    """One record. seen: ids of the records before it. Raises InputError."""
    member = read_member(fields, seen)
    encoded = isinstance(fields.get("questions"), str)
    state = fields.get("state")
    if state is None:
        raise fields.error("state", "is missing")
    questions = _mapping(fields, "questions")
    if encoded:
        state = _decoded(fields, "state")
    gold_fields = fields.inside(_mapping(fields, "gold"), "gold")
    if unknown := [key for key in gold_fields.values if key not in questions]:
        raise gold_fields.error(unknown[0], "belongs to no question of the record")
    gold: dict[str, Gold] = {}
    refusal = None
    for question_id, definition in questions.items():
        try:
            question = LAYA.parse_question(question_id, definition)
        except RequestError as error:
            refusal = refusal or error
            continue
        if (value := gold_fields.get(question_id)) is not None:
            gold[question_id] = parse_gold(value, question, gold_fields)
    tags = {key: fields.text(key) for key in TAGS if fields.get(key) is not None}
    return LabelledDecision(member, state, questions, gold, tags, refusal)


def _mapping(fields: JsonObject, key: str) -> dict[str, Any]:
    value = _decoded(fields, key) if isinstance(fields.get(key), str) else fields.get(key)
    if not isinstance(value, dict):
        raise fields.error(key, "is missing" if value is None else "must be an object")
    return value


def _decoded(fields: JsonObject, key: str) -> Any:
    """The value of a column that holds JSON as text."""
    try:
        return strict_json.loads_strict(fields.text(key))
    except RequestError as error:
        raise fields.error(key, f"holds text that is no JSON: {error.message}") from None
