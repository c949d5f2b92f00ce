"""Answers by a running server. Nothing here needs a model, or what loads one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layactl.client.http_client import ROUTER_SCORE, SYSTEMONE, ServerClient
from layactl.decide.answering import WHOLE
from layactl.errors import RequestError, ServerError

# What a request is made of; a JSONL line may carry more, which is nobody else's business.
_FIELDS = ("state", "questions", "truncation", "task", "criterion", "candidates")
# Refusals that are about the server or the caller, and no fault of the request.
_NO_FAULT_OF_THE_REQUEST = (401, 403, 404, 405, 408, 429, 503)


class RemoteAnswering:
    """By a running server.

    Raises ServerError: nobody is there, or the server gives no `debug` fields where they are asked for.
    """

    def __init__(self, client: ServerClient, *, debug: bool = False) -> None:
        self._client, self._debug = client, debug
        self.props = client.props()
        if debug and not self.props["decision"].get("debug"):
            raise ServerError("gives no debug fields", where=client.url, hint="start it with --debug")

    def prepare(self, body: dict[str, Any]) -> dict[str, Any]:
        return {key: body[key] for key in _FIELDS if key in body}

    def tokens(self, prepared: dict[str, Any]) -> int:
        return WHOLE

    def compute(self, prepared: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return list(prepared)

    def answer(self, computed: dict[str, Any]) -> dict[str, Any]:
        try:
            response = self._client.post(ROUTER_SCORE if "candidates" in computed else SYSTEMONE, computed)
        except RequestError as error:
            if error.code in _NO_FAULT_OF_THE_REQUEST:
                raise ServerError(f"{error.reason}: {error.message}", where=self._client.url) from None
            raise
        found = response.get("answers", response.get("scores"))
        items = list(found.values()) if isinstance(found, dict) else found
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ServerError("its reply is no answer", where=self._client.url)
        if not self._debug:
            for item in items:
                item.pop("debug", None)
        return response

    def runtime(self) -> dict[str, Any]:
        """`layout`, `kernels` and the rest as the server states them."""
        decision = self.props["decision"]
        names = ("layout", "format", "plan", "spec_sha256", "source_sha256", "limits")
        calibration = decision.get("calibration")
        version = calibration.get("version") if isinstance(calibration, dict) else None
        return {name: decision.get(name) for name in names} | {"calibration": version}
