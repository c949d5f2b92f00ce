"""decide.ask: the --ask shorthand, as the command line contract spells it."""

from __future__ import annotations

from typing import Any

import pytest

from layactl.decide.ask import parse_asks
from layactl.errors import UsageError


def choice(instructions: str, criteria: Any) -> dict[str, Any]:
    return {"type": "choice", "instructions": instructions, "criteria": criteria}


def score(instructions: str, *levels: str) -> dict[str, Any]:
    return {"type": "score", "instructions": instructions, "criteria": list(levels)}


def noul(instructions: str) -> dict[str, Any]:
    return {"type": "noul", "instructions": instructions}


# shorthand -> (id, definition)
READ: dict[str, tuple[str, dict[str, Any]]] = {
    "noul: Is it urgent?": ("q1", noul("Is it urgent?")),
    "noul: urgent": ("q1", noul("urgent")),
    "urgent=noul: Is it urgent?": ("urgent", noul("Is it urgent?")),
    "noul: Is a=b? c|d -> e": ("q1", noul("Is a=b? c|d -> e")),
    "choice: Which team? billing|technical|other": ("q1", choice("Which team?", ["billing", "technical", "other"])),
    "choice: Which team?billing|other": ("q1", choice("Which team?", ["billing", "other"])),
    "choice: Which? one": ("q1", choice("Which?", ["one"])),
    "choice: Really? Which? a|b": ("q1", choice("Really? Which?", ["a", "b"])),
    "choice: Which team -> billing|other": ("q1", choice("Which team", ["billing", "other"])),
    "choice: Which -> a|b -> c": ("q1", choice("Which", ["a", "b -> c"])),
    "choice: Which? a -> b|c": ("q1", choice("Which?", ["a -> b", "c"])),
    "choice: Which? a=first|b=second": ("q1", choice("Which?", {"a": "first", "b": "second"})),
    "choice: Which? a=first|b": ("q1", choice("Which?", {"a": "first", "b": None})),
    "choice: Which? a = first one | b = ": ("q1", choice("Which?", {"a": "first one", "b": None})),
    "choice: Which? a=x=y|b": ("q1", choice("Which?", {"a": "x=y", "b": None})),
    "choice: Which? a\\|b|c": ("q1", choice("Which?", ["a|b", "c"])),
    "choice: Which? a=x\\|y|b": ("q1", choice("Which?", {"a": "x|y", "b": None})),
    "choice: Wer? f\u00fcr|gegen": ("q1", choice("Wer?", ["f\u00fcr", "gegen"])),
    "score: How urgent? low|medium|high": ("q1", score("How urgent?", "low", "medium", "high")),
    "score: How much? a=1|b=2": ("q1", score("How much?", "a=1", "b=2")),
    "score: How urgent -> low|high": ("q1", score("How urgent", "low", "high")),
    "my id=score: How? low|high": ("my id", score("How?", "low", "high")),
    " team = choice :  Which?  a | b ": ("team", choice("Which?", ["a", "b"])),
    "t\u00e9am.1=noul: x": ("t\u00e9am.1", noul("x")),
    "choice: Line one\nline two? a|b": ("q1", choice("Line one\nline two?", ["a", "b"])),
    "noul: time 12:30, ok?": ("q1", noul("time 12:30, ok?")),
}


@pytest.mark.parametrize("ask", READ)
def test_the_shorthand_reads(ask: str):
    assert parse_asks([ask]) == dict([READ[ask]])


REFUSED = {
    "": "start with choice:",
    "Is it urgent?": "start with choice:",
    "bool: Is it urgent?": "start with choice:",
    "Noul: Is it urgent?": "start with choice:",
    "noul Is it urgent?": "start with choice:",
    "noul:": "start with choice:",
    "noul:   ": "start with choice:",
    "=noul: x": "start with choice:",
    "a?b=noul: x": "start with choice:",
    "choice: Which team": "give options after a '?' or after ' -> '",
    "choice: a|b": "give options",
    "score: How urgent": "give options",
    "choice: Which?": "no options after the question",
    "choice: Which? a||b": "an option is empty",
    "choice: Which? a|b|": "an option is empty",
    "choice: Which? |": "an option is empty",
    "choice: Which? =x|b": "the label '' is empty",
    "choice: Which? a=x|a=y": "the label 'a' is there twice",
    "choice: Which? a=x|a": "the label 'a' is there twice",
}


@pytest.mark.parametrize("ask", REFUSED)
def test_what_cannot_be_read_is_quoted(ask: str):
    with pytest.raises(UsageError) as error:
        parse_asks([ask])
    assert REFUSED[ask] in error.value.message
    assert repr(ask) in error.value.message
    assert error.value.where == "--ask"
    assert error.value.hint is not None


def test_a_long_shorthand_is_quoted_in_part():
    with pytest.raises(UsageError) as error:
        parse_asks(["x" * 10_000])
    assert len(error.value.message) < 250


def test_questions_without_an_id_are_numbered_by_their_place():
    assert list(parse_asks(["noul: a", "b=noul: b", "noul: c"])) == ["q1", "b", "q3"]


@pytest.mark.parametrize("asks", [["a=noul: x", "a=noul: y"], ["q2=noul: x", "noul: y"]], ids=["given", "numbered"])
def test_two_questions_of_one_id_are_refused(asks: list[str]):
    with pytest.raises(UsageError, match="two questions are called"):
        parse_asks(asks)


def test_no_shorthand_is_no_question():
    assert parse_asks([]) == {}
