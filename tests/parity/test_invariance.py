"""parity.invariance: an answer depends on its own state and question alone; an engine that breaks this is caught."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import layactl
from layactl.engine.threads import set_threads
from layactl.errors import NumericError, RequestError, UsageError
from layactl.layouts.interface import RawOutput, TokenSequence
from layactl.parity.invariance import InvarianceResult, check_invariance, requests_to_ask

from .conftest import COMMITTED
from .golden_file import golden_path, read_golden

Item = dict[str, Any]
CHECKS = ("replay", "alone", "order", "threads 1 to 2")


@pytest.fixture(autouse=True)
def threads() -> Iterator[int]:
    """The number at hand, which no check may leave changed."""
    before = set_threads(None)
    yield before
    assert set_threads(None) == before


def golden_items(name: str) -> list[Item]:
    """Every golden request in the model's own limits, those that are refused among them."""
    requests = [case for case, _ in read_golden(golden_path(name)).requests if case.limits is None]
    return [{"id": f"i{n}", "state": case.state, "questions": case.questions} for n, case in enumerate(requests)]


def outcomes(results: list[InvarianceResult]) -> dict[str, str]:
    return {result.name: result.outcome for result in results}


# -- the engine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMITTED)
def test_the_engine_gives_the_same_bits_whatever_surrounds_a_question(
    name: str, gguf_of: Callable[[str, str], Path]
) -> None:
    items = [*golden_items(name)[1::3], {"id": "null", "state": None, "questions": {"q": {"type": "noul"}}}]
    opened: list[int] = []
    ticks: list[int] = []

    def open_model(count: int) -> layactl.Model:
        opened.append(count)
        return layactl.load(gguf_of(name, "f32"), threads=count)

    results = check_invariance(open_model, items, tick=ticks.append)
    print(f"{name}: {results}")
    assert opened == [1, 2]
    assert [result.name for result in results] == list(CHECKS)
    assert ticks == list(range(1, len(ticks) + 1))
    questions = sum(len(item["questions"]) for item in items)
    refused = results[0].refused
    assert refused >= 1
    assert requests_to_ask(items) - refused == len(ticks)
    for result in results:
        assert (result.questions, result.refused) == (questions - refused, refused)
    for result in results[:3]:
        assert (result.outcome, result.logit_error, result.act_error) == ("bitwise", 0.0, 0.0)
        assert (result.differing, result.worst) == (0, None)
    _check_threads(results[3], items, gguf_of(name, "f32"))


def _check_threads(result: InvarianceResult, items: list[Item], path: Path) -> None:
    """The report on two threads against numbers taken here."""
    before = set_threads(None)
    outputs = []
    for count in (1, 2):
        model = layactl.load(path, threads=count)
        found = {}
        for item in items:
            try:
                answers = model.decide(item["state"], item["questions"], debug=True)["answers"]
            except RequestError:
                continue
            found |= {(item["id"], question): answer["debug"] for question, answer in answers.items()}
        outputs.append(found)
    set_threads(before)
    one, two = outputs
    differing = [key for key in one if one[key] != two[key]]
    error = max(abs(a - b) for key in one for a, b in zip(one[key]["logits"], two[key]["logits"], strict=True))
    assert result.differing == len(differing)
    assert result.logit_error == error
    assert result.outcome == ("within tolerance" if differing else "bitwise")
    assert (result.worst in differing) == bool(differing)


class LeakyPass:
    """A forward pass with a bug: something of another sequence comes into each."""

    plan = kernels = precision = "leaky"

    def __init__(self, sound: Any, leak: str) -> None:
        self._sound, self._leak = sound, leak
        self._last = 0.0

    def run(self, sequences: list[TokenSequence], stop: Callable[[], None]) -> list[RawOutput]:
        outputs = []
        if self._leak == "question":
            self._last = 0.0
        for n, output in enumerate(self._sound.run(sequences, stop)):
            shift = {"request": self._last, "question": self._last, "place": float(n), "size": len(sequences) - 1.0}
            if not (self._leak == "request" and n):
                output = RawOutput([x + 1e-2 * shift[self._leak] for x in output.logits], output.act_logits)
            outputs.append(output)
            self._last = output.logits[0]
        return outputs


