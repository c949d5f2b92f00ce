"""What a layout is: the prompt, the head and the answer rules of one family of models, behind one interface.

The engine knows no layout by name. It parses questions, renders sequences, runs the forward pass and asks for answers;
everything that differs between families (prefixes, option order, joint prompts, missing heads) stays in here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from layactl.core.decision_spec import DecisionSpec
from layactl.core.model_shape import Limits, ModelShape
from layactl.core.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from layactl.core.arithmetic import Kernels
    from layactl.core.encoder import Observe
    from layactl.core.weights import Weights


@dataclass(frozen=True)
class Question:
    """A checked question.

    instructions: the text the model reads; options: option texts in label-index order; keys: their answer keys;
    labels: the options as the caller wrote them (choice labels, score levels).
    """

    id: str
    type: str
    instructions: str
    options: tuple[str, ...]
    keys: tuple[str, ...]
    labels: tuple[Any, ...]


@dataclass(frozen=True)
class StateTokens:
    """A state, tokenized once for all its questions. from_left: a cut drops the beginning, not the end."""

    ids: list[int]
    from_left: bool


@dataclass(frozen=True)
class Cuts:
    """What the token budgets dropped from one question's sequence.

    state_tokens: tokens of the whole state; options_cut: options that lost tokens; markers_lost: options whose marker
    itself is gone; options_distinct: options whose remaining tokens differ; tokens_per_option: the cap in force,
    marker included, None when no option was cut; option_cap: the cap the head budget forced on every option, as the
    reference reports it (None when it forced none).
    """

    state_tokens: int
    state_dropped: int
    instructions_dropped: int
    options_cut: int
    markers_lost: int
    options_distinct: int
    tokens_per_option: int | None
    option_cap: int | None


@dataclass(frozen=True)
class TokenSequence:
    """One input of the forward pass: ids, the marker position of each option, and the question type's id."""

    ids: list[int]
    markers: list[int]
    type_id: int
    cuts: Cuts


@dataclass(frozen=True)
class RawOutput:
    """Scorer logits in option order, before any temperature, and act-head logits (None without an act head)."""

    logits: list[float]
    act_logits: list[float] | None


class Head(Protocol):
    """Hidden states (T, d), which it may change, of sequences one after the other -> a RawOutput each.

    observe: shown the residual stream at every step, by name.
    """

    def __call__(
        self, hidden: Tensor, sequences: Sequence[TokenSequence], observe: Observe = ...
    ) -> list[RawOutput]: ...


class Layout(Protocol):
    """One family of decision models."""

    name: str
    format: str
    question_types: tuple[str, ...]
    max_options: int

    def parse_question(self, question_id: str, definition: Any, max_options: int | None = None) -> Question:
        """Check one question definition. max_options: fewer than the layout's own limit, where a spec says so.

        Raises RequestError with the specification's reason and param.
        """
        ...

    def render(self, tokenizer: Tokenizer, state: StateTokens, question: Question, limits: Limits) -> TokenSequence:
        """Token ids and marker positions of one question."""
        ...

    def build_head(self, weights: Weights, shape: ModelShape, kernels: Kernels) -> Head:
        """What comes after the encoder."""
        ...

    def answer(self, question: Question, output: RawOutput, spec: DecisionSpec) -> dict[str, Any]:
        """The answer object of the specification, probabilities unrounded."""
        ...
