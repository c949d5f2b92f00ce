"""Which path does what: from a checked head and a body to a reply. No sockets here."""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from functools import partial
from typing import Any

from layactl.engine.decider import render_record, respond
from layactl.engine.request import internal_error, parse_body, parse_request
from layactl.errors import RequestError
from layactl.router.request import parse_router
from layactl.serve import info
from layactl.serve.info import Served
from layactl.serve.jobs import Compute, Job, JobQueue, Stop
from layactl.serve.metrics import Metrics
from layactl.serve.openapi import document
from layactl.serve.replies import (
    TEXT,
    Reply,
    error_reply,
    json_reply,
    loading,
    method_not_allowed,
    not_found,
    overloaded,
    unauthorized,
)
from layactl.serve.settings import Settings

# Bodies parsed at a time: a megabyte of JSON can become a hundred times as much in memory.
_PARSERS = 4
# Bodies over _SMALL_BYTES held at a time, from their first byte until they are parsed: a thousand clients that send a
# megabyte each, slowly, would be a gigabyte. Small ones always have room.
_LARGE_BODIES = 64
_SMALL_BYTES = 2**16
# Between two looks at whether the client is still there.
_LOOK_SECONDS = 0.05

SYSTEMONE, ROUTER_SCORE, RENDER = "/v1/systemone", "/v1/router/score", "/v1/decision/render"


class ClientLeft(Exception):
    """The client has closed its side: there is nobody to reply to."""


@dataclass(frozen=True)
class Call:
    """One request on its way. body: read on demand, raises RequestError; length: its bytes, None where nobody can tell;
    left: whether the client has gone; started: when its head began to arrive, by time.perf_counter.
    """

    body: Callable[[], bytes]
    length: int | None
    left: Callable[[], bool]
    started: float


@dataclass(frozen=True)
class Route:
    """public: needs no API key; early: raises what can be refused before the body is read; decision: it is counted."""

    path: str
    method: str
    answer: Callable[[Call], Reply]
    public: bool = False
    decision: bool = False
    early: Callable[[], None] = lambda: None

    @property
    def allowed(self) -> str:
        return "GET, HEAD, OPTIONS" if self.method == "GET" else f"{self.method}, OPTIONS"

    def takes(self, method: str) -> bool:
        return method == self.method or (method == "HEAD" and self.method == "GET")


