"""The benchmark suite: request bodies in groups, made from texts of our own, or read from a file.

Groups follow the specification (Benchmark): systemone 1q and 5q over a ticket of about 170 tokens, router N = 1, 4, 8
with cards of about 100 and tasks of about 250 tokens, router N = 1 with tasks of 128 and 512 tokens; beyond it a state
longer than any model reads, and questions with 20 options. Texts are cut to these lengths by the tokenizer they are
meant for: a small vocabulary reads the same words as many more tokens, and tokens are what a forward pass costs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.bench import texts
from layactl.core import strict_json
from layactl.core.decision_spec import CARD_SCHEMA
from layactl.core.json_fields import JsonObject
from layactl.core.tokenizer import Tokenizer
from layactl.engine.text_side import read_text_side
from layactl.errors import InputError
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.reader import GgufFile
from layactl.reporting.json_lines import read_records
from layactl.router.card import parse_card

SYSTEMONE, ROUTER = "systemone", "router"
_TICKET_TOKENS, _CARD_TOKENS, _TASK_TOKENS = 170, 100, 250
_LONG_TOKENS = 20_000

# Text -> tokens of the model the suite is made for.
Count = Callable[[str], int]


@dataclass(frozen=True)
class SuiteRequest:
    """One request of a suite. endpoint: "systemone" or "router"; group: what its numbers are reported under."""

    id: str
    endpoint: str
    group: str
    body: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "endpoint": self.endpoint, "group": self.group, "body": self.body}


def suite_bytes(requests: Iterable[SuiteRequest]) -> bytes:
    """The suite as a file holds it: one JSON object a line."""
    return b"".join(strict_json.dumps(request.to_json()).encode("utf-8") + b"\n" for request in requests)


def suite_sha256(requests: Iterable[SuiteRequest]) -> str:
    """What a result names its suite by."""
    return hashlib.sha256(suite_bytes(requests)).hexdigest()


def read_suite(path: Path) -> list[SuiteRequest]:
    """`{"id", "endpoint", "group", "body"}` a line. Raises InputError naming the line and the field."""
    requests: dict[str, SuiteRequest] = {}
    for record in read_records(path):
        request = _checked(record)
        if request.id in requests:
            raise InputError(f"the id {request.id!r:.80} is there twice", where=record.where)
        requests[request.id] = request
    if not requests:
        raise InputError("holds no request", where=str(path))
    return list(requests.values())


def _checked(record: JsonObject) -> SuiteRequest:
    request_id, endpoint, group = (record.text(key) for key in ("id", "endpoint", "group"))
    if endpoint not in (SYSTEMONE, ROUTER):
        raise record.error("endpoint", f"must be {SYSTEMONE} or {ROUTER}, not {endpoint!r:.40}")
    return SuiteRequest(request_id, endpoint, group, record.object("body").values)


def build_suite(count: Count) -> list[SuiteRequest]:
    """The shipped suite, the same bytes for the same tokenizer."""
    tickets = [fitted(text, _TICKET_TOKENS, count) for text in texts.TICKETS]
    return [*_tickets(tickets), *_routers(count), *_many_options(tickets[0]), *_long_states(count)]


def tokenizer_of(model: Path, max_len: int | None = None) -> Tokenizer:
    """The tokenizer of a GGUF. Raises GgufError."""
    return read_text_side(read_model(GgufFile(model), max_len), name="suite", spec_file=None).tokenizer


def quick_suite(requests: Sequence[SuiteRequest]) -> list[SuiteRequest]:
    """The first request of each group of few passes and ordinary length: a smoke run."""
    firsts: dict[str, SuiteRequest] = {}
    for request in requests:
        firsts.setdefault(request.group, request)
    quick = [firsts[group] for group in ("systemone 1q", "router N=1", "20 options") if group in firsts]
    return quick or list(requests[:1])


def fitted(text: str, tokens: int, count: Count) -> str:
    """The text, repeated or cut after a word, with as many words as give at least so many tokens."""
    words = text.split()
    low, high = 1, 1
    while count(_joined(words, high)) < tokens:
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if count(_joined(words, middle)) < tokens else (low, middle)
    return _joined(words, low)


def _joined(words: list[str], number: int) -> str:
    return " ".join((words * (number // len(words) + 1))[:number])


def _tickets(tickets: Sequence[str]) -> Iterator[SuiteRequest]:
    refund = {"type": "noul", "instructions": "Does the writer ask for money back?"}
    team = {"type": "choice", "instructions": "Which team takes this?", "criteria": list(texts.TEAMS[:4])}
    urgency = {"type": "score", "instructions": "How urgent is it?", "criteria": ["can wait", "this week", "today"]}
    single = {"noul": refund, "choice": team, "score": urgency}
    several: dict[str, Any] = {
        "refund": refund,
        "team": team,
        "urgency": urgency,
        "human": {"type": "noul", "instructions": "Does the writer want an answer from a person?"},
        "tone": {"type": "choice", "instructions": "Tone?", "criteria": {"calm": None, "upset": "angry or in despair"}},
    }
    for (kind, question), ticket in zip(single.items(), tickets, strict=True):
        body = {"state": ticket, "questions": {kind: question}}
        yield SuiteRequest(f"so-1q-{kind}", SYSTEMONE, "systemone 1q", body)
    for number, ticket in enumerate(tickets):
        yield SuiteRequest(f"so-5q-{number}", SYSTEMONE, "systemone 5q", {"state": ticket, "questions": several})


def _routers(count: Count) -> Iterator[SuiteRequest]:
    cards = [_card(number, count) for number in range(8)]
    for candidates in (1, 4, 8):
        yield _router(f"router-n{candidates}", f"router N={candidates}", cards[:candidates], _TASK_TOKENS, count)
    for tokens in (128, 512):
        yield _router(f"router-t{tokens}", f"router N=1 t{tokens}", cards[:1], tokens, count)


def _router(
    request_id: str, group: str, cards: Sequence[dict[str, Any]], task_tokens: int, count: Count
) -> SuiteRequest:
    body = {
        "task": fitted(texts.TASK, task_tokens, count),
        "criterion": texts.CRITERION,
        "candidates": [{"id": f"executor/{number}", "card": card} for number, card in enumerate(cards)],
    }
    return SuiteRequest(request_id, ROUTER, group, body)


def _card(number: int, count: Count) -> dict[str, Any]:
    """A card of about _CARD_TOKENS: as many checks as fit, the last one not measured."""
    name, kind, description = texts.EXECUTORS[number]
    card: dict[str, Any] = {"schema": CARD_SCHEMA, "name": name, "kind": kind, "description": description, "checks": []}
    origin = {"source": "house-checks", "version": "2026-09"}
    measured = [
        {
            "skill": skill,
            "status": "measured",
            "passed": passed - 7 * number,
            "total": total,
            "criterion": criterion,
            **origin,
        }
        for skill, passed, total, criterion in texts.SKILLS
    ]
    missing = {"skill": "handwriting", "status": "missing", **origin}
    for checks in range(len(measured), 0, -1):
        card["checks"] = [*measured[:checks], missing]
        if count(parse_card(card).text) <= _CARD_TOKENS:
            return card
    card["checks"] = [missing]
    return card


def _many_options(ticket: str) -> Iterator[SuiteRequest]:
    question = {"type": "choice", "instructions": "Which team takes this?", "criteria": list(texts.TEAMS)}
    yield SuiteRequest("options-20", SYSTEMONE, "20 options", {"state": ticket, "questions": {"team": question}})


def _long_states(count: Count) -> Iterator[SuiteRequest]:
    question = {"type": "noul", "instructions": "Does the writer ask for money back?"}
    state = fitted("\n\n".join(texts.TICKETS), _LONG_TOKENS, count)
    yield SuiteRequest("long-state", SYSTEMONE, "long state", {"state": state, "questions": {"refund": question}})
