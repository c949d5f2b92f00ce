"""Answers by a model in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layactl.decide.answering import WHOLE
from layactl.engine.decider import Computed, Rendered, answer, compute, render
from layactl.engine.model import Model
from layactl.engine.request import parse_request
from layactl.router.request import RouterRequest, parse_router
from layactl.router.score import Router


class LocalAnswering:
    """By a loaded model. A body with `candidates` is a router request."""

    def __init__(self, model: Model, *, debug: bool = False, allow_uncalibrated: bool = False) -> None:
        self._model, self._debug = model, debug
        self._router = Router(model, allow_uncalibrated=allow_uncalibrated)

    def prepare(self, body: dict[str, Any]) -> Rendered | RouterRequest:
        model = self._model
        if "candidates" in body:
            # Of the router's errors the missing calibration comes first.
            self._router.require_calibration()
            return parse_router(body, model.spec)
        return render(model, parse_request(body, model.layout, model.spec))

    def tokens(self, prepared: Rendered | RouterRequest) -> int:
        if isinstance(prepared, Rendered):
            return sum(len(sequence.ids) for sequence in prepared.sequences)
        return WHOLE

    def compute(self, prepared: Sequence[Rendered | RouterRequest]) -> list[Computed | RouterRequest]:
        """The forward passes of decisions; a router request, whose errors come with its passes, waits for its turn."""
        computed = iter(compute(self._model, [each for each in prepared if isinstance(each, Rendered)]))
        return [next(computed) if isinstance(each, Rendered) else each for each in prepared]

    def answer(self, computed: Computed | RouterRequest) -> dict[str, Any]:
        if isinstance(computed, Computed):
            return answer(self._model, computed, debug=self._debug)
        return self._router.score(computed, debug=self._debug)

    def runtime(self) -> dict[str, Any]:
        model = self._model
        return model.runtime() | {"max_len": model.limits.max_len, "source_sha256": model.source_sha256}
