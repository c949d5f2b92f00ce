"""Parts of the answers that are told apart: by type, number of options, language, question, group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from layactl.calib.logits import LabelledAnswer, LabelledScore
from layactl.labelled.decisions import TAGS

# A part with fewer answers says nothing, and more parts than this nobody reads.
MIN_ANSWERS = 20
MOST_PARTS = 50

Item = TypeVar("Item", LabelledAnswer, LabelledScore)


@dataclass(frozen=True)
class Slice:
    """name: "all", or what it is a part by ("type", "lang", ...) and the value there; rows: of the items."""

    by: str
    value: str
    rows: Sequence[int]

    @property
    def name(self) -> str:
        return "all" if self.by == "all" else f"{self.by}={self.value}"


def answer_slices(answers: Sequence[LabelledAnswer]) -> list[Slice]:
    """All of them, then every part that is large enough; by groups only where the data names some."""
    by: dict[str, Callable[[LabelledAnswer], str | None]] = {
        "type": lambda answer: answer.type,
        "options": lambda answer: str(len(answer.options)),
        **{tag: _tag(tag) for tag in TAGS},
        "question": lambda answer: answer.question,
        "group": lambda answer: answer.member.group,
    }
    return _slices(answers, by)


def score_slices(scores: Sequence[LabelledScore]) -> list[Slice]:
    """All of them, then by kind and name of executor and by group."""
    by: dict[str, Callable[[LabelledScore], str | None]] = {
        "kind": lambda score: str(score.card["kind"]),
        "candidate": lambda score: score.candidate,
        "group": lambda score: score.member.group,
    }
    return _slices(scores, by)


def _slices(items: Sequence[Item], by: dict[str, Callable[[Item], str | None]]) -> list[Slice]:
    found = [Slice("all", "", range(len(items)))]
    for name, value_of in by.items():
        parts: dict[str, list[int]] = {}
        for row, item in enumerate(items):
            if (value := value_of(item)) is not None:
                parts.setdefault(value, []).append(row)
        large = {value: rows for value, rows in parts.items() if len(rows) >= MIN_ANSWERS}
        for value in sorted(large, key=lambda v: (-len(large[v]), v))[:MOST_PARTS]:
            found.append(Slice(name, value, large[value]))
    return found


def _tag(name: str) -> Callable[[LabelledAnswer], str | None]:
    return lambda answer: answer.tags.get(name)
