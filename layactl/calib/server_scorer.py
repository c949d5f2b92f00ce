"""Raw logits from a running server, which may be another engine's."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from layactl.calib.calibrator import parse
from layactl.calib.scorer import RawAnswer
from layactl.client.http_client import ROUTER_SCORE, SYSTEMONE, ServerClient
from layactl.core.json_fields import JsonObject
from layactl.engine.spec_source import read_spec_text
from layactl.errors import RequestError, ServerError, SpecError

# Refusals that are about the request. Any other says that the next one would fare no better.
_ABOUT_THE_REQUEST = (400, 413, 422, 500)
# What a server may change while it answers, of what GET /props says.
_VOLATILE = ("queue_waiting", "queue_capacity", "memory", "placement")

T = TypeVar("T")


class ServerScorer:
    """Asks a server. spec: the file it must have been started with, None: whatever it has.

    Raises ServerError: nobody is there, or decisions are asked of a server that shows no raw logits; SpecError for
    another spec than the file's.
    """

    def __init__(self, client: ServerClient, *, decisions: bool, spec: Path | None = None) -> None:
        self._client = client
        props = client.props()
        decision = JsonObject(props["decision"], client.url, ServerError)
        if decisions and decision.get("debug") is not True:
            raise ServerError("shows no raw logits", where=client.url, hint="start it with --debug")
        self._spec_sha256 = decision.text("spec_sha256")
        platt = None if spec is None else self._checked(spec)
        limits, plan = decision.object("limits", {}), decision.object("plan", {})
        self._most_questions = max(1, limits.integer("max_questions", 16))
        self._most_candidates = max(1, limits.integer("max_candidates", 16))
        calibration = decision.object("calibration", {})
        self.engine = {
            "model": props.get("model_alias"),
            "source_sha256": decision.get("source_sha256"),
            "spec_sha256": self._spec_sha256,
            "calibration": calibration.get("version"),
            "router_calibration": None if platt is None else list(platt),
            "max_len": limits.get("max_tokens"),
            "head_max_len": limits.get("max_head_tokens"),
            "plan": plan.get("name"),
            "kernels": plan.get("kernels"),
            "precision": plan.get("precision"),
            "recipe": plan.get("recipe"),
            "build": props.get("build_info"),
        }
        stable = {name: value for name, value in decision.values.items() if name not in _VOLATILE}
        self.identity = {"side": "server", "path": client.url, "decision": stable}
        router = decision.object("router", {})
        self.notes = (
            ["the server does not tell its router calibration; --spec SPEC.json does"]
            if not decisions and platt is None and router.get("calibrated") is True
            else []
        )

    def decide(self, state: Any, questions: Mapping[str, Any], truncation: str) -> dict[str, RawAnswer]:
        """In as many requests as the server's limit of questions makes necessary."""
        found: dict[str, RawAnswer] = {}
        for part in _parts(questions.items(), self._most_questions):
            reply = self._post(SYSTEMONE, {"state": state, "questions": dict(part), "truncation": truncation})
            answers = reply.object("answers")
            for question_id in dict(part):
                debug = answers.object(question_id).object("debug")
                logits = [debug.as_number("logits", value) for value in debug.items("logits")]
                found[question_id] = RawAnswer(logits, debug.number("temperature"))
        return found

    def route(self, body: dict[str, Any], truncation: str) -> dict[str, float]:
        """Candidates are scored independently, so that a server's limit of them only costs requests."""
        found: dict[str, float] = {}
        for part in _parts(body["candidates"], self._most_candidates):
            reply = self._post(ROUTER_SCORE, body | {"candidates": list(part), "truncation": truncation})
            scores = [
                reply.inside(value if isinstance(value, dict) else {}, "scores") for value in reply.items("scores")
            ]
            found |= {score.text("id"): score.number("logit") for score in scores}
        if missing := [c["id"] for c in body["candidates"] if not math.isfinite(found.get(c["id"], math.nan))]:
            raise ServerError(f"gave no logit of candidate {missing[0]!r:.60}", where=self._client.url)
        return found

    def _post(self, route: str, body: dict[str, Any]) -> JsonObject:
        try:
            reply = self._client.post(route, body)
        except RequestError as error:
            if error.code in _ABOUT_THE_REQUEST:
                raise
            raise ServerError(f"{error.reason}: {error.message}", where=self._client.url) from None
        fields = JsonObject(reply, self._client.url, ServerError)
        if fields.object("runtime").get("spec_sha256") != self._spec_sha256:
            raise ServerError("has another spec than when the run began", where=self._client.url)
        return fields

    def _checked(self, spec: Path) -> tuple[float, float] | None:
        """That the server runs this very spec: the file's bytes, or those of `spec get` without its line end."""
        text = read_spec_text(spec)
        hashes = {hashlib.sha256(t.encode("utf-8")).hexdigest() for t in (text, text.removesuffix("\n"))}
        if self._spec_sha256 not in hashes:
            raise SpecError(
                f"is not the spec of {self._client.url}, whose spec_sha256 is {self._spec_sha256:.64}", where=str(spec)
            )
        return parse(text, str(spec)).router.platt


def _parts(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """The items in tuples of at most `size`; one empty tuple where there are none."""
    iterator = iter(items)
    yield tuple(itertools.islice(iterator, size))
    while part := tuple(itertools.islice(iterator, size)):
        yield part
