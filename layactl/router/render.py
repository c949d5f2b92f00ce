"""Router request -> the sequences a model reads, checked to fit. Needs no weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layactl.core import strict_json
from layactl.engine.decider import question_fields, read_fields
from layactl.engine.truncation import CutNames, check_cuts
from layactl.errors import RequestError
from layactl.layouts.interface import StateTokens, TokenSequence
from layactl.router.request import Candidate, RouterRequest, parse_router
from layactl.router.state import CandidateState, StateReader

if TYPE_CHECKING:
    from layactl.engine.model import Model
    from layactl.engine.text_side import TextSide


@dataclass(frozen=True)
class Rendered:
    """States and sequences in the order of the candidates. warnings: of ignored fields, then of cuts."""

    states: list[CandidateState]
    sequences: list[TokenSequence]
    warnings: list[dict[str, Any]]


class RouterReader:
    """Reads router requests as a model does; its methods may be called from several threads at once."""

    def __init__(self, model: Model | TextSide) -> None:
        self._text = model
        self._question = model.layout.parse_question("router", model.spec.router.question)
        self._states = StateReader(model.tokenizer, model.spec.special_tokens)
        limit = model.spec.router.max_card_tokens
        self.max_card_tokens = model.limits.max_len * 3 // 8 if limit is None else limit

    @property
    def state_split(self) -> bool:
        """Whether the pieces of a state are tokenized separately."""
        return self._states.state_split

    def parse(self, body: Any) -> RouterRequest:
        """Check a request given as Python values. Raises RequestError."""
        if not isinstance(body, Mapping):
            raise RequestError("BODY_NOT_OBJECT", "a request must be a mapping")
        values = {key: body[key] for key in ("task", "criterion", "truncation", "candidates") if key in body}
        for key, value in values.items():
            strict_json.check_value(value, key)
        return parse_router(values, self._text.spec)

    def read(self, request: RouterRequest) -> Rendered:
        """One sequence a candidate.

        Raises RequestError 422: CARD_TOO_LONG of any candidate before anything else, then of each in order
        OPTIONS_TRUNCATED, CRITERION_TOO_LONG, and under "error" whatever else was cut.
        """
        text = self._text
        cards = [candidate.card.text for candidate in request.candidates]
        states = self._states.read(cards, request.criterion, request.task)
        for candidate, state in zip(request.candidates, states, strict=True):
            self._check_card(candidate, state)
        sequences, warnings = [], list(request.warnings)
        for candidate, state in zip(request.candidates, states, strict=True):
            sequence = text.layout.render(
                text.tokenizer, StateTokens(state.ids, from_left=False), self._question, text.limits
            )
            _check_fixed(candidate, state, sequence)
            warnings += check_cuts(self._question, sequence, request.truncation, _names(candidate))
            sequences.append(sequence)
        return Rendered(states, sequences, warnings)

    def render(self, request: RouterRequest) -> dict[str, Any]:
        """What the model would read for each candidate, as a JSON-ready record.

        `state` is the text as it was put together, `model_text` what the tokenizer reads of it; `fixed_tokens` counts
        those before the task. Raises RequestError 422 as scoring would.
        """
        text, question = self._text, self._question
        rendered = self.read(request)
        return {
            "object": "router.render",
            "model": text.name,
            "question": question_fields(question),
            "special_tokens": text.spec.special_tokens,
            "state_split": self.state_split,
            "max_card_tokens": self.max_card_tokens,
            "spec_sha256": text.spec.sha256,
            "items": [
                {
                    "id": candidate.id,
                    "state": state.text,
                    "model_text": state.model_text,
                    "card_tokens": state.card_tokens,
                    "fixed_tokens": state.fixed_tokens,
                    **read_fields(sequence),
                }
                for candidate, state, sequence in zip(
                    request.candidates, rendered.states, rendered.sequences, strict=True
                )
            ],
            "warnings": rendered.warnings,
        }

    def _check_card(self, candidate: Candidate, state: CandidateState) -> None:
        if 0 < self.max_card_tokens < state.card_tokens:
            raise RequestError(
                "CARD_TOO_LONG",
                f"the card of {candidate.id!r} has {state.card_tokens} tokens; at most {self.max_card_tokens}",
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
