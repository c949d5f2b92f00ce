"""How a training run goes: everything but the data and the checkpoint that its numbers depend on."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from layactl.errors import UsageError

SOFT_CE, RLCD = "soft-ce", "rlcd"
OBJECTIVES = (RLCD, SOFT_CE)


@dataclass(frozen=True)
class RlcdSettings:
    """The policy of the rlcd objective: Gaussian noise on the logits.

    samples: noisy reports of each answer; sigma: standard deviation of the noise, from the first update to the last,
    linear between; ce_weight: of the soft cross-entropy beside it; spherical, ranked: weights of those two scores.
    """

    samples: int = 4
    sigma_start: float = 0.4
    sigma_end: float = 0.1
    ce_weight: float = 1.0
    spherical: float = 0.5
    ranked: float = 1.0

    def sigma(self, progress: float) -> float:
        """progress: share of the updates done, 0 to 1."""
        return self.sigma_start + (self.sigma_end - self.sigma_start) * progress


@dataclass(frozen=True)
class TrainSettings:
    """Defaults are those of the reference's fine-tuning.

    batch_size: sequences of a forward pass; accumulate: passes of an update; encoder_lr, head_lr: the highest learning
    rates, reached after `warmup` (a share of all updates) and then falling to 0 by half a cosine; clip: highest norm of
    an update's gradient; dropout: of the head layers; eval_every: updates between evaluations, None for one an epoch;
    patience: evaluations without a better dev loss before the run ends; freeze_encoder: train what comes after it;
    act_head: train the act head too, towards whether the answer is right.
    """

    objective: str = OBJECTIVES[0]
    rlcd: RlcdSettings = field(default_factory=RlcdSettings)
    epochs: int = 4
    batch_size: int = 8
    accumulate: int = 4
    encoder_lr: float = 2.5e-5
    head_lr: float = 1e-4
    weight_decay: float = 0.01
    warmup: float = 0.05
    clip: float = 1.0
    dropout: float = 0.1
    eval_every: int | None = None
    patience: int = 3
    seed: int = 42
    freeze_encoder: bool = False
    act_head: bool = False

    def check(self) -> None:
        """Raises UsageError naming the setting that is out of range."""
        rules = (
            ("objective", self.objective in OBJECTIVES, f"must be one of {', '.join(OBJECTIVES)}"),
            ("epochs", 1 <= self.epochs <= 100_000, "must be from 1 to 100000"),
            ("batch-size", 1 <= self.batch_size <= 65_536, "must be from 1 to 65536"),
            ("accumulate", 1 <= self.accumulate <= 65_536, "must be from 1 to 65536"),
            ("encoder-lr", 0 <= self.encoder_lr < 1, "must be from 0 to below 1"),
            ("head-lr", 0 <= self.head_lr < 1, "must be from 0 to below 1"),
            ("weight-decay", 0 <= self.weight_decay < 1, "must be from 0 to below 1"),
            ("warmup", 0 <= self.warmup < 1, "must be a share of the updates, from 0 to below 1"),
            ("clip", self.clip > 0, "must be positive"),
            ("dropout", 0 <= self.dropout < 1, "must be from 0 to below 1"),
            ("eval-every", self.eval_every is None or self.eval_every >= 1, "must be at least 1"),
            ("patience", self.patience >= 1, "must be at least 1"),
            ("seed", 0 <= self.seed < 2**32, "must be from 0 to 2^32 - 1"),
        )
        for name, sound, rule in rules:
            if not sound:
                raise UsageError(rule, where=f"--{name}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def learning_rate(update: int, updates: int, warmup: float) -> float:
    """The share of the highest rate that update 0, 1, ... of `updates` is made with: linear warm-up, then half a cosine
    down to 0.
    """
    warm = math.ceil(warmup * updates)
    if update < warm:
        return (update + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (update - warm) / max(1, updates - warm)))
