"""Does an answer depend on anything but its own state and question: earlier requests, neighbours, order, threads?

Four checks over the same items, each against one run in order on the first number of threads:

    replay          A, then B, then A again on one engine
    alone           each question as the only one of its request
    order           the items last to first, and the questions of each likewise
    threads M to N  another engine, on N threads

Whether a difference within the tolerance is good enough is for the reader to judge; the number of questions that are
not equal in every bit is always given.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from layactl.engine.threads import set_threads
from layactl.errors import NumericError, RequestError

if TYPE_CHECKING:
    from layactl.engine.model import Model

LOGIT_TOLERANCE = 1e-4
ACT_TOLERANCE = 2e-4

BITWISE, WITHIN_TOLERANCE, DIFFERENT = "bitwise", "within tolerance", "different"

Item: TypeAlias = Mapping[str, Any]
Key: TypeAlias = tuple[str, str]  # item id, question id


@dataclass(frozen=True)
class InvarianceResult:
    """One check over every question of the items.

    outcome: "bitwise" when every question gave the same bits and the same answer; "within tolerance" when every logit
    is within 1e-4 and every act logit within 2e-4 relative; else "different", which is also an output that is not
    finite, a question refused on one side only, and another answer to the same logits.
    logit_error: largest |a - b|; act_error: largest |a - b| / max(|a|, |b|, 1); infinite where there is no number.
    questions: compared; differing: those of them that are not equal in every bit; refused: questions that both sides
    refused alike, which count nowhere else; worst: (item, question) furthest off against its tolerance, None when all
    is bitwise.
    """

    name: str
    outcome: str
    logit_error: float
    act_error: float
    questions: int
    differing: int
    refused: int
    worst: Key | None


def check_invariance(
    open_model: Callable[[int], Model],
    items: Sequence[Item],
    *,
    threads: Sequence[int] = (1, 2),
    tick: Callable[[int], None] = lambda done: None,
) -> list[InvarianceResult]:
    """Run every check.

    open_model: number of threads -> an engine that computes with so many (torch's number is one for the process, and is
    as before afterwards); items: {"id", "state", "questions"} each, ids unlike; tick: called with the number of
    requests asked so far, at most `requests_to_ask(items, threads)`.
    Raises UsageError for a number of threads that cannot be, and what open_model raises.
    """
    before = set_threads(None)
    asked = 0

    def ask(model: Model, item: Item) -> _Outputs:
        nonlocal asked
        outputs = _ask(model, item)
        asked += 1
        tick(asked)
        return outputs

    try:
        # Tried before the first check, not hours into it.
        for count in threads:
            set_threads(count)
        base, results = _check_one_engine(partial(ask, open_model(threads[0])), items)
        for count in threads[1:]:
            other = _ask_all(partial(ask, open_model(count)), items)
            results.append(_compare(f"threads {threads[0]} to {count}", base, other))
        return results
    finally:
        set_threads(before)


def requests_to_ask(items: Sequence[Item], threads: Sequence[int] = (1, 2)) -> int:
    """How many requests `check_invariance` makes of these items, when none is refused."""
    return 1 + (2 + len(threads)) * len(items) + sum(len(item["questions"]) for item in items)


# -- asking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Output:
    """One question's raw numbers, and its answer as text; or why it was refused, and no numbers."""

    logits: list[float]
    act_logits: list[float]
    answer: str

    @property
    def refused(self) -> bool:
        return not self.logits

    @property
    def bits(self) -> tuple[bytes, bytes, str]:
        # Not the floats themselves, of which -0.0 equals 0.0.
        return array("d", self.logits).tobytes(), array("d", self.act_logits).tobytes(), self.answer


_Outputs: TypeAlias = dict[Key, _Output]
_Ask: TypeAlias = Callable[[Item], _Outputs]


