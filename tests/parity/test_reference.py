"""layactl against the reference itself: same ids and markers, same logits, same answers, same refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest

from layactl import Model
from layactl.errors import RequestError

from .comparison import CHECKS, Comparison
from .conftest import COMMITTED, GENERATED
from .golden_file import Outcome
from .reference_run import Reference
from .request_kinds import (
    MOST_OPTIONS,
    OPTION_TOKENS,
    REFUSED,
    REFUSED_HERE_ONLY,
    Case,
    cases,
    question_count,
    raw_texts,
)

pytest.importorskip("laya")
pytestmark = pytest.mark.reference

# The committed checkpoints get every request; the generated ones, about another head, every third.
QUESTIONS = {**dict.fromkeys(COMMITTED, 400), **dict.fromkeys(GENERATED, 150)}
Run = list[tuple[Case, Outcome]]


@pytest.fixture(params=[*COMMITTED, *GENERATED])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def asked(reference_of: Callable[[str], Reference]) -> Callable[[str], Run]:
    """name -> every request with what the reference made of it."""

    @cache
    def get(name: str) -> Run:
        reference = reference_of(name)
        requests = cases(reference.measure)
        if name in GENERATED:
            requests = requests[::3]
        return [(case, reference.ask(case)) for case in requests]

    return get


@pytest.fixture(scope="session")
def compared(asked: Callable[[str], Run], model_of: Callable[..., Model]) -> Callable[[str, str], Comparison]:
    """(name, outtype) -> layactl held against all of it."""

    @cache
    def get(name: str, outtype: str) -> Comparison:
        comparison = Comparison(model_of(name, outtype)).compare_all(asked(name))
        print(f"{name} {outtype}: {comparison.summary()}")
        return comparison

    return get


@pytest.mark.parametrize("outtype", ["f32", "f16"])
@pytest.mark.parametrize("check", CHECKS[1:])
def test_every_question_agrees_with_the_reference(
    name: str, outtype: str, check: str, compared: Callable[[str, str], Comparison]
) -> None:
    comparison = compared(name, outtype)
    assert comparison.questions >= QUESTIONS[name]
    assert [str(difference) for difference in comparison.differences if difference.check == check] == []


def test_every_question_is_asked_and_none_is_lost(
    name: str, asked: Callable[[str], Run], compared: Callable[[str, str], Comparison]
) -> None:
    run, comparison = asked(name), compared(name, "f32")
    refused = [case for case, outcome in run if outcome.refusal]
    assert comparison.questions == question_count([case for case, _ in run]) - question_count(refused)
    assert comparison.refusals == len(refused)


def test_raw_text_gives_the_reference_tokens(
    name: str, reference_of: Callable[[str], Reference], model_of: Callable[..., Model]
) -> None:
    reference = reference_of(name)
    texts = {text: reference.encode(text) for text in raw_texts(reference.measure)}
    comparison = Comparison(model_of(name)).compare_texts(texts)
    assert [str(difference) for difference in comparison.differences] == []


@pytest.mark.parametrize("flaw", REFUSED)
def test_what_the_reference_refuses_is_refused(
    flaw: str, reference_of: Callable[[str], Reference], model_of: Callable[..., Model]
) -> None:
    state, questions = REFUSED[flaw]
    assert reference_of("tiny-english").ask(Case(state, questions)).refusal
    with pytest.raises(RequestError):
        model_of("tiny-english").decide(state, questions)


@pytest.mark.parametrize("flaw", REFUSED_HERE_ONLY)
def test_what_json_or_the_specification_rules_out_is_refused_although_the_reference_answers(
    flaw: str, reference_of: Callable[[str], Reference], model_of: Callable[..., Model]
) -> None:
    state, questions = REFUSED_HERE_ONLY[flaw]
    assert reference_of("tiny-english").ask(Case(state, questions)).refusal is None
    with pytest.raises(RequestError):
        model_of("tiny-english").decide(state, questions)


@pytest.mark.parametrize("family", COMMITTED)
def test_many_states_in_one_padded_batch_get_the_same_answers(
    family: str, asked: Callable[[str], Run], reference_of: Callable[[str], Reference], model_of: Callable[..., Model]
) -> None:
    """`predict_batch` pads every sequence to the longest of its batch; layactl never pads."""
    states = [case.state for case, _ in asked(family) if case.kind == "mixtures"][:24]
    questions = next(case.questions for case, _ in asked(family) if case.kind == "several questions")
    expected = reference_of(family).agent.predict_batch(states, questions, batch_size=6, sort_by_length=True)
    comparison = Comparison(model_of(family))
    responses = comparison.model.decide_many({"state": state, "questions": questions} for state in states)
    for response, result in zip(responses, expected, strict=True):
        assert isinstance(response, dict), response
        for question_id, answer in result["answers"].items():
            comparison.compare_answer(question_id, response["answers"][question_id], answer)
    assert [str(difference) for difference in comparison.differences] == []


@pytest.mark.parametrize("family", COMMITTED)
def test_the_requests_reach_every_cut_and_limit(
    family: str, asked: Callable[[str], Run], reference_of: Callable[[str], Reference]
) -> None:
    """Told from the reference's own sequences, so that no change to the requests can quietly lose a corner."""
    run = asked(family)
    limits = {case.limits for case, _ in run}
    longest = reference_of(family).measure.max_len
    reached = Counter[str]()
    for case, outcome in run:
        reached["refused by the reference"] += bool(outcome.refusal)
        reached["no state tokens"] += outcome.state_tokens == 0
        for q in outcome.questions.values():
            spans = [end - start for start, end in zip(q.markers, q.markers[1:], strict=False)]
            cap = q.options["tokens_per_option"]
            reached["exactly max_len"] += case.limits is None and len(q.ids) == longest
            reached["one below max_len"] += case.limits is None and len(q.ids) == longest - 1
            reached["one state token"] += outcome.state_tokens == 1
            reached["state far beyond max_len"] += outcome.state_tokens > 5 * longest
            reached["48-token cap"] += cap is None and max(spans, default=0) == 1 + OPTION_TOKENS
            reached["options cut to a share"] += cap is not None and cap > 4
            reached["options cut to the floor of 4"] += cap == 4 and case.limits is not None
            reached["head cut to the floor of 8"] += q.markers[0] == 1 + 8 + 1 and case.limits is not None
            reached["options made alike"] += q.options["options_distinct"] != q.options["options"]
            reached[f"{q.answer['type']} of {q.options['options']}"] += 1
    wanted = [f"{kind} of {n}" for kind in ("choice", "score") for n in range(1, MOST_OPTIONS + 1)]
    assert len(limits) > 5
    assert [corner for corner in [*reached, *wanted] if not reached[corner]] == []
