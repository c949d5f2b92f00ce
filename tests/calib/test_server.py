"""Logits through a server are those of the model itself, and belong to the spec it was started with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import layactl as package
from layactl.calib.collect import collect
from layactl.calib.logits import read_logits
from layactl.calib.scorer import EngineScorer
from layactl.calib.server_scorer import ServerScorer
from layactl.client.http_client import ServerClient
from layactl.client.spawned_server import SpawnedServer, spawned_server
from layactl.errors import RequestError, ServerError, SpecError
from layactl.gguf_file.reader import GgufFile
from layactl.labelled.labelled_file import read_labelled
from tests.calib.examples import candidate, card, decision, jsonl, outcomes

SPEC = {
    "spec_version": 1,
    "layout": "laya",
    "calibration": {"method": "temperature", "temperature": {"all": 1.4}},
    "router": {"calibration": {"method": "platt", "a": 0.8, "b": -0.3}},
}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("server") / "spec.json"
    path.write_text(json.dumps(SPEC))
    return path


@pytest.fixture(scope="module")
def server(gguf_for: Callable[..., Path], spec: Path) -> Iterator[SpawnedServer]:
    # Two items a request: records of more go in parts.
    with spawned_server(gguf_for(), ["--debug", "--spec", str(spec), "--max-items", "2"]) as found:
        yield found


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Path]:
    candidates = [candidate(f"c{i}", card=card(i), outcome=i % 2) for i in range(5)]
    records = [decision("a", lang="en"), decision("b", state="word " * 2000), decision("c", state=["turn 1", "turn 2"])]
    return {
        "decision": jsonl(tmp_path / "decisions.jsonl", records),
        "router": jsonl(tmp_path / "outcomes.jsonl", [outcomes("t", candidates=candidates)]),
    }


def nowhere(items: list[Any]) -> list[Any]:
    """The items without the files they stand in."""
    return [replace(item, member=replace(item.member, where="")) for item in items]


@pytest.mark.parametrize("kind", ["decision", "router"])
def test_the_logits_are_those_of_a_local_run(
    tmp_path: Path, kind: str, data: dict[str, Path], server: SpawnedServer, spec: Path, gguf_for: Callable[..., Path]
):
    labelled = read_labelled(data[kind])
    with ServerClient(server.url) as client:
        remote = ServerScorer(client, decisions=kind == "decision", spec=spec)
        done = collect(labelled, remote, tmp_path / "remote.jsonl", truncation="error")
    local = EngineScorer(package.load(gguf_for(), spec=spec), GgufFile(gguf_for()))
    collect(labelled, local, tmp_path / "local.jsonl", truncation="error")
    ours, theirs = read_logits(tmp_path / "local.jsonl"), read_logits(tmp_path / "remote.jsonl")
    assert nowhere(theirs.answers) == nowhere(ours.answers)
    assert nowhere(theirs.scores) == nowhere(ours.scores)
    assert done.refused == ours.refused == (1 if kind == "decision" else 0)
    # The identity says the same of the same engine, as far as a server tells.
    engine, other = ours.one_engine() or {}, theirs.one_engine() or {}
    assert {name: engine[name] for name in other if name != "model"} == {n: v for n, v in other.items() if n != "model"}
    assert other["router_calibration"] == [0.8, -0.3]


def test_a_server_with_another_spec_is_refused(tmp_path: Path, server: SpawnedServer, spec: Path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(SPEC | {"model_id": "other"}))
    with ServerClient(server.url) as client:
        with pytest.raises(SpecError, match="is not the spec of"):
            ServerScorer(client, decisions=True, spec=other)
        # As `spec get` writes it: the text and a line end.
        other.write_text(spec.read_text() + "\n")
        ServerScorer(client, decisions=True, spec=other)


def test_the_command_asks_a_server(
    tmp_path: Path, cli: Callable[..., Any], data: dict[str, Path], server: SpawnedServer
):
    out = tmp_path / "logits.jsonl"
    done = cli("calib", "collect", data["router"], "--server", server.url, "-o", out)
    assert done.code == 0, done.err
    assert "does not tell its router calibration" in done.err
    meta = json.loads((tmp_path / "logits.meta.json").read_text())
    assert (meta["identity"]["side"], meta["identity"]["path"]) == ("server", server.url)
    assert cli("calib", "collect", data["router"], "--server", server.url, "-o", out, "--resume", "-q").code == 0
    assert cli("calib", "collect", data["router"], "--server", server.url, "-m", "x.gguf", "-o", out).code == 2
    assert cli("calib", "collect", data["router"], "-o", out).code == 2


class FakeClient:
    """A server as seen by its replies: props, then one reply after the other."""

    url = "http://fake"

    def __init__(self, *replies: Any, **decision: Any) -> None:
        self._replies = list(replies)
        spec_sha256 = hashlib.sha256(b"").hexdigest()
        self._decision = {"api_version": 1, "spec_sha256": spec_sha256, "debug": True} | decision

    def props(self) -> dict[str, Any]:
        return {"decision": self._decision}

    def post(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return {"runtime": {"spec_sha256": self._decision["spec_sha256"]}} | reply


def scorer(*replies: Any, decisions: bool = True, **decision: Any) -> ServerScorer:
    return ServerScorer(FakeClient(*replies, **decision), decisions=decisions)  # type: ignore[arg-type]


def test_decisions_need_a_server_that_shows_raw_logits_and_routers_do_not():
    with pytest.raises(ServerError, match="shows no raw logits"):
        scorer(debug=False)
    scorer(debug=False, decisions=False)


BAD_REPLIES: dict[str, Any] = {
    "no answers": {},
    "no debug": {"answers": {"q": {}}},
    "logits as text": {"answers": {"q": {"debug": {"logits": ["1"], "temperature": 1}}}},
    "another spec": {"runtime": {"spec_sha256": "x"}, "answers": {}},
    "no temperature": {"answers": {"q": {"debug": {"logits": [1]}}}},
    "overloaded": RequestError("OVERLOADED", "full", code=429),
    "unauthorized": RequestError("UNAUTHORIZED", "key", code=401),
}


@pytest.mark.parametrize("name", BAD_REPLIES)
def test_a_reply_that_is_none_ends_the_run_with_one_error(name: str):
    with pytest.raises(ServerError):
        scorer(BAD_REPLIES[name]).decide("x", {"q": {}}, "allow")


@pytest.mark.parametrize("reply", [{}, {"scores": [1]}, {"scores": []}, {"scores": [{"id": "b", "logit": 1}]}])
def test_a_reply_without_the_candidates_scores_ends_the_run(reply: Any):
    with pytest.raises(ServerError):
        scorer(reply).route({"candidates": [{"id": "a"}]}, "allow")


def test_a_refused_request_is_only_that():
    with pytest.raises(RequestError, match="too long"):
        scorer(RequestError("STATE_TRUNCATED", "too long", code=422)).decide("x", {"q": {}}, "error")