def _ask(model: Model, item: Item) -> _Outputs:
    keys = {question: (item["id"], question) for question in item["questions"]}
    try:
        answers = model.decide(item["state"], item["questions"], debug=True)["answers"]
    except RequestError as error:
        return dict.fromkeys(keys.values(), _Output([], [], f"refused: {error.reason}: {error.message}"))
    except NumericError:
        return dict.fromkeys(keys.values(), _Output([math.nan], [], ""))
    outputs = dict.fromkeys(keys.values(), _Output([], [], "no answer"))
    for question, answer in answers.items():
        debug = answer.pop("debug")
        # As JSON, in which 1, 1.0, true and -0.0 are different answers.
        outputs[keys[question]] = _Output(debug["logits"], debug.get("act_logits", []), json.dumps(answer))
    return outputs


def _check_one_engine(ask: _Ask, items: Sequence[Item]) -> tuple[_Outputs, list[InvarianceResult]]:
    base, again = _ask_twice(ask, items)
    alone: _Outputs = {}
    for item in items:
        for question, definition in item["questions"].items():
            key = item["id"], question
            # A request is refused as a whole, for one of its questions.
            alone |= {key: base[key]} if base[key].refused else ask({**item, "questions": {question: definition}})
    backwards = [{**item, "questions": dict(reversed(item["questions"].items()))} for item in reversed(items)]
    order = _ask_all(ask, backwards)
    return base, [_compare("replay", base, again), _compare("alone", base, alone), _compare("order", base, order)]


def _ask_twice(ask: _Ask, items: Sequence[Item]) -> tuple[_Outputs, _Outputs]:
    """Every item asked, and asked again after the one behind it was: 0, 1, 0, 2, 1, 3, 2 ..."""
    first: _Outputs = {}
    again: _Outputs = {}
    for n, item in enumerate(items):
        first |= ask(item)
        if n:
            again |= ask(items[n - 1])
    if items:
        # Nothing is behind the last one; the first stands in.
        ask(items[0])
        again |= ask(items[-1])
    return first, again


def _ask_all(ask: _Ask, items: Sequence[Item]) -> _Outputs:
    return {key: output for item in items for key, output in ask(item).items()}


# -- comparing ------------------------------------------------------------------------------------------------------


def _compare(name: str, base: _Outputs, other: _Outputs) -> InvarianceResult:
    logit_error = act_error = largest = 0.0
    differing = refused = 0
    other_answer = False
    worst: Key | None = None
    for key, a in base.items():
        b = other[key]
        if a.refused and a.bits == b.bits:
            refused += 1
            continue
        errors = _largest(a.logits, b.logits, scaled=False), _largest(a.act_logits, b.act_logits, scaled=True)
        logit_error, act_error = max(logit_error, errors[0]), max(act_error, errors[1])
        if a.bits == b.bits and not any(errors):
            continue
        differing += 1
        # The answer follows from the logits: another one to the same logits is a fault whatever the tolerance.
        same_logits = a.bits[:2] == b.bits[:2]
        other_answer |= same_logits
        size = math.inf if same_logits else max(errors[0] / LOGIT_TOLERANCE, errors[1] / ACT_TOLERANCE)
        if worst is None or size > largest:
            worst, largest = key, size
    outcome = BITWISE
    if differing:
        within = logit_error <= LOGIT_TOLERANCE and act_error <= ACT_TOLERANCE and not other_answer
        outcome = WITHIN_TOLERANCE if within else DIFFERENT
    return InvarianceResult(name, outcome, logit_error, act_error, len(base) - refused, differing, refused, worst)


def _largest(a: Sequence[float], b: Sequence[float], *, scaled: bool) -> float:
    """Largest |a - b|, over max(|a|, |b|, 1) where `scaled`; infinite where a length or a number is amiss."""
    if len(a) != len(b):
        return math.inf
    errors = (abs(x - y) / (max(abs(x), abs(y), 1.0) if scaled else 1.0) for x, y in zip(a, b, strict=True))
    return max((error if math.isfinite(error) else math.inf for error in errors), default=0.0)