class Routes:
    """The server without its sockets; its methods may be called from several threads at once.

    log: told of errors that are ours, whose detail no client sees.
    """

    def __init__(self, settings: Settings, queue: JobQueue, log: Callable[[BaseException], None]) -> None:
        self.settings = settings
        self.queue = queue
        self.metrics = Metrics()
        self.served: Served | None = None
        self._log = log
        self._parsers = threading.Semaphore(_PARSERS)
        self._large_bodies = threading.Semaphore(_LARGE_BODIES)
        self._keys = [hashlib.sha256(key.encode()).digest() for key in settings.keys]
        get, post = partial(Route, method="GET"), partial(Route, method="POST")
        routes = [
            *(get(path=path, answer=self._health, public=True) for path in ("/health", "/v1/health")),
            *(get(path=path, answer=self._models, public=True) for path in ("/v1/models", "/models")),
            get(path="/props", answer=self._props),
            get(path="/openapi.json", answer=self._openapi),
            *([get(path="/metrics", answer=self._metrics)] if settings.metrics else []),
            post(path=SYSTEMONE, answer=self._systemone, decision=True, early=self._admit),
            post(path=ROUTER_SCORE, answer=self._router_score, decision=True, early=self._admit_router),
            *([post(path=RENDER, answer=self._render)] if settings.debug else []),
        ]
        self._routes = {route.path: route for route in routes}

    @property
    def endpoints(self) -> list[str]:
        return list(self._routes)

    def find(self, path: str) -> Route:
        """Raises HttpError NOT_FOUND."""
        route = self._routes.get(path)
        if route is None:
            raise not_found(path)
        return route

    def preflight(self, path: str) -> Reply:
        """The reply to OPTIONS, of one path or of "*". Raises HttpError NOT_FOUND."""
        allowed = "GET, HEAD, POST, OPTIONS" if path == "*" else self.find(path).allowed
        cors = {
            "Access-Control-Allow-Methods": allowed,
            "Access-Control-Allow-Headers": "authorization, content-type, x-api-key",
            "Access-Control-Max-Age": "600",
        }
        return Reply(204, content_type=None, headers={"Allow": allowed, **(cors if self.settings.cors_origins else {})})

    def cors(self, origin: str | None) -> dict[str, str]:
        """Headers that let the pages of an origin read a reply; none for an origin that was not named."""
        origins = self.settings.cors_origins
        if "*" in origins:
            return {"Access-Control-Allow-Origin": "*"}
        if not origins:
            return {}
        allowed = {"Access-Control-Allow-Origin": origin} if origin in origins and origin else {}
        return {**allowed, "Vary": "Origin"}

    def admit(self, route: Route, method: str, headers: Message) -> None:
        """What can be refused before the body is read. Raises RequestError 405, 401, 503, 501, 429."""
        if not route.takes(method):
            raise method_not_allowed(method, route.path, route.allowed)
        if self._keys and not route.public and not self._authorized(headers):
            raise unauthorized()
        if self.served is None:
            raise loading()
        route.early()

    def _authorized(self, headers: Message) -> bool:
        scheme, _, token = (headers.get("authorization") or "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key") or ""
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        # All of them, so that the time tells nothing about which was near.
        return sum(hmac.compare_digest(digest, key) for key in self._keys) > 0

    def answer(self, route: Route, call: Call) -> Reply:
        """Raises ClientLeft, and whatever an error of ours raises; a RequestError is a reply."""
        try:
            return route.answer(call)
        except RequestError as error:
            return error_reply(error)

    # Info routes.

    def _ready(self) -> Served:
        if self.served is None:
            raise loading()
        return self.served

    def _health(self, call: Call) -> Reply:
        return json_reply(info.health(self._ready()))

    def _models(self, call: Call) -> Reply:
        return json_reply(info.models(self._ready()))

    def _props(self, call: Call) -> Reply:
        return json_reply(info.props(self._ready(), self.settings, self.endpoints, self.queue.waiting))

    def _openapi(self, call: Call) -> Reply:
        return json_reply(document(self.endpoints, info.limits(self._ready(), self.settings)))

    def _metrics(self, call: Call) -> Reply:
        text = self.metrics.text(waiting=self.queue.waiting, running=self.queue.running)
        return Reply(200, text.encode("ascii"), TEXT)

    # Decision routes.

    def _admit(self) -> None:
        """A full queue refuses before a body is read: a storm costs its heads only."""
        if refusal := self.queue.refusal():
            raise refusal

    def _admit_router(self) -> None:
        self._ready().router.require_calibration()
        self._admit()

    def _systemone(self, call: Call) -> Reply:
        return self._decide(call, self._parse_systemone)

    def _router_score(self, call: Call) -> Reply:
        return self._decide(call, self._parse_router)

    def _parse_systemone(self, body: dict[str, Any]) -> Compute:
        model, debug = self._ready().model, self.settings.debug
        request = parse_request(body, model.layout, model.spec, self.settings.max_items)

        def compute(stop: Stop, queue_ms: float) -> dict[str, Any]:
            self._throw("worker")
            return respond(model, request, debug=debug, stop=stop, queue_ms=queue_ms)

        return compute

    def _parse_router(self, body: dict[str, Any]) -> Compute:
        served, debug = self._ready(), self.settings.debug
        request = parse_router(body, served.model.spec, self.settings.max_items)
        return lambda stop, queue_ms: served.router.score(request, debug=debug, stop=stop, queue_ms=queue_ms)

    def _throw(self, where: str) -> None:
        if self.settings.hooks.throw == where:
            raise RuntimeError(f"thrown on the {where} for a test")

    def _decide(self, call: Call, parse: Callable[[dict[str, Any]], Compute]) -> Reply:
        with self._body(call) as body:
            self._throw("http")
            job = Job(parse(body))
        self.queue.submit(job)
        while not job.settled.wait(_LOOK_SECONDS):
            if call.left():
                self.queue.cancel(job)
                raise ClientLeft
        if isinstance(job.outcome, RequestError):
            raise job.outcome
        assert job.outcome is not None
        self.metrics.answered(job.outcome, time.perf_counter() - call.started)
        return json_reply(job.outcome)

    @contextmanager
    def _body(self, call: Call) -> Iterator[dict[str, Any]]:
        """Around whatever is made of a body, parsed. Raises RequestError; 429 where too many large ones are held."""
        large = call.length is None or call.length > _SMALL_BYTES
        if large and not self._large_bodies.acquire(blocking=False):
            raise overloaded()
        try:
            data = call.body()
            with self._parsers:
                yield parse_body(data)
        finally:
            if large:
                self._large_bodies.release()

    def _render(self, call: Call) -> Reply:
        served, most = self._ready(), self.settings.max_items
        model = served.model
        with self._body(call) as body:
            if "candidates" in body:
                return json_reply(served.router.render(parse_router(body, model.spec, most)))
            return json_reply(render_record(model, parse_request(body, model.layout, model.spec, most)))

    def count(self, route: Route, reply: Reply | None) -> None:
        """Count a decision request that was not answered with a result. reply: None where the client had left."""
        if not route.decision or (reply is not None and reply.status == 200):
            return
        if reply is None or (reply.status == 503 and reply.reason == "UNAVAILABLE"):
            self.metrics.ended("cancelled")
        else:
            self.metrics.ended("rejected" if reply.status == 429 else "errors")

    def internal(self, error: BaseException) -> Reply:
        """The reply to an error that is ours, which the log is told of."""
        self._log(error)
        return error_reply(internal_error())
