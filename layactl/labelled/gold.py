"""The right answer to a question: a label, or a distribution over its options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layactl.core import strict_json
from layactl.core.json_fields import JsonObject
from layactl.errors import InputError
from layactl.layouts.interface import Question

# Distributions are written with few digits: three thirds are 0.999.
_SUM_TOLERANCE = 0.02


@dataclass(frozen=True)
class Gold:
    """label: index of the right option; probabilities: over all options, 1 for the label where only that is known."""

    label: int
    probabilities: tuple[float, ...]

    @property
    def soft(self) -> bool:
        """Whether it is more than a label."""
        return self.probabilities[self.label] != 1.0

    def to_json(self) -> dict[str, Any]:
        return {"label": self.label} | ({"probabilities": list(self.probabilities)} if self.soft else {})


def option_keys(question: Question) -> tuple[str, ...]:
    """What an option is called in answers and in gold: a choice's labels, a score's levels "0", "1", ..., and "false"
    and "true" of a noul.
    """
    return tuple(map(str, question.labels)) if question.type == "noul" else question.keys


def parse_gold(value: Any, question: Question, fields: JsonObject) -> Gold:
    """The gold of one question.

    value: `true` or `false` of a noul; a label of a choice; the index of a score's level, from 0 (or the level's own
    text); a distribution {key: probability}; or {"label"?, "probabilities"?} as the typed-decisions benchmark has it.
    fields: the record's "gold" object, for errors. Raises InputError naming the question and what was found.
    """
    if not isinstance(value, dict):
        return _one_hot(_label(value, question, fields), len(option_keys(question)))
    # A choice may have an option called "label"; what it holds tells its share from the name of the right one.
    if set(value) <= set(option_keys(question)) and not isinstance(value.get("label"), str):
        return _distribution(value, question, fields, None)
    inner = fields.inside(value, question.id)
    label = None if inner.get("label") is None else _label(value["label"], question, inner, "label")
    probabilities = inner.get("probabilities")
    if probabilities is None:
        if label is None:
            raise fields.error(question.id, 'holds neither a distribution over its options nor a "label"')
        return _one_hot(label, len(option_keys(question)))
    if not isinstance(probabilities, dict):
        raise inner.error("probabilities", "must be an object of option: probability")
    return _distribution(probabilities, question, inner.inside(probabilities, "probabilities"), label)


def read_gold(fields: JsonObject, options: int) -> Gold:
    """What `Gold.to_json` wrote. Raises InputError."""
    label = fields.integer("label")
    if not 0 <= label < options:
        raise fields.error("label", f"is {label}, but there are {options} options")
    if fields.get("probabilities") is None:
        return _one_hot(label, options)
    values = [fields.as_number("probabilities", value) for value in fields.items("probabilities")]
    if len(values) != options:
        raise fields.error("probabilities", f"holds {len(values)} numbers for {options} options")
    return Gold(label, _normalised(values, fields))


def _label(value: Any, question: Question, fields: JsonObject, key: str | None = None) -> int:
    key = question.id if key is None else key
    if question.type == "noul":
        if isinstance(value, bool):
            return int(value)
        if value in ("false", "true"):
            return ("false", "true").index(value)
        raise fields.error(key, f"must be true or false, not {value!r:.60}")
    if question.type == "score":
        return _level(value, question, fields, key)
    if isinstance(value, (str, int, float)) and strict_json.json_key(value) in option_keys(question):
        return option_keys(question).index(strict_json.json_key(value))
    raise fields.error(key, f"is {value!r:.60}, which is no label of this choice")


def _level(value: Any, question: Question, fields: JsonObject, key: str) -> int:
    count = len(option_keys(question))
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < count:
            return value
        raise fields.error(key, f"is level {value}; levels are counted from 0, and there are {count}")
    found = {i for i, level in enumerate(question.labels) if isinstance(value, str) and level == value}
    found |= (
        {option_keys(question).index(value)} if isinstance(value, str) and value in option_keys(question) else set()
    )
    if len(found) != 1:
        what = "no level" if not found else "more than one level"
        raise fields.error(key, f"is {value!r:.60}, which is {what} of this score; give the level's index, from 0")
    return found.pop()


def _distribution(values: dict[str, Any], question: Question, fields: JsonObject, label: int | None) -> Gold:
    if unknown := sorted(set(values) - set(option_keys(question))):
        raise fields.error(unknown[0], "is no option of this question")
    numbers = [fields.as_number(key, values.get(key, 0.0)) for key in option_keys(question)]
    probabilities = _normalised(numbers, fields)
    # The first of equals, as an answer's label is the first of equals.
    return Gold(probabilities.index(max(probabilities)) if label is None else label, probabilities)


def _normalised(values: Sequence[float], fields: JsonObject) -> tuple[float, ...]:
    if min(values) < 0:
        raise InputError(f"{fields.field:.120} holds a probability below 0", where=fields.where)
    # Of huge numbers there is no exact sum.
    total = math.fsum(values) if max(values) <= 2 else math.inf
    if abs(total - 1.0) > _SUM_TOLERANCE:
        raise InputError(
            f"{fields.field:.120} must hold probabilities that sum to 1, not to {total:g}", where=fields.where
        )
    return tuple(value / total for value in values)


def _one_hot(label: int, options: int) -> Gold:
    return Gold(label, tuple(float(i == label) for i in range(options)))
