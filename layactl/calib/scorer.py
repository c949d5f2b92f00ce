"""What computes raw logits: a model in this process, or whatever else keeps to the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from layactl import __version__
from layactl.engine.model import Model
from layactl.engine.threads import set_threads
from layactl.gguf_file.reader import GgufFile
from layactl.reporting.identity import engine_identity
from layactl.router.score import Router


@dataclass(frozen=True)
class RawAnswer:
    """logits: raw, in option order; temperature: what the engine divides them by."""

    logits: list[float]
    temperature: float


class Scorer(Protocol):
    """Computes logits. A refused request is a RequestError, an output that is not finite a NumericError."""

    @property
    def engine(self) -> dict[str, Any]:
        """What the logits depend on, as every record carries it: two files go together only where it is equal.

        It holds "kernels", as a spec names them, or None where they are not known.
        """
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """All that ran, for the sidecar."""
        ...

    def decide(self, state: Any, questions: Mapping[str, Any], truncation: str) -> dict[str, RawAnswer]:
        """By question id."""
        ...

    def route(self, body: dict[str, Any], truncation: str) -> dict[str, float]:
        """The raw logit s_true - s_false of every candidate, by its id."""
        ...


class EngineScorer:
    """A loaded model. file: its GGUF."""

    def __init__(self, model: Model, file: GgufFile) -> None:
        self._model = model
        self._router = Router(model, allow_uncalibrated=True)
        self.identity = engine_identity(model, file, set_threads(None))
        platt = model.spec.router.platt
        self.engine = {
            "model": model.name,
            "model_sha256": self.identity["model"]["sha256"],
            "source_sha256": model.source_sha256,
            "spec_sha256": model.spec.sha256,
            "calibration": model.spec.calibration.version,
            "router_calibration": None if platt is None else list(platt),
            "max_len": model.limits.max_len,
            "head_max_len": model.limits.head_max_len,
            "plan": model.forward.plan,
            "kernels": model.forward.kernels,
            "precision": model.forward.precision,
            "recipe": model.spec.plan.recipe,
            "build": f"layactl {__version__}",
        }

    def decide(self, state: Any, questions: Mapping[str, Any], truncation: str) -> dict[str, RawAnswer]:
        response = self._model.decide(state, questions, truncation=truncation, debug=True)
        return {
            question_id: RawAnswer(answer["debug"]["logits"], answer["debug"]["temperature"])
            for question_id, answer in response["answers"].items()
        }

    def route(self, body: dict[str, Any], truncation: str) -> dict[str, float]:
        response = self._router.score(self._router.parse(body | {"truncation": truncation}))
        return {score["id"]: score["logit"] for score in response["scores"]}
