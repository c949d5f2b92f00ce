"""States of the parity corpus and what they are written with: prose, slots and a deterministic draw.

Nothing here depends on the machine or the Python version: choices are SHA-256 digests of their own names, numbers are
literals, and no table of the Unicode standard is asked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Question = dict[str, Any]
Questions = dict[str, Question]
# State and questions of one item.
Content = tuple[Any, Questions]

# Slots that states are made of too, and the values that they need at least.
STATE_SLOTS = ("name", "company", "product", "city", "code")
SLOT_VALUES = 7

_SENTENCE_END = re.compile(r"(?<=[.!?؟।])\s+|(?<=[。？！])(?=\S)")


@dataclass(frozen=True)
class Sources:
    """What is written by hand: prose.txt and the sections of lexicon.json (corpus/README.md describes them).

    prose: language -> domain -> paragraphs; English has the domains of `workflows`, each with two paragraphs or more.
    """

    prose: dict[str, dict[str, list[str]]]
    slots: dict[str, list[str]]
    workflows: dict[str, Questions]
    presets: dict[str, Questions]
    languages: dict[str, Questions]
    labels: dict[str, str]
    ladders: list[list[str]]
    structured: list[Any]
    structured_instructions: list[Any]
    edge: dict[str, str]
    keys: list[str]
    scalars: list[Any]
    empties: list[Any]
    compat: list[Questions]


class Draw:
    """The choices of one item. A choice depends on the item's category and number and on its own name, nothing else:
    a new category, item or choice leaves all others as they are.
    """

    def __init__(self, category: str, number: int) -> None:
        self.category = category
        self.number = number

    def below(self, purpose: str, end: int) -> int:
        """An integer in [0, end)."""
        return self._digest(purpose) % end

    def pick(self, purpose: str, values: Sequence[T]) -> T:
        return values[self.below(purpose, len(values))]

    def some(self, purpose: str, values: Sequence[T], count: int) -> list[T]:
        """`count` of the values (all of them where there are fewer), each once, in an order of its own."""
        order = sorted(range(len(values)), key=lambda i: self._digest(f"{purpose}/{i}"))
        return [values[i] for i in order[:count]]

    def _digest(self, purpose: str) -> int:
        label = f"{self.category}/{self.number}/{purpose}"
        return int.from_bytes(hashlib.sha256(label.encode("utf-8")).digest(), "big")


def words(text: str) -> int:
    """Words of a text; six characters count as one, so that scripts without spaces have a length too."""
    return max(len(text.split()), len(text) // 6)


# -- prose ----------------------------------------------------------------------------------------------------------


def other_languages(sources: Sources) -> list[str]:
    return [language for language in sources.prose if language != "en"]


def language_of(sources: Sources, number: int, every: int) -> str:
    """English, but for one item of `every` each of the others in turn."""
    others = other_languages(sources)
    return others[number // every % len(others)] if number % every == every - 1 else "en"


def domain_of(sources: Sources, number: int) -> str:
    domains = list(sources.workflows)
    return domains[number % len(domains)]


def _fill(sources: Sources, draw: Draw, paragraph: str) -> str:
    """The paragraph with its slots filled; an item that names a thing twice means the same thing."""
    for slot, values in sources.slots.items():
        paragraph = paragraph.replace(f"{{{slot}}}", draw.pick(f"slot {slot}", values))
    return paragraph


def make_story(sources: Sources, draw: Draw, domain: str, language: str = "en", count: int = 3) -> list[str]:
    """`count` paragraphs of a domain; a language without that domain takes any of its own."""
    domains = sources.prose[language]
    paragraphs = domains.get(domain) or [text for texts in domains.values() for text in texts]
    if len(paragraphs) < count:
        paragraphs = [text for texts in domains.values() for text in texts]
    return [_fill(sources, draw, text) for text in draw.some("story", paragraphs, count)]


def _sentences(text: str) -> list[str]:
    return _SENTENCE_END.split(text)


def endless(sources: Sources, draw: Draw, purpose: str, language: str = "en") -> Iterator[str]:
    """Paragraphs of a language without end, in a new order each time round."""
    paragraphs = [_fill(sources, draw, text) for texts in sources.prose[language].values() for text in texts]
    round_number = 0
    while True:
        yield from draw.some(f"{purpose} {round_number}", paragraphs, len(paragraphs))
        round_number += 1


def at_least(count: int, pieces: Iterator[str]) -> list[str]:
    """Pieces until they have `count` words together."""
    taken: list[str] = []
    total = 0
    while total < count:
        taken.append(next(pieces))
        total += words(taken[-1])
    return taken


def make_passage(sources: Sources, draw: Draw, purpose: str, count: int) -> str:
    """English sentences, `count` words or a few more."""
    paragraphs = endless(sources, draw, purpose)
    return " ".join(at_least(count, (sentence for text in paragraphs for sentence in _sentences(text))))


# -- states ---------------------------------------------------------------------------------------------------------


def _mail(sources: Sources, draw: Draw, story: list[str]) -> Any:
    return {
        "from": draw.pick("sender", sources.slots["name"]),
        "to": draw.pick("recipient", sources.slots["company"]),
        "subject": _sentences(story[0])[0],
        "body": "\n\n".join(story),
    }


def _record(sources: Sources, draw: Draw, story: list[str]) -> Any:
    return {
        "id": 1000 + draw.below("id", 9000),
        "code": draw.pick("slot code", sources.slots["code"]),
        "open": draw.below("open", 2) == 1,
        "assignee": draw.pick("assignee", [None, *sources.slots["name"]]),
        "text": " ".join(story),
        "ratio": draw.pick("ratio", [0.25, 0.5, 1.0, 12.75, -3.125]),
    }


def _nested(sources: Sources, draw: Draw, story: list[str]) -> Any:
    return {
        "case": {
            "reference": draw.pick("slot code", sources.slots["code"]),
            "history": [{"step": 1, "text": story[0]}],
        },
        "customer": {
            "name": draw.pick("customer", sources.slots["name"]),
            "places": draw.some("places", sources.slots["city"], 2),
        },
        "note": story[-1],
    }


def as_turns(sources: Sources, draw: Draw, story: list[str]) -> Any:
    roles = draw.pick("roles", [("user", "agent"), ("customer", "support"), ("caller", "desk")])
    sentences = [sentence for text in story for sentence in _sentences(text)]
    return [{"role": roles[n % 2], "content": sentence} for n, sentence in enumerate(sentences)]


def _texts(sources: Sources, draw: Draw, story: list[str]) -> Any:
    return [sentence for text in story for sentence in _sentences(text)]


def _readings(sources: Sources, draw: Draw, story: list[str]) -> Any:
    return [draw.below(f"reading {n}", 400) - 100 for n in range(12 + draw.below("readings", 24))]


def _records(sources: Sources, draw: Draw, story: list[str]) -> Any:
    return [
        {"item": product, "count": draw.below(f"count {n}", 50), "in_stock": draw.below(f"stock {n}", 2) == 1}
        for n, product in enumerate(draw.some("items", sources.slots["product"], 5))
    ]


def _log(sources: Sources, draw: Draw, story: list[str]) -> Any:
    levels = ("DEBUG", "INFO", "WARN", "ERROR")
    lines = []
    for n, sentence in enumerate(sentence for text in story for sentence in _sentences(text)):
        level = draw.pick(f"level {n}", levels)
        lines.append(
            f"2026-04-{10 + n:02d}T08:{draw.below(f'minute {n}', 60):02d}:07Z {level} worker-{n % 3} {sentence}"
        )
    return "\n".join(lines)


def _table(sources: Sources, draw: Draw, story: list[str]) -> Any:
    rows = [
        f"{product},{city},{draw.below(f'cell {n}', 900)}"
        for n, (product, city) in enumerate(
            zip(
                draw.some("rows", sources.slots["product"], SLOT_VALUES),
                draw.some("columns", sources.slots["city"], SLOT_VALUES),
                strict=True,
            )
        )
    ]
    return "\n".join(["item,place,sold", *rows])


def _markdown(sources: Sources, draw: Draw, story: list[str]) -> Any:
    points = "\n".join(f"- **{n}** {sentence}" for n, sentence in enumerate(_sentences(story[-1]), start=1))
    return f"# {_sentences(story[0])[0]}\n\n{story[0]}\n\n## Details\n\n{points}\n"


def _json_text(sources: Sources, draw: Draw, story: list[str]) -> Any:
    return json.dumps(_record(sources, draw, story), ensure_ascii=False, indent=2)


def _code(sources: Sources, draw: Draw, story: list[str]) -> Any:
    limit, step = 2 + draw.below("limit", 30), 1 + draw.below("step", 5)
    return (
        f'def check(items, limit={limit}):\n    """{_sentences(story[0])[0]}"""\n    total = 0\n'
        f"    for i in range(0, len(items), {step}):\n        if items[i] is None:\n            continue\n"
        f"        total += items[i] * {step}\n    return total <= limit  # {_sentences(story[-1])[0]}\n"
    )


def _tool_calls(sources: Sources, draw: Draw, story: list[str]) -> Any:
    tools = draw.some("tools", ("search", "read_file", "calculator", "calendar", "send_mail"), 3)
    calls: list[Any] = [{"role": "user", "content": story[0]}]
    for n, tool in enumerate(tools):
        argument = draw.pick(f"argument {n}", [*sources.slots["city"], *sources.slots["product"]])
        calls.append({"role": "assistant", "tool": tool, "arguments": {"query": argument, "limit": n + 1}})
        calls.append({"role": "tool", "tool": tool, "ok": draw.below(f"ok {n}", 4) > 0, "result": None})
    return calls


STATES: dict[str, Callable[[Sources, Draw, list[str]], Any]] = {
    "phrase": lambda sources, draw, story: _sentences(story[0])[0],
    "paragraph": lambda sources, draw, story: story[0],
    "paragraphs": lambda sources, draw, story: "\n\n".join(story),
    "mail": _mail,
    "record": _record,
    "nested": _nested,
    "turns": as_turns,
    "texts": _texts,
    "readings": _readings,
    "records": _records,
    "log": _log,
    "table": _table,
    "markdown": _markdown,
    "json text": _json_text,
    "code": _code,
    "tool calls": _tool_calls,
}


def make_state(kind: str, sources: Sources, draw: Draw, story: list[str]) -> Any:
    return STATES[kind](sources, draw, story)
