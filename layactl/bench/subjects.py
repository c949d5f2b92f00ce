"""What is measured: the engine in this process, the reference package, or a server over HTTP. Each answers a request of
the suite and says what its parts took.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from layactl.bench.suite import SYSTEMONE, SuiteRequest
from layactl.core import strict_json
from layactl.errors import RequestError

PHASES = ("parse", "tokenize", "render", "compute", "post", "total")


@dataclass(frozen=True)
class Measured:
    """One answered request. ms: by phase, "total" always among them; logits: SHA-256 of the raw outputs, None where a
    peer does not show them; tokens: computed; refusal: why there was no answer.
    """

    ms: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    logits: str | None = None
    tokens: int | None = None
    refusal: str | None = None


class Subject(Protocol):
    """Something loaded that answers."""

    def ask(self, request: SuiteRequest) -> Measured: ...


class EngineSubject:
    """The server's code path in process: body bytes -> checked request -> answer -> response bytes.

    `tokenize` is a pass of its own over the distinct texts of the state and is part of `render`.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        from layactl.engine.model import Model
        from layactl.gguf_file.reader import GgufFile
        from layactl.router.score import Router

        path = Path(job["model"])
        self.file = GgufFile(path)
        self.model = Model.from_gguf(
            self.file,
            name=job["name"],
            threads=job["threads"],
            spec_file=Path(job["spec"]) if job.get("spec") else None,
            kernels=job.get("kernels"),
            max_len=job.get("max_len"),
            plan=job.get("plan"),
        )
        self._router = Router(self.model, allow_uncalibrated=True)
        _ = self._router.state_split

    def ask(self, request: SuiteRequest) -> Measured:
        from layactl.engine.decider import respond
        from layactl.engine.request import parse_body, parse_request
        from layactl.router.request import parse_router

        model = self.model
        data = strict_json.dumps(request.body).encode("utf-8")
        cpu, started = time.process_time(), time.perf_counter()
        try:
            body = parse_body(data)
            if request.endpoint == SYSTEMONE:
                systemone = parse_request(body, model.layout, model.spec)
                parsed = time.perf_counter()
                response = respond(model, systemone, debug=True)
            else:
                router = parse_router(body, model.spec)
                parsed = time.perf_counter()
                response = self._router.score(router, debug=True)
        except RequestError as error:
            return Measured(refusal=f"{error.reason}: {error.message}")
        debug = [item.pop("debug") for item in _items(response)]
        strict_json.dumps(response).encode("utf-8")
        ended, cpu = time.perf_counter(), time.process_time() - cpu
        ms = {
            "parse": (parsed - started) * 1000.0,
            "render": response["timings"]["render_ms"],
            "compute": response["timings"]["compute_ms"],
            "total": (ended - started) * 1000.0,
        }
        ms["post"] = ms["total"] - ms["parse"] - ms["render"] - ms["compute"]
        ms["tokenize"] = self._tokenize(request)
        return Measured(ms, cpu, _logits_sha256(debug), sum(len(one["token_ids"]) for one in debug))

    def _tokenize(self, request: SuiteRequest) -> float:
        if request.endpoint == SYSTEMONE:
            state = request.body["state"]
            texts = [state if isinstance(state, str) else strict_json.dumps(state)]
        else:
            texts = [request.body["criterion"], request.body["task"]]
            texts += [strict_json.dumps(candidate["card"]) for candidate in request.body["candidates"]]
        started = time.perf_counter()
        for text in dict.fromkeys(texts):
            self.model.tokenizer.encode(text)
        return (time.perf_counter() - started) * 1000.0


def _items(response: dict[str, Any]) -> list[dict[str, Any]]:
    return list(response["answers"].values()) if "answers" in response else response["scores"]


def _logits_sha256(debug: list[dict[str, Any]]) -> str:
    """Over the raw outputs of all questions in order, as doubles: what must not change from run to run."""
    digest = hashlib.sha256()
    for one in debug:
        values = [*one["logits"], *one.get("act_logits", ())]
        digest.update(struct.pack(f"<{len(values)}d", *values))
    return digest.hexdigest()


def engine_options(job: dict[str, Any]) -> list[str]:
    """What of an engine's job the options of a command say: threads, kernels, plan, spec, max_len."""
    names = ("threads", "kernels", "plan", "spec", "max_len")
    given = {f"--{name.replace('_', '-')}": job.get(name) for name in names}
    return [text for option, value in given.items() if value is not None for text in (option, str(value))]


class ReferenceSubject:
    """The reference package over a private copy of a checkpoint. bf16: with its own reduced-precision option.

    A router request is asked as what it is to the reference: one noul question a candidate.
    """

    def __init__(self, job: dict[str, Any], scratch: Path) -> None:
        from layactl.reference.reference_model import ReferenceModel

        reference = ReferenceModel(Path(job["checkpoint"]), scratch, threads=job["threads"])
        if job["bf16"]:
            reference.reduce_precision()
        self._agent = reference.agent

    def ask(self, request: SuiteRequest) -> Measured:
        cpu, started = time.process_time(), time.perf_counter()
        try:
            for part in as_questions(request):
                self._agent.system_one(part["state"], part["questions"])
        except (ValueError, TypeError) as error:
            return Measured(refusal=f"{type(error).__name__}: {error}")
        total = (time.perf_counter() - started) * 1000.0
        return Measured({"total": total}, time.process_time() - cpu)


class ServerSubject:
    """A server at a URL: layactl's own, or a llama-server that answers /v1/systemone.

    foreign: a server that knows no router, which is asked as the reference is.
    """

    def __init__(self, post: Callable[[str, dict[str, Any]], dict[str, Any]], *, foreign: bool) -> None:
        self._post, self._foreign = post, foreign

    def ask(self, request: SuiteRequest) -> Measured:
        from layactl.client.http_client import ROUTER_SCORE
        from layactl.client.http_client import SYSTEMONE as SYSTEMONE_ROUTE

        started = time.perf_counter()
        try:
            if request.endpoint == SYSTEMONE or self._foreign:
                for part in as_questions(request):
                    self._post(SYSTEMONE_ROUTE, part)
            else:
                self._post(ROUTER_SCORE, request.body)
        except RequestError as error:
            return Measured(refusal=f"{error.reason}: {error.message}")
        return Measured({"total": (time.perf_counter() - started) * 1000.0})


def as_questions(request: SuiteRequest) -> list[dict[str, Any]]:
    """A request as systemone bodies: a router request becomes one noul question a candidate, on the state that the
    router would read.
    """
    from layactl.core.decision_spec import ROUTER_QUESTION
    from layactl.router.card import parse_card
    from layactl.router.state import state_text

    if request.endpoint == SYSTEMONE:
        return [request.body]
    body = request.body
    cards = [parse_card(candidate["card"]).text for candidate in body["candidates"]]
    states = [state_text(card, body["criterion"], body["task"]) for card in cards]
    return [{"state": state, "questions": {"router": dict(ROUTER_QUESTION)}} for state in states]


@contextmanager
def opened(job: dict[str, Any]) -> Iterator[Subject]:
    """The subject of a job: {"kind": "engine" | "reference" | "server", ...}."""
    if job["kind"] == "engine":
        yield EngineSubject(job)
    elif job["kind"] == "reference":
        from layactl.reference.private_copy import scratch_folder

        with scratch_folder(Path(job["checkpoint"])) as scratch:
            yield ReferenceSubject(job, scratch)
    else:
        from layactl.client.http_client import ServerClient

        with ServerClient(job["url"]) as client:
            yield ServerSubject(client.post, foreign=job["foreign"])
