"""Request -> response: the whole chain on one screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from layactl.core.decision_spec import DecisionSpec
from layactl.engine.request import Request
from layactl.engine.truncation import check_cuts, usage
from layactl.layouts.interface import Question, RawOutput, StateTokens, TokenSequence

if TYPE_CHECKING:
    from layactl.engine.model import Model


def _never() -> None:
    """The default `stop`: nothing ends the request early."""


def respond(
    model: Model, request: Request, *, debug: bool = False, stop: Callable[[], None] = _never, queue_ms: float = 0.0
) -> dict[str, Any]:
    """The /v1/systemone response body (specification, Response), keys in its order.

    stop: called between sequences; what it raises ends the request. queue_ms: waiting time to report.
    Raises RequestError for what only rendering can tell (422), ArithmeticError when an output is not finite.
    """
    started = time.perf_counter()
    sequences, warnings = _render(model, request)
    rendered = time.perf_counter()
    outputs = model.forward.run(sequences, stop)
    computed = time.perf_counter()
    answers = {}
    for question, sequence, output in zip(request.questions, sequences, outputs, strict=True):
        answers[question.id] = model.layout.answer(question, output, model.spec)
        if debug:
            answers[question.id]["debug"] = _debug(question, sequence, output, model.spec)
    return {
        "model": model.name,
        "answers": answers,
        "usage": usage(request.questions, sequences),
        "latency_ms": queue_ms + _ms(started, time.perf_counter()),
        "timings": {
            "queue_ms": queue_ms,
            "render_ms": _ms(started, rendered),
            "compute_ms": _ms(rendered, computed),
        },
        "warnings": warnings,
        "runtime": model.runtime(),
    }


def _render(model: Model, request: Request) -> tuple[list[TokenSequence], list[dict[str, Any]]]:
    if not request.questions:
        return [], []
    text = request.state_text.replace(model.tokenizer.mask_text, " ")
    state = StateTokens(model.tokenizer.encode(text), request.from_left)
    sequences, warnings = [], []
    for question in request.questions:
        sequence = model.layout.render(model.tokenizer, state, question, model.limits)
        warnings += check_cuts(question, sequence, request.truncation)
        sequences.append(sequence)
    return sequences, warnings


def _debug(question: Question, sequence: TokenSequence, output: RawOutput, spec: DecisionSpec) -> dict[str, Any]:
    cuts = sequence.cuts
    debug: dict[str, Any] = {"logits": output.logits}
    if output.act_logits is not None:
        debug["act_logits"] = output.act_logits
    return debug | {
        "temperature": spec.calibration.temperature_for(question.type, len(question.options)),
        "token_ids": sequence.ids,
        "markers": sequence.markers,
        "n_state": cuts.state_tokens,
        "n_state_cut": cuts.state_dropped,
        "options_cut": cuts.options_cut,
        "head_cut": cuts.instructions_dropped,
    }


def _ms(start: float, end: float) -> float:
    return (end - start) * 1000.0
