"""Answers by a model in this process."""

from __future__ import annotations

from typing import Any

from layactl.engine.decider import Rendered, answer, render
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

    def answer(self, prepared: Rendered | RouterRequest) -> dict[str, Any]:
        if isinstance(prepared, Rendered):
            return answer(self._model, prepared, debug=self._debug)
        return self._router.score(prepared, debug=self._debug)

    def runtime(self) -> dict[str, Any]:
        model = self._model
        return model.runtime() | {"max_len": model.limits.max_len, "source_sha256": model.source_sha256}
