"""Router request -> scores: the whole chain on one screen, and the same without a forward pass."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layactl.core import strict_json
from layactl.core.calibration import UNCALIBRATED_VERSION, platt
from layactl.engine.decider import debug_fields, never, read_fields, timing_fields
from layactl.engine.truncation import CutNames, check_cuts
from layactl.errors import RequestError
from layactl.layouts.interface import StateTokens, TokenSequence
from layactl.router.request import Candidate, RouterRequest, parse_router
from layactl.router.state import CandidateState, StateReader

if TYPE_CHECKING:
    from layactl.engine.model import Model


class Router:
    """Scores executors with a loaded model; its methods may be called from several threads at once.

    >>> router = Router(layactl.load("router.gguf"))                                     # doctest: +SKIP
    >>> router.score(router.parse({"task": ..., "criterion": ..., "candidates": [...]}))  # doctest: +SKIP

    allow_uncalibrated: score with sigmoid(logit) where the spec has no router calibration, instead of refusing.
    """

    def __init__(self, model: Model, *, allow_uncalibrated: bool = False) -> None:
        self._model = model
        self._allow_uncalibrated = allow_uncalibrated
        self._question = model.layout.parse_question("router", model.spec.router.question)
        self._states = StateReader(model.tokenizer, model.spec.special_tokens)
        limit = model.spec.router.max_card_tokens
        self._max_card_tokens = model.limits.max_len * 3 // 8 if limit is None else limit

    def require_calibration(self) -> None:
        """Raises RequestError ROUTER_NOT_CALIBRATED (501) where scores would not be probabilities."""
        if self._model.spec.router.platt is None and not self._allow_uncalibrated:
            raise RequestError(
                "ROUTER_NOT_CALIBRATED",
                "the model has no router calibration; --allow-uncalibrated scores without one",
                code=501,
            )

    def parse(self, body: Any) -> RouterRequest:
        """Check a request given as Python values. Raises RequestError."""
        if not isinstance(body, Mapping):
            raise RequestError("BODY_NOT_OBJECT", "a request must be a mapping")
        values = {key: body[key] for key in ("task", "criterion", "truncation", "candidates") if key in body}
        for key, value in values.items():
            strict_json.check_value(value, key)
        return parse_router(values, self._model.spec)

    def score(
        self,
        request: RouterRequest,
        *,
        debug: bool = False,
        stop: Callable[[], None] = never,
        queue_ms: float = 0.0,
    ) -> dict[str, Any]:
        """The /v1/router/score response body, keys in the specification's order. Every candidate is scored on its own:
        its numbers depend on no other.

        debug: adds raw logits, token ids and markers; stop: called between candidates, what it raises ends the request;
        queue_ms: waiting time to report.
        Raises RequestError: 501 without a calibration, 422 for what only rendering can tell; ArithmeticError when an
        output is not finite.
        """
        self.require_calibration()
        model, calibration = self._model, self._model.spec.router.platt
        started = time.perf_counter()
        _, sequences, warnings = self._read(request)
        rendered = time.perf_counter()
        outputs = model.forward.run(sequences, stop)
        computed = time.perf_counter()
        scores = []
        for candidate, sequence, output in zip(request.candidates, sequences, outputs, strict=True):
            without, with_ = output.logits
            logit = with_ - without
            if not math.isfinite(logit):
                raise ArithmeticError(f"candidate {candidate.id!r}: the model's output is not finite")
            score: dict[str, Any] = {
                "id": candidate.id,
                "p_success": platt(*(calibration or (1.0, 0.0)), logit),
                "logit": logit,
                "calibrated": calibration is not None,
                "input_tokens": len(sequence.ids),
                "truncated_tokens": sequence.cuts.state_dropped,
            }
            if debug:
                score["debug"] = debug_fields(sequence, replace(output, act_logits=None), 1.0)
            scores.append(score)
        return {
            "object": "router.scores",
            "model": model.name,
            "scores": scores,
            "usage": {
                "input_tokens": sum(len(sequence.ids) for sequence in sequences),
                "output_tokens": 0,
                "passes": len(sequences),
            },
            **timing_fields(queue_ms, started, rendered, computed),
            "runtime": self._runtime(),
            "warnings": warnings,
        }

    def render(self, request: RouterRequest) -> dict[str, Any]:
        """What the model would read for each candidate, by the same checks, without a forward pass.

        Raises RequestError 422.
        """
        model, question = self._model, self._question
        states, sequences, warnings = self._read(request)
        return {
            "object": "router.render",
            "model": model.name,
            "question": {
                "type": question.type,
                "instructions": question.instructions,
                "options": list(question.options),
            },
            "special_tokens": model.spec.special_tokens,
            "state_split": self._states.state_split,
            "max_card_tokens": self._max_card_tokens,
            "items": [
                {
                    "id": candidate.id,
                    "state": state.text,
                    "model_text": state.model_text,
                    "card_tokens": state.card_tokens,
                    "fixed_tokens": state.fixed_tokens,
                    **read_fields(sequence),
                }
                for candidate, state, sequence in zip(request.candidates, states, sequences, strict=True)
            ],
            "runtime": self._runtime(),
            "warnings": warnings,
        }

    def _runtime(self) -> dict[str, Any]:
        calibration = UNCALIBRATED_VERSION if self._model.spec.router.platt is None else "platt"
        return self._model.runtime() | {"calibration": calibration}

    def _read(self, request: RouterRequest) -> tuple[list[CandidateState], list[TokenSequence], list[dict[str, Any]]]:
        model = self._model
        cards = [candidate.card.text for candidate in request.candidates]
        states = self._states.read(cards, request.criterion, request.task)
        for candidate, state in zip(request.candidates, states, strict=True):
            self._check_card(candidate, state)
        sequences, warnings = [], list(request.warnings)
        for candidate, state in zip(request.candidates, states, strict=True):
            sequence = model.layout.render(
                model.tokenizer, StateTokens(state.ids, from_left=False), self._question, model.limits
            )
            _check_fixed(candidate, state, sequence)
            warnings += check_cuts(self._question, sequence, request.truncation, _names(candidate))
            sequences.append(sequence)
        return states, sequences, warnings

    def _check_card(self, candidate: Candidate, state: CandidateState) -> None:
        if 0 < self._max_card_tokens < state.card_tokens:
            raise RequestError(
                "CARD_TOO_LONG",
                f"the card of {candidate.id!r} has {state.card_tokens} tokens; at most {self._max_card_tokens}",
                param=f"{candidate.param}.card",
                code=422,
            )


def _check_fixed(candidate: Candidate, state: CandidateState, sequence: TokenSequence) -> None:
    """A cut may take from the task, never from card and criterion. Raises RequestError CRITERION_TOO_LONG."""
    cuts = sequence.cuts
    kept = cuts.state_tokens - cuts.state_dropped
    # Where even option markers are lost, no shorter criterion would help: check_cuts says so.
    if cuts.state_dropped and kept < state.fixed_tokens and not cuts.markers_lost:
        raise RequestError(
            "CRITERION_TOO_LONG",
            f"card and criterion of {candidate.id!r} have {state.fixed_tokens} tokens; {kept} fit",
            param=candidate.param,
            code=422,
        )


def _names(candidate: Candidate) -> CutNames:
    # The question is the spec's: where it does not fit, no field of the request is to blame, so the candidate is named.
    param = candidate.param
    return CutNames(f"candidate {candidate.id!r}", param, param, "task", "task_truncated")
