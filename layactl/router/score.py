"""Router request -> scores: the whole chain on one screen."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layactl.core.calibration import UNCALIBRATED_VERSION, platt
from layactl.core.decision_spec import SEQUENTIAL
from layactl.engine.decider import debug_fields, never, timing_fields
from layactl.errors import NumericError, RequestError
from layactl.router.render import RouterReader
from layactl.router.request import RouterRequest

if TYPE_CHECKING:
    from layactl.engine.model import Model

_PLAIN_SIGMOID = (1.0, 0.0)


class Router(RouterReader):
    """Scores executors with a loaded model; its methods may be called from several threads at once.

    >>> router = Router(layactl.load("router.gguf"))                                     # doctest: +SKIP
    >>> router.score(router.parse({"task": ..., "criterion": ..., "candidates": [...]}))  # doctest: +SKIP

    allow_uncalibrated: score with sigmoid(logit) where the spec has no router calibration, instead of refusing.
    """

    def __init__(self, model: Model, *, allow_uncalibrated: bool = False) -> None:
        super().__init__(model)
        self._model = model
        self._calibration = model.spec.router.platt
        self._allow_uncalibrated = allow_uncalibrated

    def require_calibration(self) -> None:
        """Raises RequestError ROUTER_NOT_CALIBRATED (501) where scores would not be probabilities."""
        if self._calibration is None and not self._allow_uncalibrated:
            raise RequestError(
                "ROUTER_NOT_CALIBRATED",
                "the model has no router calibration; --allow-uncalibrated scores without one",
                code=501,
            )

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

        debug: adds raw logits, token ids and markers; stop: called between passes, what it raises ends the request;
        queue_ms: waiting time to report.
        Raises RequestError: 501 without a calibration, 422 for what only rendering can tell; NumericError when an
        output is not finite.
        """
        self.require_calibration()
        model, calibrated = self._model, self._calibration is not None
        a, b = self._calibration or _PLAIN_SIGMOID
        started = time.perf_counter()
        rendered = self.read(request)
        read = time.perf_counter()
        outputs = model.forward.run(rendered.sequences, stop, SEQUENTIAL)
        computed = time.perf_counter()
        scores = []
        for candidate, sequence, output in zip(request.candidates, rendered.sequences, outputs, strict=True):
            fails, meets = output.logits
            logit = meets - fails
            if not math.isfinite(logit):
                raise NumericError(f"candidate {candidate.id!r}")
            score: dict[str, Any] = {
                "id": candidate.id,
                "p_success": platt(a, b, logit),
                "logit": logit,
                "calibrated": calibrated,
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
                "input_tokens": sum(score["input_tokens"] for score in scores),
                "output_tokens": 0,
                "passes": len(scores),
            },
            **timing_fields(queue_ms, read - started, computed - read, computed),
            "runtime": model.runtime()
            | {"plan": SEQUENTIAL, "calibration": "platt" if calibrated else UNCALIBRATED_VERSION},
            "warnings": rendered.warnings,
        }
