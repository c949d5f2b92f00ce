"""Raw output -> typed answer (reference `agent._decode_answers`), probabilities unrounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from layactl.core.calibration import confidence, softmax
from layactl.core.decision_spec import DecisionSpec
from layactl.errors import NumericError
from layactl.layouts.interface import Question, RawOutput


def typed_answer(question: Question, output: RawOutput, spec: DecisionSpec) -> dict[str, Any]:
    """The answer object, keys in the specification's order.

    Raises NumericError when the model's output is not finite.
    """
    if not all(map(math.isfinite, [*output.logits, *(output.act_logits or [])])):
        raise NumericError(f"question {question.id!r}")
    count = len(question.options)
    p = softmax(output.logits, spec.calibration.temperature_for(question.type, count))
    answer: dict[str, Any] = {"type": question.type}
    if question.type == "choice":
        answer["choice"] = question.labels[p.index(max(p))]
        answer["probabilities"] = dict(zip(question.keys, p, strict=True))
    elif question.type == "score":
        answer["score"] = math.fsum(i * p_i for i, p_i in enumerate(p))
        answer["probabilities"] = dict(zip(question.keys, p, strict=True))
        answer["legend"] = dict(zip(question.keys, question.labels, strict=True))
    else:
        answer["noul"] = p[1]
    answer["confidence"] = confidence(spec.confidence, question.type, p)
    answer["answer_confidence"] = max(p)
    if output.act_logits is not None:
        answer["action"] = {"act_probability": _act_probability(output.act_logits)}
    return answer


def _act_probability(act_logits: list[float]) -> float:
    """softmax(act logits)[0] in float32, rounded to 4 digits: the reference's arithmetic, so that digits agree."""
    z = np.array(act_logits, dtype=np.float32)
    exps = np.exp(z - z.max())
    return round(float(exps[0] / exps.sum()), 4)
