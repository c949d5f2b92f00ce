"""router.card: which cards are executor cards, what their card-v1 text is, and that the JSON Schema says the same."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_examples import CARD, CARD_TEXT, CHECK, MISSING, REFUSED_CARDS, SCHEMA, SMALL_CARD, card, check, missing

from layactl.errors import RequestError
from layactl.router.card import MAX_CARD_STRING_BYTES, parse_card

LARGEST = 2**63 - 1
HEAD = "executor: A\nkind: local\n"


def small(**fields: Any) -> dict[str, Any]:
    return SMALL_CARD | fields


def measured(**fields: Any) -> dict[str, Any]:
    return small(checks=[{"skill": "s", "status": "measured", "passed": 3, "total": 4} | fields])


def unmeasured(**fields: Any) -> dict[str, Any]:
    return small(checks=[{"skill": "s", "status": "missing"} | fields])


# card -> its text
RENDERED = {
    "the specification's example": (CARD, CARD_TEXT),
    "no checks key": (SMALL_CARD, f"{HEAD}checks: none"),
    "empty checks": (small(checks=[]), f"{HEAD}checks: none"),
    "description": (small(description="d"), f"{HEAD}description: d\nchecks: none"),
    "empty description": (small(description=""), f"{HEAD}checks: none"),
    "blank description": (small(description=" \t\n"), f"{HEAD}checks: none"),
    "keys in another order": (dict(reversed(CARD.items())), CARD_TEXT),
    "control characters in a name": (small(name=" \tA\x00\x7f  B\n"), "executor: A B\nkind: local\nchecks: none"),
    "line ends in a kind": (small(kind="a\r\nb\n\nc"), "executor: A\nkind: a b c\nchecks: none"),
    "space runs": (small(description="  a   b  "), f"{HEAD}description: a b\nchecks: none"),
    "only C0, DEL and space are spaces": (
        small(name="a\x85b\u00a0c\u2028d\u3000e\u200bf\x80g"),
        "executor: a\x85b\u00a0c\u2028d\u3000e\u200bf\x80g\nkind: local\nchecks: none",
    ),
    "text that looks like a card": (
        small(name="A\nkind: cloud"),
        "executor: A kind: cloud\nkind: local\nchecks: none",
    ),
    "special-token text is kept": (small(name="<mask> [CLS]"), "executor: <mask> [CLS]\nkind: local\nchecks: none"),
    "non-ASCII": (small(name="\u672c\u5730 caf\u00e9"), "executor: \u672c\u5730 caf\u00e9\nkind: local\nchecks: none"),
    "measured": (measured(), f"{HEAD}checks:\n- s: passed 3 of 4"),
    "measured with a criterion": (measured(criterion="c"), f"{HEAD}checks:\n- s: passed 3 of 4; criterion: c"),
    "measured with a blank criterion": (measured(criterion=" "), f"{HEAD}checks:\n- s: passed 3 of 4"),
    "measured with a source": (measured(source="src"), f"{HEAD}checks:\n- s: passed 3 of 4; source: src"),
    "measured with a version": (measured(version="v1"), f"{HEAD}checks:\n- s: passed 3 of 4; source: v1"),
    "measured with both": (measured(source="src", version="v1"), f"{HEAD}checks:\n- s: passed 3 of 4; source: src v1"),
    "blank source": (measured(source="\x00", version="v1"), f"{HEAD}checks:\n- s: passed 3 of 4; source: v1"),
    "blank version": (measured(source="src", version="\t"), f"{HEAD}checks:\n- s: passed 3 of 4; source: src"),
    "nothing passed": (measured(passed=0, total=1), f"{HEAD}checks:\n- s: passed 0 of 1"),
    "all passed": (measured(passed=4), f"{HEAD}checks:\n- s: passed 4 of 4"),
    "the largest counts": (
        measured(passed=LARGEST, total=LARGEST),
        f"{HEAD}checks:\n- s: passed {LARGEST} of {LARGEST}",
    ),
    "missing": (unmeasured(), f"{HEAD}checks:\n- s: not measured"),
    "missing with a source": (unmeasured(source="src"), f"{HEAD}checks:\n- s: not measured; source: src"),
    "missing with a version": (unmeasured(version="v1"), f"{HEAD}checks:\n- s: not measured; source: v1"),
    "the criterion of a missing check is not shown": (unmeasured(criterion="c"), f"{HEAD}checks:\n- s: not measured"),
    "control characters in a check": (
        measured(skill="a\nb", criterion="c\x1fd", source="e\tf", version="\rg"),
        f"{HEAD}checks:\n- a b: passed 3 of 4; criterion: c d; source: e f g",
    ),
    "unknown fields": (
        small(owner="x", checks=[MISSING | {"note": 1}]),
        f"{HEAD}checks:\n{CARD_TEXT.splitlines()[-1]}",
    ),
    "32 checks": (small(checks=[MISSING] * 32), f"{HEAD}checks:\n" + "\n".join([CARD_TEXT.splitlines()[-1]] * 32)),
}

# Of two faults the one told: fields in this order, checks in theirs.
FIRST = {
    "schema before name": ({"checks": 1}, ".schema"),
    "name before kind": ({"schema": SCHEMA}, ".name"),
    "kind before description": (card(kind=1, description=1), ".kind"),
    "description before checks": (card(description=1, checks=1), ".description"),
    "skill before status": (check(skill="", status=""), ".checks[0].skill"),
    "strings before status": (check(version=1, status=""), ".checks[0].version"),
    "first check": (card(checks=[CHECK | {"status": ""}, 1]), ".checks[0].status"),
}


@pytest.mark.parametrize("name", RENDERED)
def test_the_card_v1_text(name: str):
    value, text = RENDERED[name]
    assert parse_card(value).text == text


@pytest.mark.parametrize("name", [*REFUSED_CARDS, *FIRST])
def test_a_refused_card(name: str):
    value, param = (REFUSED_CARDS | FIRST)[name]
    with pytest.raises(RequestError) as refusal:
        parse_card(value)
    error = refusal.value.to_json()
    assert (error["code"], error["reason"], error["param"]) == (400, "INVALID_CARD", f"card{param}")
    assert error["message"]


STRINGS = {
    "name": lambda text: card(name=text),
    "kind": lambda text: card(kind=text),
    "description": lambda text: card(description=text),
    "skill": lambda text: check(skill=text),
    "criterion": lambda text: check(criterion=text),
    "source": lambda text: check(source=text),
    "version": lambda text: missing(version=text),
}


@pytest.mark.parametrize("text", ["x" * 4096, "\u4e2d" * 1365 + "x", "\U0001f600" * 1024], ids=["1", "3", "4"])
@pytest.mark.parametrize("field", STRINGS)
def test_a_string_may_have_4096_bytes(field: str, text: str):
    assert len(text.encode()) == MAX_CARD_STRING_BYTES
    assert text in parse_card(STRINGS[field](text)).text
    with pytest.raises(RequestError, match="4097 bytes; at most 4096"):
        parse_card(STRINGS[field](text + "x"))


def test_unknown_fields_are_ignored_with_a_warning_each_in_document_order():
    value = {"zz": 1, **CARD, "owner": {"team": "x"}, "checks": [CHECK | {"note": 1}, {"passed!": 0, **MISSING}]}
    parsed = parse_card(value, "candidates[3].card")
    assert parsed.text == CARD_TEXT
    assert [warning["param"] for warning in parsed.warnings] == [
        "candidates[3].card.zz",
        "candidates[3].card.owner",
        "candidates[3].card.checks[0].note",
        "candidates[3].card.checks[1].passed!",
    ]
    assert {(w["reason"], w["message"]) for w in parsed.warnings} == {("unknown_field", "unknown field ignored")}
    assert [list(warning) for warning in parsed.warnings] == [["reason", "message", "param"]] * 4


# -- any card --------------------------------------------------------------------------------------------------------

TEXT = st.text(st.sampled_from("aZ7 \t\n\r\x00\x1f\x7f\x85\u00a0\u2028\u3000\u4e2d\U0001f600:;-<>[]"), max_size=12)
FILLED = TEXT.filter(lambda text: any(c > " " and c != "\x7f" for c in text))
CHECKS = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"skill": FILLED, "status": st.just("measured"), "passed": st.integers(0, 9), "total": st.integers(9, 99)},
            optional={"criterion": TEXT, "source": TEXT, "version": TEXT},
        ),
        st.fixed_dictionaries(
            {"skill": FILLED, "status": st.just("missing")}, optional={"source": TEXT, "version": TEXT}
        ),
    ),
    max_size=4,
)
CARDS = st.fixed_dictionaries(
    {"schema": st.just(SCHEMA), "name": FILLED, "kind": FILLED}, optional={"description": TEXT, "checks": CHECKS}
)


@given(CARDS)
def test_every_part_of_a_card_is_one_line_without_controls_or_space_runs(value: dict[str, Any]):
    text = parse_card(value).text
    lines = text.split("\n")
    assert len(lines) == 3 + bool(value.get("description", "").strip(" \t\n\r\0\x1f\x7f")) + len(
        value.get("checks", [])
    )
    assert not any(ord(c) < 0x20 or c == "\x7f" for line in lines for c in line)
    assert "  " not in text
    assert all(line == line.strip(" ") for line in lines)


# -- the schema ------------------------------------------------------------------------------------------------------

VALIDATOR = jsonschema.Draft202012Validator(
    json.loads(files("layactl").joinpath("router/executor-card-v1.schema.json").read_text(encoding="utf-8"))
)
# What JSON Schema cannot say (its description lists the three).
SCHEMA_ACCEPTS_TOO = {
    "name over 4096 bytes in 1366 characters",
    "description over 4096 bytes",
    "float passed",
    "float total",
    "negative zero",
    "more passed than total",
}


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(VALIDATOR.schema)


@pytest.mark.parametrize("name", RENDERED)
def test_the_schema_accepts_a_card(name: str):
    VALIDATOR.validate(RENDERED[name][0])


@pytest.mark.parametrize("name", REFUSED_CARDS)
def test_the_schema_refuses_what_is_no_card_but_for_the_three_documented_gaps(name: str):
    assert VALIDATOR.is_valid(REFUSED_CARDS[name][0]) == (name in SCHEMA_ACCEPTS_TOO)


FAULTS: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**64), st.floats(allow_nan=False), TEXT, st.lists(CHECKS, max_size=2)
)
PLACES = [
    "schema",
    "name",
    "kind",
    "description",
    "checks",
    "skill",
    "status",
    "passed",
    "total",
    "criterion",
    "source",
]


@given(CARDS, st.sampled_from(PLACES), FAULTS)
def test_schema_and_validator_agree_on_any_card(value: dict[str, Any], place: str, fault: Any):
    inside_check = place not in CARD
    if inside_check:
        value = value | {"checks": [CHECK | {place: fault}]}
    else:
        value = value | {place: fault}
    try:
        parse_card(value)
        accepted = True
    except RequestError:
        accepted = False
    if VALIDATOR.is_valid(value) != accepted:
        # Only the gaps, and only in one direction.
        counts = [value["checks"][0][key] for key in ("passed", "total")]
        assert not accepted
        assert any(isinstance(n, float) and n.is_integer() for n in counts) or counts[0] > counts[1]
