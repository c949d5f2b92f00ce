"""Does an answer depend on what should not matter? Options in another order, labels by another name.

A choice is asked again with its options rotated and with its labels replaced by letters (the labels become
descriptions); a noul with its two words replaced. A score's levels are its scale: neither their order nor their names
can change without changing the question, so scores are only counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from layactl import __version__
from layactl.calib.judged import predicted_option
from layactl.calib.scorer import RawAnswer, Scorer
from layactl.core.calibration import softmax
from layactl.errors import NumericError, RequestError
from layactl.labelled.decisions import LabelledDecision
from layactl.labelled.gold import option_keys
from layactl.layouts.laya import LAYA

STABILITY_FORMAT = "layactl.calib-stability/1"
ROTATED, RENAMED = "rotated", "renamed"
_LETTERS = "ABCDEFGHIJKLMNOPQRST"
_WORDS = ({"false": "no", "true": "yes"}, {"false": "wrong", "true": "right"})


@dataclass(frozen=True)
class Variant:
    """The same question asked otherwise. order[i]: the original option that its option i is."""

    kind: str
    definition: dict[str, Any]
    order: tuple[int, ...]


@dataclass
class Stability:
    """One question over all its records.

    labelled, right: records with gold and those answered so as they are; variants_labelled, variants_right: the same of
    all the ways they were asked otherwise; asked, flips: by kind of variant, how many and how many changed the answer;
    flipped: records where any variant did; spread: per record, the largest difference of any option's probability.
    """

    question: str
    type: str
    records: int = 0
    labelled: int = 0
    right: int = 0
    variants_labelled: int = 0
    variants_right: int = 0
    flipped: int = 0
    asked: dict[str, int] = field(default_factory=dict)
    flips: dict[str, int] = field(default_factory=dict)
    spread: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        varied = len(self.spread)
        return {
            "question": self.question,
            "type": self.type,
            "records": self.records,
            "accuracy": _share(self.right, self.labelled),
            "accuracy_of_variants": _share(self.variants_right, self.variants_labelled),
            "flipped_records": _share(self.flipped, varied),
            "flips": {kind: _share(count, self.asked[kind]) for kind, count in self.flips.items()},
            "asked": dict(self.asked),
            "spread_mean": math.fsum(self.spread) / varied if varied else None,
            "spread_max": max(self.spread, default=None),
        }


def probe(
    records: Sequence[LabelledDecision],
    scorer: Scorer,
    *,
    rotations: int = 3,
    truncation: str = "allow",
    tick: Callable[[int], None] = lambda done: None,
    log: Callable[[str], None] = lambda message: None,
) -> list[Stability]:
    """Ask every question as it is and otherwise.

    rotations: most orders of a choice beside its own; a choice of K options has K - 1. log: told of refused records,
    which are left out whole: a variant that does not fit would be compared with one that does.
    """
    found: dict[str, Stability] = {}
    for done, record in enumerate(records, start=1):
        try:
            if record.refusal is not None:
                raise record.refusal
            answers = {
                question_id: _asked(record, question_id, definition, scorer, rotations, truncation)
                for question_id, definition in record.questions.items()
            }
        except (RequestError, NumericError) as error:
            log(f"{record.member.where}: {error.message}")
        else:
            for question_id, (own, others) in answers.items():
                _count(found, record, question_id, own, others)
        tick(done)
    return list(found.values())


def variants(definition: Mapping[str, Any], rotations: int) -> Iterator[Variant]:
    """The other ways to ask a question that means the same."""
    question = LAYA.parse_question("q", definition)
    count = len(question.options)
    if question.type == "noul":
        words = _WORDS[definition.get("labels") == _WORDS[0]]
        yield Variant(RENAMED, {**definition, "labels": words}, (0, 1))
    if question.type != "choice" or count < 2:
        return
    criteria = definition["criteria"]
    pairs = list(criteria.items()) if isinstance(criteria, dict) else [(label, None) for label in criteria]
    steps = sorted({1 + i * (count - 1) // min(rotations, count - 1) for i in range(min(rotations, count - 1))})
    for step in steps:
        order = tuple((i + step) % count for i in range(count))
        rotated = [pairs[i] for i in order]
        # A list keeps labels that are no texts; an object of them cannot be had from JSON.
        new = dict(rotated) if isinstance(criteria, dict) else [label for label, _ in rotated]
        yield Variant(ROTATED, {**definition, "criteria": new}, order)
    described = {_LETTERS[i]: text for i, text in enumerate(question.options)}
    yield Variant(RENAMED, {**definition, "criteria": described}, tuple(range(count)))


def _asked(
    record: LabelledDecision, question_id: str, definition: Any, scorer: Scorer, rotations: int, truncation: str
) -> tuple[list[float], list[tuple[str, list[float]]]]:
    """The probabilities of a question as it is; and of its variants, in the original order of options."""
    own = _probabilities(scorer.decide(record.state, {question_id: definition}, truncation)[question_id])
    others = []
    for variant in variants(definition, rotations):
        answer = scorer.decide(record.state, {question_id: variant.definition}, truncation)[question_id]
        p = _probabilities(answer)
        back = [0.0] * len(p)
        for i, original in enumerate(variant.order):
            back[original] = p[i]
        others.append((variant.kind, back))
    return own, others


def _probabilities(answer: RawAnswer) -> list[float]:
    return softmax(answer.logits, answer.temperature)


def _count(
    found: dict[str, Stability],
    record: LabelledDecision,
    question_id: str,
    own: list[float],
    others: list[tuple[str, list[float]]],
) -> None:
    question = LAYA.parse_question(question_id, record.questions[question_id])
    name = f"{question_id}/{question.type}"
    known = found.setdefault(name, Stability(question_id, question.type))
    assert len(own) == len(option_keys(question))
    said = predicted_option(question.type, own)
    gold = record.gold.get(question_id)
    known.records += 1
    if gold is not None:
        known.labelled += 1
        known.right += said == gold.label
    changed = False
    for kind, p in others:
        other = predicted_option(question.type, p)
        known.asked[kind] = known.asked.get(kind, 0) + 1
        known.flips[kind] = known.flips.get(kind, 0) + (other != said)
        changed |= other != said
        if gold is not None:
            known.variants_labelled += 1
            known.variants_right += other == gold.label
    if others:
        known.flipped += changed
        every = [own, *(p for _, p in others)]
        known.spread.append(max(max(column) - min(column) for column in zip(*every, strict=True)))


def stability_json(
    found: Sequence[Stability], engine: Mapping[str, Any], rotations: int, refused: int
) -> dict[str, Any]:
    return {
        "format": STABILITY_FORMAT,
        "layactl": __version__,
        "engine": dict(engine),
        "rotations": rotations,
        "refused": refused,
        "questions": [one.to_json() for one in found],
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
