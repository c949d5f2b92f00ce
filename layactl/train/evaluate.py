"""What a network is worth on a split."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from layactl.errors import NumericError
from layactl.layouts.laya.question import QUESTION_TYPES
from layactl.train.batches import length_batches
from layactl.train.examples import Example
from layactl.train.loss import soft_cross_entropy
from layactl.train.network import Batch

# logits of a batch, (N, K)
Score = Callable[[Sequence[int]], tuple[Batch, torch.Tensor]]


@dataclass(frozen=True)
class Evaluation:
    """loss: mean soft cross-entropy in nats, at temperature 1; accuracy: share of answers whose most probable option is
    the gold label; by_type: both for each question type, with counts.
    """

    loss: float
    accuracy: float
    by_type: dict[str, dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {"loss": self.loss, "accuracy": self.accuracy, "by_type": self.by_type}


def evaluate(score: Score, examples: Sequence[Example], batch_size: int) -> Evaluation:
    """score: indices of some examples -> their batch and its logits, without dropout. Sums are in double.

    Raises NumericError naming the example whose loss is no number.
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    with torch.no_grad():
        for indices in length_batches([len(example.ids) for example in examples], batch_size):
            batch, logits = score(indices)
            losses = soft_cross_entropy(logits.double(), batch.targets.double()).tolist()
            for index, loss, answer in zip(indices, losses, logits.argmax(-1).tolist(), strict=True):
                if not math.isfinite(loss):
                    raise NumericError(f"example {examples[index].name!r:.80}")
                found = sums[QUESTION_TYPES[examples[index].type_id]]
                found[0] += 1
                found[1] += loss
                found[2] += answer == examples[index].label
    count, loss, right = (sum(found[n] for found in sums.values()) for n in range(3))
    return Evaluation(
        loss / count,
        right / count,
        {
            name: {"answers": int(sums[name][0]), "loss": sums[name][1] / sums[name][0]}
            | {"accuracy": sums[name][2] / sums[name][0]}
            for name in QUESTION_TYPES
            if name in sums
        },
    )