# Which checks must find it, and which cannot.
LEAKS = {
    "request": ({"replay", "alone", "order"}, set()),
    "question": ({"alone", "order"}, {"replay", "threads 1 to 2"}),
    "place": ({"alone", "order"}, {"replay", "threads 1 to 2"}),
    "size": ({"alone"}, {"replay", "order", "threads 1 to 2"}),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_an_engine_that_leaks_between_questions_is_different(leak: str, model_of: Callable[..., layactl.Model]) -> None:
    items = [item for item in golden_items("tiny-english") if len(item["questions"]) > 1][:4]
    assert len(items) == 4

    def open_model(count: int) -> layactl.Model:
        model = copy.copy(model_of("tiny-english"))
        model.forward = LeakyPass(model.forward, leak)  # type: ignore[assignment]
        return model

    results = {result.name: result for result in check_invariance(open_model, items)}
    caught, passing = LEAKS[leak]
    for name, result in results.items():
        if name in caught:
            assert result.outcome == "different", name
            assert result.logit_error > 1e-4
            assert result.differing > 0
            item, question = result.worst or ("", "")
            assert question in next(other["questions"] for other in items if other["id"] == item)
        if name in passing:
            assert result.outcome == "bitwise", name


# -- the judgement, on an engine made of numbers --------------------------------------------------------------------

ITEMS: list[Item] = [
    {"id": f"i{n}", "state": "s", "questions": {question: {"type": "noul"} for question in ("p", "q")}}
    for n in range(3)
]
Numbers = tuple[list[float], list[float], Any]
Engine = Callable[[int, int, str], Numbers]


class NumberModel:
    """Answers by a function: (number of threads, how often this question was asked before, question) -> numbers."""

    def __init__(self, count: int, engine: Engine) -> None:
        self._count, self._engine = count, engine
        self._asked: dict[tuple[str, str], int] = {}

    def decide(self, state: Any, questions: Mapping[str, Any], *, debug: bool) -> dict[str, Any]:
        answers = {}
        for question in questions:
            asked = self._asked.get((state, question), 0)
            self._asked[state, question] = asked + 1
            logits, act_logits, answer = self._engine(self._count, asked, question)
            answers[question] = {"type": "noul", "noul": answer, "debug": {"logits": logits, "act_logits": act_logits}}
            if not act_logits:
                del answers[question]["debug"]["act_logits"]
        return {"answers": answers}


def opens(engine: Engine) -> Any:
    """What opens such a model."""
    return lambda count: NumberModel(count, engine)


def on_two_threads(engine: Callable[[int], Numbers]) -> InvarianceResult:
    """The thread check of an engine that depends on the number of threads alone; all else is bitwise."""
    *others, result = check_invariance(opens(lambda threads, asked, question: engine(threads)), ITEMS)
    assert set(outcomes(others).values()) <= {"bitwise", "different"}
    return result


TWO = 2
JUDGED: dict[str, tuple[Callable[[int], Numbers], str, float, float, int]] = {
    "equal": (lambda n: ([1.0, 2.0], [3.0], 0.5), "bitwise", 0.0, 0.0, 0),
    "no act head": (lambda n: ([1.0, 2.0], [], 0.5), "bitwise", 0.0, 0.0, 0),
    "signs of zero": (lambda n: ([-0.0 if n == TWO else 0.0], [3.0], 0.5), "within tolerance", 0.0, 0.0, 6),
    "a last bit": (lambda n: ([1.0, 2.0 + (n == TWO) * 2**-20], [3.0], 0.5), "within tolerance", 2**-20, 0.0, 6),
    "a last bit and its answer": (
        lambda n: ([1.0 + (n == TWO) * 2**-20], [3.0], 0.5 + n / 1e6),
        "within tolerance",
        2**-20,
        0.0,
        6,
    ),
    "a logit beyond": (lambda n: ([1.0, 2.0 + (n == TWO) * 2**-12], [3.0], 0.5), "different", 2**-12, 0.0, 6),
    "a large act logit within": (
        lambda n: ([1.0], [4096.0 - (n == TWO) * 0.5], 0.5),
        "within tolerance",
        0.0,
        0.5 / 4096,
        6,
    ),
    "a small act logit within": (lambda n: ([1.0], [(n == TWO) * 2**-13], 0.5), "within tolerance", 0.0, 2**-13, 6),
    "an act logit beyond": (lambda n: ([1.0], [1.0 + (n == TWO)], 0.5), "different", 0.0, 0.5, 6),
    "NaN": (lambda n: ([math.nan if n == TWO else 1.0], [3.0], 0.5), "different", math.inf, 0.0, 6),
    "NaN on both sides": (lambda n: ([math.nan], [3.0], 0.5), "different", math.inf, 0.0, 6),
    "infinite on both sides": (lambda n: ([math.inf], [3.0], 0.5), "different", math.inf, 0.0, 6),
    "an act logit that is NaN": (lambda n: ([1.0], [math.nan], 0.5), "different", 0.0, math.inf, 6),
    "an option more": (lambda n: ([1.0] * n, [3.0], 0.5), "different", math.inf, 0.0, 6),
    "act logits on one side": (lambda n: ([1.0], [3.0] * (n - 1), 0.5), "different", 0.0, math.inf, 6),
    "another answer to the same logits": (lambda n: ([1.0], [3.0], n / 2), "different", 0.0, 0.0, 6),
    "an answer of another type": (lambda n: ([1.0], [3.0], 1 if n == TWO else 1.0), "different", 0.0, 0.0, 6),
}


@pytest.mark.parametrize("case", JUDGED)
def test_a_difference_is_judged_by_its_size(case: str) -> None:
    engine, outcome, logit_error, act_error, differing = JUDGED[case]
    result = on_two_threads(engine)
    assert (result.outcome, result.logit_error, result.act_error) == (outcome, logit_error, act_error)
    assert (result.questions, result.differing, result.refused) == (6, differing, 0)
    assert result.worst == (("i0", "p") if differing else None)


def test_an_answer_that_changes_with_every_question_asked_is_different() -> None:
    results = check_invariance(opens(lambda threads, asked, question: ([1.0], [], asked)), ITEMS)
    assert outcomes(results)["replay"] == outcomes(results)["order"] == outcomes(results)["alone"] == "different"


def test_the_worst_question_is_named() -> None:
    def engine(threads: int, asked: int, question: str) -> Numbers:
        return [1.0 + (threads == TWO) * (1e-5 if question == "p" else 3e-5)], [], 0.5

    assert check_invariance(opens(engine), ITEMS)[-1].worst == ("i0", "q")


class Refusing:
    """Refuses question q, and every output of question n is not finite."""

    def __init__(self, refuses: bool) -> None:
        self._refuses = refuses

    def decide(self, state: Any, questions: Mapping[str, Any], *, debug: bool) -> dict[str, Any]:
        if "q" in questions and self._refuses:
            raise RequestError("INVALID_REQUEST", "q is not allowed")
        if "n" in questions:
            raise NumericError("question 'n'")
        return {"answers": {question: {"debug": {"logits": [1.0]}} for question in questions}}


def test_a_refusal_is_compared_and_an_output_that_is_not_finite_is_different() -> None:
    def run(*items: Item, second: bool = True) -> dict[str, InvarianceResult]:
        def open_model(count: int) -> Any:
            return Refusing(count == 1 or second)

        return {result.name: result for result in check_invariance(open_model, items)}

    refused, sound = (
        {"id": "r", "state": "s", "questions": {"p": {}, "q": {}}},
        {"id": "s", "state": "s", "questions": {"p": {}}},
    )
    alike = run(refused, sound)
    assert outcomes([*alike.values()]) == dict.fromkeys(CHECKS, "bitwise")
    assert {(result.questions, result.refused) for result in alike.values()} == {(1, 2)}
    unlike = run(refused, sound, second=False)["threads 1 to 2"]
    assert (unlike.outcome, unlike.differing, unlike.worst) == ("different", 2, ("r", "p"))
    infinite = run(sound, {"id": "n", "state": "s", "questions": {"n": {}}})
    assert outcomes([*infinite.values()]) == dict.fromkeys(CHECKS, "different")
    assert {result.logit_error for result in infinite.values()} == {math.inf}


@pytest.mark.parametrize("counts", [(1,), (2, 1), (1, 2, 3)])
def test_every_number_of_threads_is_held_to_the_first(counts: tuple[int, ...]) -> None:
    engine = opens(lambda threads, asked, question: ([float(threads)], [], 0.5))
    results = check_invariance(engine, ITEMS, threads=counts)
    names = [f"threads {counts[0]} to {count}" for count in counts[1:]]
    assert [result.name for result in results] == ["replay", "alone", "order", *names]
    assert [result.logit_error for result in results[3:]] == [abs(counts[0] - count) for count in counts[1:]]


def test_a_number_of_threads_that_cannot_be_is_refused_before_the_first_check() -> None:
    asked: list[int] = []
    with pytest.raises(UsageError, match="99999"):
        check_invariance(opens(lambda *_: ([1.0], [], 0.5)), ITEMS, threads=(1, 99999), tick=asked.append)
    assert not asked


def test_no_items_is_no_error() -> None:
    results = check_invariance(opens(lambda threads, asked, question: ([1.0], [], 0.5)), [])
    assert {(result.outcome, result.questions) for result in results} == {("bitwise", 0)}


def test_the_threads_are_as_before_when_an_engine_cannot_be_opened() -> None:
    def fail(count: int) -> layactl.Model:
        set_threads(3)
        raise RuntimeError("no such file")

    with pytest.raises(RuntimeError, match="no such file"):
        check_invariance(fail, ITEMS)
