"""The `laya` layout: one sequence a question, a marker before every option (reference: laya 0.3.21)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layactl.layouts.laya import answer, prompt, question

if TYPE_CHECKING:
    from layactl.core.arithmetic import Kernels
    from layactl.core.decision_spec import DecisionSpec
    from layactl.core.model_shape import Limits, ModelShape
    from layactl.core.tokenizer import Tokenizer
    from layactl.core.weights import Weights
    from layactl.layouts.interface import Head, Question, RawOutput, StateTokens, TokenSequence


class LayaLayout:
    """Implements `layouts.interface.Layout`."""

    name = "laya"
    format = "laya-v1"
    question_types: tuple[str, ...] = question.QUESTION_TYPES
    max_options = question.MAX_OPTIONS

    def parse_question(self, question_id: str, definition: Any, max_options: int | None = None) -> Question:
        return question.parse_question(question_id, definition, max_options or self.max_options)

    def render(self, tokenizer: Tokenizer, state: StateTokens, item: Question, limits: Limits) -> TokenSequence:
        return prompt.build_sequence(tokenizer, state, item, limits)

    def build_head(self, weights: Weights, shape: ModelShape, kernels: Kernels) -> Head:
        from layactl.layouts.laya.head import LayaHead

        return LayaHead(weights, shape.head, kernels)

    def answer(self, item: Question, output: RawOutput, spec: DecisionSpec) -> dict[str, Any]:
        return answer.typed_answer(item, output, spec)


LAYA = LayaLayout()
