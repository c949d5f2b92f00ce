"""Cards and router requests that the tests start from, and ways to change one thing about them."""

from __future__ import annotations

from typing import Any

SCHEMA = "atomic.executor-card/1"
CHECK: dict[str, Any] = {
    "skill": "field extraction",
    "status": "measured",
    "passed": 188,
    "total": 200,
    "criterion": "exact match",
    "source": "atomic-evals/extract",
    "version": "2026-09",
}
MISSING: dict[str, Any] = {
    "skill": "long-document QA",
    "status": "missing",
    "source": "atomic-evals/longqa",
    "version": "2026-09",
}
# The example of the specification and its text.
CARD: dict[str, Any] = {
    "schema": SCHEMA,
    "name": "Qwen3.5-4B local",
    "kind": "local",
    "description": "4B general model on this laptop (Q4_K_M)",
    "checks": [CHECK, MISSING],
}
CARD_TEXT = """executor: Qwen3.5-4B local
kind: local
description: 4B general model on this laptop (Q4_K_M)
checks:
- field extraction: passed 188 of 200; criterion: exact match; source: atomic-evals/extract 2026-09
- long-document QA: not measured; source: atomic-evals/longqa 2026-09"""
SMALL_CARD: dict[str, Any] = {"schema": SCHEMA, "name": "A", "kind": "local"}


def card(**fields: Any) -> dict[str, Any]:
    return CARD | fields


def check(**fields: Any) -> dict[str, Any]:
    """The card with one check, changed in these fields."""
    return card(checks=[CHECK | fields])


def missing(**fields: Any) -> dict[str, Any]:
    return card(checks=[MISSING | fields])


def without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def candidate(candidate_id: Any = "a", card: Any = None, **fields: Any) -> dict[str, Any]:
    return {"id": candidate_id, "card": SMALL_CARD if card is None else card, **fields}


def body(*candidates: Any, **fields: Any) -> dict[str, Any]:
    """A request for these candidates (one, if none are given), changed in these fields."""
    return {"task": "Sum it", "criterion": "Exact", "candidates": list(candidates) or [candidate()]} | fields


# card -> the param of its refusal, below "card"
REFUSED_CARDS: dict[str, tuple[Any, str]] = {
    "text": ("card", ""),
    "list": ([CARD], ""),
    "null": (None, ""),
    "number": (1, ""),
    "empty object": ({}, ".schema"),
    "no schema": (without(CARD, "schema"), ".schema"),
    "null schema": (card(schema=None), ".schema"),
    "schema of another version": (card(schema="atomic.executor-card/2"), ".schema"),
    "schema as a number": (card(schema=1), ".schema"),
    "schema as a list": (card(schema=[SCHEMA]), ".schema"),
    "schema with a space": (card(schema=f"{SCHEMA} "), ".schema"),
    "no name": (without(CARD, "name"), ".name"),
    "null name": (card(name=None), ".name"),
    "number as a name": (card(name=5), ".name"),
    "empty name": (card(name=""), ".name"),
    "blank name": (card(name=" \t\n"), ".name"),
    "name of control characters": (card(name="\x00\x7f"), ".name"),
    "name over 4096 bytes": (card(name="x" * 4097), ".name"),
    "name over 4096 bytes in 1366 characters": (card(name="\u4e2d" * 1366), ".name"),
    "no kind": (without(CARD, "kind"), ".kind"),
    "null kind": (card(kind=None), ".kind"),
    "list as a kind": (card(kind=["local"]), ".kind"),
    "blank kind": (card(kind="  "), ".kind"),
    "kind over 4096 bytes": (card(kind="x" * 4097), ".kind"),
    "null description": (card(description=None), ".description"),
    "number as a description": (card(description=1), ".description"),
    "object as a description": (card(description={"text": "x"}), ".description"),
    "description over 4096 bytes": (card(description="\u00e9" * 2049), ".description"),
    "spaces over 4096 bytes": (card(description=" " * 4097), ".description"),
    "null checks": (card(checks=None), ".checks"),
    "object as checks": (card(checks={}), ".checks"),
    "text as checks": (card(checks="none"), ".checks"),
    "33 checks": (card(checks=[MISSING] * 33), ".checks"),
    "text as a check": (card(checks=["x"]), ".checks[0]"),
    "null as a check": (card(checks=[None]), ".checks[0]"),
    "list as a check": (card(checks=[[]]), ".checks[0]"),
    "second check": (card(checks=[CHECK, 1]), ".checks[1]"),
    "empty check": (card(checks=[{}]), ".checks[0].skill"),
    "no skill": (card(checks=[without(CHECK, "skill")]), ".checks[0].skill"),
    "null skill": (check(skill=None), ".checks[0].skill"),
    "blank skill": (check(skill="\n"), ".checks[0].skill"),
    "number as a skill": (check(skill=1), ".checks[0].skill"),
    "skill over 4096 bytes": (check(skill="x" * 4097), ".checks[0].skill"),
    "null criterion": (check(criterion=None), ".checks[0].criterion"),
    "bool as a criterion": (check(criterion=True), ".checks[0].criterion"),
    "criterion over 4096 bytes": (check(criterion="x" * 4097), ".checks[0].criterion"),
    "null source": (check(source=None), ".checks[0].source"),
    "source over 4096 bytes": (check(source="x" * 4097), ".checks[0].source"),
    "number as a version": (check(version=2026), ".checks[0].version"),
    "version over 4096 bytes": (missing(version="x" * 4097), ".checks[0].version"),
    "no status": (card(checks=[without(CHECK, "status")]), ".checks[0].status"),
    "null status": (check(status=None), ".checks[0].status"),
    "status in capitals": (check(status="Measured"), ".checks[0].status"),
    "unknown status": (check(status="unknown"), ".checks[0].status"),
    "list as a status": (check(status=["measured"]), ".checks[0].status"),
    "no passed": (card(checks=[without(CHECK, "passed")]), ".checks[0]"),
    "no total": (card(checks=[without(CHECK, "total")]), ".checks[0]"),
    "null passed": (check(passed=None), ".checks[0]"),
    "float passed": (check(passed=188.0), ".checks[0]"),
    "float total": (check(total=200.0), ".checks[0]"),
    "fraction": (check(passed=1.5), ".checks[0]"),
    "negative zero": (check(passed=-0.0), ".checks[0]"),
    "bool passed": (check(passed=True, total=2), ".checks[0]"),
    "text passed": (check(passed="188"), ".checks[0]"),
    "more passed than total": (check(passed=201), ".checks[0]"),
    "negative passed": (check(passed=-1), ".checks[0]"),
    "negative total": (check(passed=-2, total=-1), ".checks[0]"),
    "total of zero": (check(passed=0, total=0), ".checks[0]"),
    "total of 2^63": (check(total=2**63), ".checks[0]"),
    "both 2^64 - 1": (check(passed=2**64 - 1, total=2**64 - 1), ".checks[0]"),
    "missing with passed": (missing(passed=1), ".checks[0]"),
    "missing with total": (missing(total=1), ".checks[0]"),
    "missing with null passed": (missing(passed=None), ".checks[0]"),
}
