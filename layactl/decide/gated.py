"""Answers that say whether to act on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layactl.decide.answering import Answering
from layactl.reporting.act_gate import ActGate


class GatedAnswering:
    """Every answer gets `act` as its last field: whether its `answer_confidence` passes the gate.

    where: what errors call the gate. Raises UsageError for a gate certified with another model or calibration.
    """

    def __init__(self, answering: Answering, gate: ActGate, where: str) -> None:
        self._answering, self._gate = answering, gate
        runtime = answering.runtime()
        gate.check_model(runtime.get("calibration"), runtime.get("source_sha256"), where)

    def prepare(self, body: dict[str, Any]) -> Any:
        return self._answering.prepare(body)

    def tokens(self, prepared: Any) -> int:
        return self._answering.tokens(prepared)

    def compute(self, prepared: Sequence[Any]) -> list[Any]:
        return self._answering.compute(prepared)

    def answer(self, computed: Any) -> dict[str, Any]:
        response = self._answering.answer(computed)
        # Router scores are the caller's to judge: they have no answers.
        for question_id, answer in response.get("answers", {}).items():
            p = _probabilities(answer)
            # Not every server names the largest probability.
            confidence = answer.get("answer_confidence", max(p))
            answer["act"] = self._gate.acts(question_id, answer["type"], len(p), confidence)
        return response

    def runtime(self) -> dict[str, Any]:
        return self._answering.runtime()


def _probabilities(answer: dict[str, Any]) -> list[float]:
    if answer["type"] == "noul":
        return [1.0 - answer["noul"], answer["noul"]]
    return list(answer["probabilities"].values())
