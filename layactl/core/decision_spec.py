"""The model's contract: which layout, calibration, confidence rule, limits and router question it was made for.

Types and defaults; `core.spec_parser` reads and checks the JSON (specification, "Model metadata: decision.spec").
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from layactl.core.calibration import Calibration

SPEC_VERSION = 1
MASK_TO_SPACE, ESCAPE_CONTROL = "mask-to-space", "escape-control"
CARD_SCHEMA, CARD_RENDERER = "atomic.executor-card/1", "card-v1"

ROUTER_QUESTION: Mapping[str, Any] = {
    "type": "noul",
    "instructions": "Will the executor meet the success criterion on this task?",
    "criteria": {"true": "meets the criterion", "false": "does not meet the criterion"},
}


# The questions of a request one by one, or concatenated (specification, Plans).
SEQUENTIAL, PACKED = "sequential", "packed"
PLANS = (SEQUENTIAL, PACKED)


@dataclass(frozen=True)
class PlanSpec:
    """How the calibration's logits were computed; None where the spec leaves it to the engine."""

    name: str = SEQUENTIAL
    kernels: str = "auto"
    recipe: str | None = None
    n_threads: int | None = None


@dataclass(frozen=True)
class RouterSpec:
    """question: a noul definition; max_card_tokens: None = 3/8 of max_len, 0 = no limit; platt: (a, b) of
    p = sigmoid(a z + b), None without a router calibration.
    """

    question: Mapping[str, Any]
    max_card_tokens: int | None = None
    platt: tuple[float, float] | None = None


@dataclass(frozen=True)
class DecisionSpec:
    """A checked spec.

    max_options: options a question may have; max_candidates: candidates of a router request;
    text: the exact JSON that the hash is over; source: "gguf", "file" or "default" (made from the file's keys).
    """

    layout: str
    model_id: str
    model_version: str
    input_contract: str
    special_tokens: str
    confidence: str
    max_options: int
    max_candidates: int
    calibration: Calibration
    plan: PlanSpec
    router: RouterSpec
    text: str
    source: str

    @property
    def sha256(self) -> str:
        """SHA-256 of the exact spec bytes."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()
