"""What a server says about itself: every documented field that has a meaning here, with its true value."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import layactl

from .bodies import CALIBRATED_SPEC, RENDER, ROUTER, SYSTEMONE, systemone
from .conftest import ORIGIN
from .raw_client import RawClient
from .server_process import ServerProcess

INFO = ("/health", "/v1/health", "/v1/models", "/models", "/props", "/openapi.json", "/metrics")
GET_ALLOWED, POST_ALLOWED = "GET, HEAD, OPTIONS", "POST, OPTIONS"


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health(path: str, english: ServerProcess):
    answer = english.get(path)
    assert answer.status == 200
    assert answer.json() == {"status": "ok", "ok": True, "model": "tiny-english-f32", "layout": "laya"}


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
def test_models(path: str, english: ServerProcess, multilingual: ServerProcess):
    (entry,) = english.get(path).json()["data"]
    assert (entry["id"], entry["object"]) == ("tiny-english-f32", "model")
    assert entry["capabilities"] == ["decision", "systemone"]
    assert entry["decision"] == {
        "api_version": 1,
        "layout": "laya",
        "model_id": "tiny-english-f32",
        "model_version": entry["decision"]["model_version"],
    }
    (entry,) = multilingual.get(path).json()["data"]
    assert entry["id"] == "router-test"
    # Only a router calibration makes it one.
    assert entry["capabilities"] == ["decision", "systemone", "router_score"]
    assert (entry["decision"]["model_id"], entry["decision"]["model_version"]) == ("test/router", "1.2.0")


def test_a_client_finds_out_whether_decisions_are_served(english: ServerProcess):
    assert english.get("/health").status == 200
    assert "decision" in english.get("/v1/models").json()["data"][0]
    assert english.get("/props").json()["decision"]["api_version"] == 1


def test_props_of_a_file_as_it_is(english: ServerProcess, gguf_for: Callable[..., Path]):
    path = gguf_for()
    model = layactl.load(path)
    props = english.get("/props").json()
    decision = props.pop("decision")
    assert props == {
        "model_alias": "tiny-english-f32",
        "model_path": str(path),
        "build_info": f"layactl {layactl.__version__}",
    }
    assert decision == {
        "api_version": 1,
        "endpoints": [*sorted(INFO, key=decision["endpoints"].index), SYSTEMONE, ROUTER],
        "layout": "laya",
        "format": "laya-v1",
        "model_id": "tiny-english-f32",
        "model_version": model.spec.model_version,
        "source_sha256": model.source_sha256,
        "model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "spec_version": 1,
        "spec_sha256": hashlib.sha256(model.spec.text.encode()).hexdigest(),
        "spec_source": "default",
        "question_types": ["choice", "score", "noul"],
        "limits": {
            "max_questions": 16,
            "max_candidates": 16,
            "max_options": 20,
            "max_checks": 32,
            "max_tokens": 192,
            "max_head_tokens": 96,
            "max_card_tokens": 72,
            "max_card_field_bytes": 4096,
            "max_body_bytes": 2**20,
        },
        "confidence": "laya",
        "calibration": {"method": "temperature", "calibrated": True, "version": "gguf:laya.temperature"},
        "router": {
            "available": False,
            "calibrated": False,
            "method": "none",
            "card_schema": "atomic.executor-card/1",
            "card_renderer": "card-v1",
        },
        "plan": {
            "name": "sequential",
            "router": "sequential",
            "plans": ["sequential", "packed"],
            "n_threads": 1,
            "kernels": model.forward.kernels,
            "precision": "f32",
            "state_split": decision["plan"]["state_split"],
            "recipe": None,
        },
        "memory": {f"weights_{place}_bytes": count for place, count in model.memory().items()},
        "device": "cpu",
        "queue_capacity": 4,
        "queue_waiting": 0,
        "input_contract": "laya-v1",
        "special_tokens": "mask-to-space",
        "debug": False,
        "source": "gguf",
        "cache_path": None,
        "checkpoint": None,
    }
    assert all(isinstance(count, int) and count >= 0 for count in decision["memory"].values())
    assert sum(decision["memory"].values()) > 0


def test_props_show_what_the_flags_and_the_spec_changed(multilingual: ServerProcess, calibrated_spec: Path):
    props = multilingual.get("/props").json()
    decision = props["decision"]
    assert props["model_alias"] == "router-test"
    assert decision["endpoints"][-1] == RENDER
    assert (decision["model_id"], decision["model_version"]) == ("test/router", "1.2.0")
    assert decision["spec_source"] == "file"
    assert decision["spec_sha256"] == hashlib.sha256(calibrated_spec.read_bytes()).hexdigest()
    limits = {"max_questions": 8, "max_candidates": 8, "max_card_tokens": 200}
    assert {name: decision["limits"][name] for name in limits} == limits
    assert decision["calibration"] == {"method": "temperature", "calibrated": True, "version": "t-1"}
    assert decision["router"]["available"] is decision["router"]["calibrated"] is True
    assert decision["router"]["method"] == CALIBRATED_SPEC["router"]["calibration"]["method"]
    assert (decision["plan"]["name"], decision["plan"]["router"]) == ("packed", "sequential")
    assert decision["debug"] is True


def test_an_answer_carries_the_identity_that_props_shows(english: ServerProcess):
    decision = english.get("/props").json()["decision"]
    runtime = english.post(SYSTEMONE, systemone()).json()["runtime"]
    assert runtime == {
        "layout": decision["layout"],
        "format": decision["format"],
        "plan": decision["plan"]["name"],
        "kernels": decision["plan"]["kernels"],
        "precision": decision["plan"]["precision"],
        "spec_sha256": decision["spec_sha256"],
        "calibration": decision["calibration"]["version"],
    }


def test_metrics_are_prometheus_text_with_consistent_numbers(english: ServerProcess):
    before = english.counters()
    english.post(SYSTEMONE, systemone())
    english.post(SYSTEMONE, systemone(state=None))
    answer = english.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.body.decode()
    samples: dict[str, float] = {}
    declared: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            declared[name] = kind
        elif not line.startswith("# HELP "):
            name, value = re.fullmatch(r"([a-z_:]+(?:\{le=\"[^\"]+\"\})?) (\S+)", line).groups()
            samples[name] = float(value)
    prefix = "llamacpp:decision_"
    documented = ("requests", "errors", "rejected", "items", "tokens", "compute_seconds")
    assert {f"{prefix}{name}_total" for name in documented} <= {n for n, kind in declared.items() if kind == "counter"}
    assert declared[f"{prefix}queue_waiting"] == declared[f"{prefix}running"] == "gauge"
    assert samples[f"{prefix}queue_waiting"] == samples[f"{prefix}running"] == 0
    assert declared[f"{prefix}latency_seconds"] == "histogram"
    counts = english.counters()
    rise = {name: counts[name] - before[name] for name in ("requests", "answered", "errors", "items", "rejected")}
    assert rise == {"requests": 2, "answered": 1, "errors": 1, "items": 1, "rejected": 0}
    assert counts["tokens"] > before["tokens"]
    assert counts["compute_seconds"] > before["compute_seconds"]
    buckets = [value for name, value in samples.items() if name.startswith(f"{prefix}latency_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == samples[f"{prefix}latency_seconds_count"] == samples[f"{prefix}answered_total"]
    assert samples[f"{prefix}latency_seconds_sum"] > 0


def test_metrics_and_render_are_there_only_where_asked_for(english: ServerProcess, multilingual: ServerProcess):
    assert english.post(RENDER, systemone()).status == 404
    assert multilingual.post(RENDER, systemone()).status == 200
    assert RENDER not in english.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize("path", INFO)
def test_head_is_get_without_its_body(path: str, english: ServerProcess):
    full = english.get(path)
    with RawClient(english) as client:
        head = client.send(f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n").reply(head_only=True)
        assert (head.status, head.headers["content-type"]) == (200, full.headers["content-type"])
        assert int(head.headers["content-length"]) == pytest.approx(len(full.body), abs=20 if path == "/metrics" else 0)
        # Not a byte of a body: what follows on the connection is the next reply.
        assert client.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n").reply().status == 200


@pytest.mark.parametrize("path", [*INFO, SYSTEMONE, ROUTER])
def test_options_name_the_methods(path: str, english: ServerProcess):
    answer = english.request("OPTIONS", path)
    assert (answer.status, answer.body) == (204, b"")
    assert "content-length" not in answer.headers
    assert answer.headers["allow"] == (GET_ALLOWED if path in INFO else POST_ALLOWED)


def test_options_of_the_server_and_of_nothing(english: ServerProcess):
    assert english.request("OPTIONS", "*").headers["allow"] == "GET, HEAD, POST, OPTIONS"
    assert english.request("OPTIONS", "/v2/systemone").status == 404


PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "content-type,authorization"}


def test_cors_lets_the_named_origin_in(english: ServerProcess):
    preflight = english.request("OPTIONS", SYSTEMONE, headers=PREFLIGHT | {"origin": ORIGIN})
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in preflight.headers["access-control-allow-methods"]
    allowed = preflight.headers["access-control-allow-headers"].split(", ")
    assert {"authorization", "content-type", "x-api-key"} <= set(allowed)
    answer = english.post(SYSTEMONE, systemone(), origin=ORIGIN)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)
    # A cache must not give this reply to another origin.
    assert answer.headers["vary"] == "Origin"


def test_cors_lets_pages_read_errors_too(english: ServerProcess):
    answer = english.post(SYSTEMONE, systemone(state=None), origin=ORIGIN)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (400, ORIGIN)


@pytest.mark.parametrize("origin", ["https://other.example", "null", "http://app.example", f"{ORIGIN}.evil.example"])
def test_cors_keeps_other_origins_out(origin: str, english: ServerProcess):
    for answer in (
        english.request("OPTIONS", SYSTEMONE, headers=PREFLIGHT | {"origin": origin}),
        english.get("/health", origin=origin),
    ):
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["vary"] == "Origin"


def test_cors_for_all(multilingual: ServerProcess):
    answer = multilingual.get("/health", origin="https://anyone.example")
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/systemone/", "/Health", "/v1/chat/completions", "/..", "/%68ealth", "//health"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_path(method: str, path: str, english: ServerProcess):
    answer = english.request(method, path, b"{}" if method == "POST" else None)
    assert (answer.status, answer.reason) == (404, "NOT_FOUND")
    assert answer.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        *((method, "/health", GET_ALLOWED) for method in ("POST", "PUT", "DELETE", "PATCH", "BREW")),
        *((method, SYSTEMONE, POST_ALLOWED) for method in ("GET", "HEAD", "PUT", "DELETE")),
        ("GET", ROUTER, POST_ALLOWED),
        ("post", SYSTEMONE, POST_ALLOWED),  # methods are case-sensitive
    ],
)
def test_a_wrong_method(method: str, path: str, allowed: str, english: ServerProcess):
    answer = english.request(method, path)
    assert answer.status == 405
    assert answer.headers["allow"] == allowed
    if method != "HEAD":
        assert (answer.reason, answer.json()["error"]["type"]) == ("METHOD_NOT_ALLOWED", "invalid_request_error")


@pytest.mark.parametrize("target", ["/health?x=1", "/health?", "/health#top", "http://any.example/health?a=b"])
def test_a_query_or_a_whole_url_names_the_same_route(target: str, english: ServerProcess):
    with RawClient(english) as client:
        assert client.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").reply().status == 200


def test_a_query_does_not_keep_a_decision_from_its_route(english: ServerProcess):
    assert english.post(f"{SYSTEMONE}?trace=1", systemone()).status == 200


def test_replies_are_not_to_be_cached_and_name_the_server(english: ServerProcess):
    headers = english.get("/health").headers
    assert headers["cache-control"] == "no-store"
    assert headers["server"] == f"layactl/{layactl.__version__}"
    assert "date" in headers
