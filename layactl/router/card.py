"""Executor cards: JSON -> checked card with its card-v1 text (specification, POST /v1/router/score, Card rules).

A router is trained on this text, so it may not vary by a byte: nothing is formatted by locale, nothing is guessed. The
rules as JSON Schema, for standard validators, are in executor-card-v1.schema.json beside this file; its description
lists the three that JSON Schema cannot say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeGuard

from layactl.core.decision_spec import CARD_SCHEMA
from layactl.errors import RequestError

MAX_CHECKS = 32
MAX_CARD_STRING_BYTES = 4096

_CARD_FIELDS = ("schema", "name", "kind", "description", "checks")
_CHECK_FIELDS = ("skill", "status", "passed", "total", "criterion", "source", "version")
_LARGEST_COUNT = 2**63 - 1

# C0 controls, space and DEL. Everything else (C1 controls, U+2028, no-break space) is text: the training pipeline's
# renderer leaves it alone.
_SPACES = re.compile(r"[\x00-\x20\x7f]+")


@dataclass(frozen=True)
class Card:
    """text: card-v1, without a line end; warnings: of fields that were ignored."""

    text: str
    warnings: tuple[dict[str, Any], ...]


def parse_card(value: Any, param: str = "card") -> Card:
    """Check a card and render it. param: its path in the request, which errors and warnings start with.

    Raises RequestError INVALID_CARD.
    """
    if not isinstance(value, dict):
        raise _invalid(param, "a card must be an object")
    if value.get("schema") != CARD_SCHEMA:
        raise _invalid(f"{param}.schema", f'must be "{CARD_SCHEMA}"')
    name = _required_line(value, "name", param)
    kind = _required_line(value, "kind", param)
    description = _line(value, "description", param)
    warnings = unknown_fields(value, _CARD_FIELDS, param)
    lines = [f"executor: {name}", f"kind: {kind}", *([f"description: {description}"] if description else [])]
    checks = value.get("checks", [])
    if not isinstance(checks, list):
        raise _invalid(f"{param}.checks", "must be a list")
    if len(checks) > MAX_CHECKS:
        raise _invalid(f"{param}.checks", f"{len(checks)} checks; at most {MAX_CHECKS}")
    lines.append("checks:" if checks else "checks: none")
    for i, check in enumerate(checks):
        path = f"{param}.checks[{i}]"
        lines.append(_check_line(check, path))
        warnings += unknown_fields(check, _CHECK_FIELDS, path)
    return Card("\n".join(lines), tuple(warnings))


def unknown_fields(values: dict[str, Any], known: Iterable[str], param: str) -> list[dict[str, Any]]:
    """A warning for every field that means nothing here."""
    return [
        {"reason": "unknown_field", "message": "unknown field ignored", "param": f"{param}.{key}"}
        for key in values
        if key not in known
    ]


def _check_line(check: Any, param: str) -> str:
    """`- <skill>: <result>; ...`, parts that are absent or blank left out."""
    if not isinstance(check, dict):
        raise _invalid(param, "a check must be an object")
    skill = _required_line(check, "skill", param)
    criterion, source, version = (_line(check, key, param) for key in ("criterion", "source", "version"))
    origin = " ".join(part for part in (source, version) if part)
    status = check.get("status")
    if status == "measured":
        passed, total = _counts(check, param)
        parts = [f"passed {passed} of {total}", criterion and f"criterion: {criterion}"]
    elif status == "missing":
        if "passed" in check or "total" in check:
            raise _invalid(param, "a missing check has no passed and no total")
        parts = ["not measured"]
    else:
        raise _invalid(f"{param}.status", 'must be "measured" or "missing"')
    parts.append(origin and f"source: {origin}")
    return f"- {skill}: " + "; ".join(part for part in parts if part)


def _counts(check: dict[str, Any], param: str) -> tuple[int, int]:
    passed, total = check.get("passed"), check.get("total")
    if not _is_integer(passed) or not _is_integer(total):
        raise _invalid(param, "a measured check needs passed and total as integers")
    if not 0 <= passed <= total <= _LARGEST_COUNT or total < 1:
        raise _invalid(param, "a measured check needs 0 <= passed <= total, 1 <= total < 2^63")
    return passed, total


def _is_integer(value: Any) -> TypeGuard[int]:
    # 188.0 is none: two languages would spell it differently.
    return isinstance(value, int) and not isinstance(value, bool)


def _required_line(values: dict[str, Any], key: str, param: str) -> str:
    if key not in values:
        raise _invalid(f"{param}.{key}", "is missing")
    line = _line(values, key, param)
    if not line:
        raise _invalid(f"{param}.{key}", "must not be blank")
    return line


def _line(values: dict[str, Any], key: str, param: str) -> str:
    """A card string on one line: control characters are spaces, runs of spaces are one; "" where it is absent."""
    value = values.get(key, "")
    if not isinstance(value, str):
        raise _invalid(f"{param}.{key}", "must be a string")
    if (size := len(value.encode("utf-8", "surrogatepass"))) > MAX_CARD_STRING_BYTES:
        raise _invalid(f"{param}.{key}", f"{size} bytes; at most {MAX_CARD_STRING_BYTES}")
    return _SPACES.sub(" ", value).strip(" ")


def _invalid(param: str, message: str) -> RequestError:
    return RequestError("INVALID_CARD", message, param=param)
