"""Question definitions -> checked questions with their option texts.

The rules are the reference's (`agent._check_question`, `agent._to_internal`, `common.render_options`); the reasons and
the two extra limits (20 options, two labels with one answer key) are the specification's (POST /v1/systemone).
"""

from __future__ import annotations

from typing import Any

from layactl.core import strict_json
from layactl.errors import RequestError
from layactl.layouts.interface import Question

# Position = the type's row in type_emb and its place in `temperature`.
QUESTION_TYPES = ("choice", "score", "noul")
MAX_OPTIONS = 20

_NOUL_DEFAULTS = {"false": "no, the statement does not hold", "true": "yes, the statement holds"}


def parse_question(question_id: str, definition: Any, max_options: int = MAX_OPTIONS) -> Question:
    """Check one definition. Raises RequestError, `param` = `questions.<id>...`."""
    where = f"questions.{question_id}"
    if not isinstance(definition, dict):
        raise RequestError("INVALID_REQUEST", "a question must be an object", param=where)
    question_type = definition.get("type")
    if not isinstance(question_type, str) or question_type not in QUESTION_TYPES:
        found = "no type" if "type" not in definition else f"unknown type {_show(question_type)}"
        raise RequestError("UNKNOWN_QUESTION_TYPE", f"{found}; use choice, score or noul", param=f"{where}.type")
    if "instructions" not in definition:
        raise RequestError(
            "EMPTY_INSTRUCTIONS", "no instructions; add the text the model should answer", param=f"{where}.instructions"
        )
    criteria = definition.get("criteria")
    if question_type == "choice":
        labels, options = _choice(criteria, f"{where}.criteria", max_options)
    elif question_type == "score":
        labels, options = _score(criteria, f"{where}.criteria", max_options)
    else:
        descriptions = _noul_descriptions(criteria, f"{where}.criteria")
        words = _noul_words(definition.get("labels"), f"{where}.labels")
        labels, options = ("false", "true"), _noul_options(descriptions, words)
    if question_type != "noul" and "labels" in definition:
        raise RequestError(
            "UNSUPPORTED_CRITERIA_VALUE", "labels belong to noul questions only", param=f"{where}.labels"
        )
    keys = tuple(map(strict_json.json_key, labels)) if question_type == "choice" else _indices(len(options))
    instructions = definition["instructions"]
    return Question(
        id=question_id,
        type=question_type,
        instructions=instructions if isinstance(instructions, str) else strict_json.dumps(instructions),
        options=options,
        keys=keys,
        labels=labels,
    )


def _choice(criteria: Any, where: str, max_options: int) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    if not criteria and (criteria is None or isinstance(criteria, (dict, list))):
        raise RequestError("TOO_FEW_OPTIONS", "a choice needs at least one option", param=where)
    if not isinstance(criteria, (dict, list)):
        raise RequestError(
            "UNSUPPORTED_CRITERIA_VALUE",
            "a choice takes an object {label: description} or a list of labels",
            param=where,
        )
    _check_count(len(criteria), where, max_options)
    descriptions = criteria if isinstance(criteria, dict) else dict.fromkeys(range(len(criteria)))
    labels = tuple(criteria)
    first_with: dict[Any, int] = {}
    first_key: dict[str, int] = {}
    for i, label in enumerate(labels):
        at = f"{where}[{i}]" if isinstance(criteria, list) else where
        if not isinstance(label, (str, int, float)):
            found = "null" if label is None else f"a {type(label).__name__}"
            raise RequestError(
                "UNSUPPORTED_CRITERIA_VALUE", f"label {i} is {found}; use a string, number or bool", param=at
            )
        if (first := first_with.setdefault(label, i)) != i:
            raise RequestError(
                "UNSUPPORTED_CRITERIA_VALUE", f"label {i} ({_show(label)}) repeats label {first}", param=at
            )
        key = strict_json.json_key(label)
        if (first := first_key.setdefault(key, i)) != i:
            raise RequestError(
                "UNSUPPORTED_CRITERIA_VALUE", f'labels {first} and {i} share the answer key "{key}"', param=at
            )
    options = tuple(
        str(label) if description is None or description == "" else f"{label}: {_criterion_text(description)}"
        for label, description in zip(labels, descriptions.values(), strict=True)
    )
    return labels, options


def _score(criteria: Any, where: str, max_options: int) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    if criteria is None or criteria == []:
        raise RequestError("TOO_FEW_OPTIONS", "a score needs at least one level", param=where)
    if not isinstance(criteria, list):
        raise RequestError(
            "UNSUPPORTED_CRITERIA_VALUE", "a score takes a list of level descriptions, lowest first", param=where
        )
    _check_count(len(criteria), where, max_options)
    for i, level in enumerate(criteria):
        if level is None:
            raise RequestError("UNSUPPORTED_CRITERIA_VALUE", f"level {i} is null", param=f"{where}[{i}]")
    return tuple(criteria), tuple(f"level {i}: {_criterion_text(level)}" for i, level in enumerate(criteria))


def _noul_words(labels: Any, where: str) -> tuple[str, str]:
    if labels is None:
        return "false", "true"
    problem = None
    if not isinstance(labels, dict) or set(labels) != {"false", "true"}:
        problem = 'labels must be an object with exactly "false" and "true"'
    elif not all(isinstance(word, str) for word in labels.values()):
        problem = "labels must be strings"
    else:
        words = labels["false"].strip(), labels["true"].strip()
        if all(words) and words[0] != words[1]:
            return words
        problem = "labels must be distinct and not blank"
    raise RequestError("INVALID_NOUL_CRITERIA", problem, param=where)


def _noul_descriptions(criteria: Any, where: str) -> dict[str, Any]:
    if criteria is not None and not isinstance(criteria, dict):
        raise RequestError(
            "INVALID_NOUL_CRITERIA", "a noul takes criteria as an object keyed true / false, or none", param=where
        )
    descriptions = {str(key).lower(): value for key, value in (criteria or {}).items()}
    if unknown := sorted(set(descriptions) - {"true", "false"}):
        raise RequestError(
            "INVALID_NOUL_CRITERIA",
            f"unknown key {_show(unknown[0])}; noul criteria are keyed true / false (use labels to reword the answers)",
            param=where,
        )
    return descriptions


def _noul_options(descriptions: dict[str, Any], words: tuple[str, str]) -> tuple[str, ...]:
    options = []
    for key, word in zip(("false", "true"), words, strict=True):
        description = descriptions.get(key)
        text = _NOUL_DEFAULTS[key] if description is None or description == "" else _criterion_text(description)
        options.append(f"{word}: {text}")
    return tuple(options)


def _criterion_text(value: Any) -> str:
    return value if isinstance(value, str) else strict_json.dumps(value)


def _check_count(count: int, where: str, max_options: int) -> None:
    if count > max_options:
        raise RequestError("TOO_MANY_OPTIONS", f"{count} options; at most {max_options}", param=where)


def _indices(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
