"""Request -> response: the whole chain on one screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from layactl.core.decision_spec import SEQUENTIAL
from layactl.engine.request import Request
from layactl.engine.truncation import check_cuts, question_names, usage
from layactl.layouts.interface import Question, RawOutput, StateTokens, TokenSequence

if TYPE_CHECKING:
    from layactl.engine.model import Model
    from layactl.engine.text_side import TextSide


def never() -> None:
    """The default `stop`: nothing ends the request early."""


@dataclass(frozen=True)
class Rendered:
    """A request as the model reads it: one sequence a question, and the warnings about what was cut.

    seconds: what rendering took, wherever and whenever it was done.
    """

    request: Request
    sequences: list[TokenSequence]
    warnings: list[dict[str, Any]]
    seconds: float


@dataclass(frozen=True)
class Computed:
    """A request with its raw outputs, one a question.

    seconds: of the forward passes, of those shared with other requests a share by tokens.
    """

    rendered: Rendered
    outputs: list[RawOutput]
    seconds: float


def respond(
    model: Model, request: Request, *, debug: bool = False, stop: Callable[[], None] = never, queue_ms: float = 0.0
) -> dict[str, Any]:
    """The /v1/systemone response body (specification, Response), keys in its order.

    stop: called between forward passes; what it raises ends the request. queue_ms: waiting time to report.
    Raises RequestError for what only rendering can tell (422), NumericError when an output is not finite.
    """
    (computed,) = compute(model, [render(model, request)], stop)
    return answer(model, computed, debug=debug, queue_ms=queue_ms)


def render(model: Model | TextSide, request: Request) -> Rendered:
    """The part of a response before its forward passes. Raises RequestError (422)."""
    started = time.perf_counter()
    sequences, warnings = [], []
    if request.questions:
        text = request.state_text.replace(model.tokenizer.mask_text, " ")
        state = StateTokens(model.tokenizer.encode(text), request.from_left)
        for question in request.questions:
            sequence = model.layout.render(model.tokenizer, state, question, model.limits)
            warnings += check_cuts(question, sequence, request.truncation, question_names(question))
            sequences.append(sequence)
    return Rendered(request, sequences, warnings, time.perf_counter() - started)


def compute(model: Model, requests: Sequence[Rendered], stop: Callable[[], None] = never) -> list[Computed]:
    """The forward passes of some requests; each gets the outputs that it would get alone. See `respond`.

    Only plan sequential keeps that promise for requests that share passes; under any other each has its own.
    """
    if model.forward.plan == SEQUENTIAL:
        return _computed(model, requests, stop)
    return [computed for each in requests for computed in _computed(model, [each], stop)]


def _computed(model: Model, requests: Sequence[Rendered], stop: Callable[[], None]) -> list[Computed]:
    started = time.perf_counter()
    outputs = iter(model.forward.run([sequence for each in requests for sequence in each.sequences], stop))
    seconds = time.perf_counter() - started
    tokens = [sum(len(sequence.ids) for sequence in each.sequences) for each in requests]
    per_token = seconds / max(1, sum(tokens))
    return [
        Computed(each, list(islice(outputs, len(each.sequences))), count * per_token)
        for each, count in zip(requests, tokens, strict=True)
    ]


def answer(model: Model, computed: Computed, *, debug: bool = False, queue_ms: float = 0.0) -> dict[str, Any]:
    """The part after them: answers and response body. Raises NumericError; see `respond`."""
    started, rendered = time.perf_counter(), computed.rendered
    answers = {}
    for question, sequence, output in zip(
        rendered.request.questions, rendered.sequences, computed.outputs, strict=True
    ):
        answers[question.id] = model.layout.answer(question, output, model.spec)
        if debug:
            temperature = model.spec.calibration.temperature_for(question.type, len(question.options))
            answers[question.id]["debug"] = debug_fields(sequence, output, temperature)
    return {
        "model": model.name,
        "answers": answers,
        "usage": usage(rendered.request.questions, rendered.sequences),
        **timing_fields(queue_ms, rendered.seconds, computed.seconds, started),
        "warnings": rendered.warnings,
        "runtime": model.runtime(),
    }


def render_record(model: Model, request: Request) -> dict[str, Any]:
    """What the model would read for each question, as a JSON-ready record; nothing is computed.

    `state` is the text before the mask literal is taken out of it. Raises RequestError (422) as an answer would.
    """
    rendered = render(model, request)
    return {
        "object": "systemone.render",
        "model": model.name,
        "state": request.state_text,
        "spec_sha256": model.spec.sha256,
        "items": [
            {"id": question.id, "question": question_fields(question), "keys": list(question.keys)}
            | read_fields(sequence)
            for question, sequence in zip(request.questions, rendered.sequences, strict=True)
        ],
        "warnings": rendered.warnings,
    }


def question_fields(question: Question) -> dict[str, Any]:
    """A question as the model reads it: type, instructions and option texts."""
    return {"type": question.type, "instructions": question.instructions, "options": list(question.options)}


def debug_fields(sequence: TokenSequence, output: RawOutput, temperature: float) -> dict[str, Any]:
    """The `debug` block of an answer (cli-contract, Objects). temperature: what divided the logits."""
    debug: dict[str, Any] = {"logits": output.logits}
    if output.act_logits is not None:
        debug["act_logits"] = output.act_logits
    return debug | {"temperature": temperature} | read_fields(sequence)


def read_fields(sequence: TokenSequence) -> dict[str, Any]:
    """What the model reads of one sequence, and what was cut from it."""
    cuts = sequence.cuts
    return {
        "token_ids": sequence.ids,
        "markers": sequence.markers,
        "n_state": cuts.state_tokens,
        "n_state_cut": cuts.state_dropped,
        "options_cut": cuts.options_cut,
        "head_cut": cuts.instructions_dropped,
    }


def timing_fields(queue_ms: float, rendering: float, computing: float, started: float) -> dict[str, Any]:
    """`latency_ms` up to now and `timings`, from the time spent waiting, what rendering and computing took (seconds),
    and the reading of time.perf_counter when both were done.
    """
    render_ms, compute_ms = rendering * 1000.0, computing * 1000.0
    return {
        "latency_ms": queue_ms + render_ms + compute_ms + (time.perf_counter() - started) * 1000.0,
        "timings": {"queue_ms": queue_ms, "render_ms": render_ms, "compute_ms": compute_ms},
    }
