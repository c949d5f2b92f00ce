"""The `--ask` shorthand: `[ID=]TYPE: TEXT`, options after the last `?` or after ` -> ` (cli-contract, Commands)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from layactl.errors import UsageError

_SHAPE = re.compile(r"\s*(?:(?P<id>[^=:?|]+?)\s*=\s*)?(?P<type>[A-Za-z]+)\s*:\s*(?P<text>.*\S)\s*", re.DOTALL)
_BAR = re.compile(r"(?<!\\)\|")


def parse_asks(asks: Sequence[str]) -> dict[str, Any]:
    """Question definitions by id; those without one are q1, q2, ... by their place.

    >>> parse_asks(["team=choice: Which team? billing=payments|other", "noul: Is it urgent?"])["q2"]
    {'type': 'noul', 'instructions': 'Is it urgent?'}

    Raises UsageError quoting the shorthand that cannot be read.
    """
    questions: dict[str, Any] = {}
    for n, ask in enumerate(asks, start=1):
        question_id, definition = _parse(ask)
        question_id = question_id or f"q{n}"
        if question_id in questions:
            raise UsageError(f"two questions are called {question_id!r}", where="--ask")
        questions[question_id] = definition
    return questions


def _parse(ask: str) -> tuple[str | None, dict[str, Any]]:
    match = _SHAPE.fullmatch(ask)
    if match is None or match["type"] not in ("choice", "score", "noul"):
        raise _error(ask, "start with choice:, score: or noul:")
    if match["type"] == "noul":
        return match["id"], {"type": "noul", "instructions": match["text"]}
    text, options = _split_options(ask, match["text"])
    criteria = _labels(ask, options) if match["type"] == "choice" else options
    return match["id"], {"type": match["type"], "instructions": text, "criteria": criteria}


def _split_options(ask: str, text: str) -> tuple[str, list[str]]:
    if "?" in text:
        end = text.rindex("?") + 1
        instructions, rest = text[:end], text[end:]
    elif " -> " in text:
        instructions, _, rest = text.partition(" -> ")
    else:
        raise _error(ask, "give options after a '?' or after ' -> ', separated by |")
    options = [option.strip().replace("\\|", "|") for option in _BAR.split(rest)]
    if not all(options):
        raise _error(ask, "an option is empty" if len(options) > 1 else "no options after the question")
    return instructions.strip(), options


def _labels(ask: str, options: list[str]) -> list[str] | dict[str, str | None]:
    if not any("=" in option for option in options):
        return options
    labels: dict[str, str | None] = {}
    for option in options:
        label, equals, description = (part.strip() for part in option.partition("="))
        if not label or label in labels:
            raise _error(ask, f"the label {label!r} is " + ("there twice" if label else "empty"))
        labels[label] = description if equals and description else None
    return labels


def _error(ask: str, message: str) -> UsageError:
    return UsageError(
        f"cannot read {ask!r:.120}: {message}",
        where="--ask",
        hint="for example --ask 'choice: Which team? billing|technical|other'",
    )
