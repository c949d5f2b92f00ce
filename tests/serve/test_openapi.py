"""The document that GET /openapi.json serves is true: of what is accepted, what is refused, and what is answered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from .bodies import GOOD, QUESTIONS, RENDER, ROUTER, STATES, SYSTEMONE, router, systemone
from .server_process import ServerProcess
from .test_errors import REFUSED, REFUSED_BY_ROUTER

# All of schemathesis' checks run, but for these.
LEFT_OUT = {
    # It takes every refusal of valid data for a fault; our own check knows the rules that JSON Schema cannot say.
    "positive_data_acceptance",
    # About resources that requests create and delete, and whose they are: here are none.
    "use_after_free",
    "ensure_resource_availability",
    "object_level_authorization",
    # No header is required of a request but those of HTTP itself.
    "missing_required_header",
}
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
    "valid_data_is_refused_only_for_what_a_schema_cannot_say",
    "every_refusal_has_the_envelope",
)
# Bad data may be refused for its size before it is looked at; 501 is what an uncalibrated model is meant to answer.
CONFIGURATION = """
[checks]
negative_data_rejection.expected-statuses = ["4xx", "501"]

[[operations]]
include-path = "/v1/router/score"
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", "501"]
"""


def schemathesis(server: ServerProcess, folder: Path, examples: int) -> subprocess.Popen[str]:
    """Started: all of its phases that need no links between operations, seeded."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIGURATION)
    return subprocess.Popen(
        [
            *(Path(sys.executable).with_name("schemathesis"), "--config-file", config, "run"),
            *(f"{server.url}/openapi.json", "--checks", ",".join(CHECKS), "--seed", "7", "-n", str(examples)),
            *("--phases", "examples,coverage,fuzzing", "--no-color"),
        ],
        cwd=folder,
        env=os.environ | {"SCHEMATHESIS_HOOKS": "schemathesis_checks", "PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("examples", [2, pytest.param(200, marks=pytest.mark.full)])
def test_schemathesis_finds_nothing(examples: int, english: ServerProcess, multilingual: ServerProcess, tmp_path: Path):
    """Without --debug and with it; side by side, since most of the time goes into making requests up."""
    servers = (english, multilingual)
    before = [server.counters()["requests"] for server in servers]
    runs = [schemathesis(server, tmp_path, examples) for server in servers]
    for server, run, count in zip(servers, runs, before, strict=True):
        report = run.communicate(timeout=3000)[0]
        assert run.returncode == 0, report[-8000:]
        assert "No issues found" in report
        # It has reached the decision routes, and not only their doors.
        assert server.counters()["requests"] > count + 50
        assert server.error_lines == []


def test_every_check_of_schemathesis_is_used_or_left_out_for_a_reason():
    listed = subprocess.run(
        [
            *(sys.executable, "-c"),
            "from schemathesis import checks; checks.load_all_checks(); print(*checks.CHECKS.get_all_names())",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert set(listed) <= set(CHECKS) | LEFT_OUT
    assert not set(CHECKS) & LEFT_OUT


@pytest.fixture(scope="module")
def document(multilingual: ServerProcess) -> dict[str, Any]:
    return multilingual.get("/openapi.json").json()


def validator(document: dict[str, Any], name: str) -> jsonschema.Draft202012Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return jsonschema.Draft202012Validator(schema)


def test_the_document_lists_the_routes_in_force_and_its_own_limits(
    document: dict[str, Any], multilingual: ServerProcess, english: ServerProcess
):
    assert document["openapi"] == "3.1.0"
    for server in (english, multilingual):
        props = server.get("/props").json()["decision"]
        shown = server.get("/openapi.json").json()
        assert list(shown["paths"]) == props["endpoints"]
        schemas = shown["components"]["schemas"]
        assert schemas["Questions"]["properties"]["questions"]["maxProperties"] == props["limits"]["max_questions"]
        assert schemas["Router"]["properties"]["candidates"]["maxItems"] == props["limits"]["max_candidates"]


@pytest.mark.parametrize("state", STATES)
def test_good_bodies_and_their_answers_are_of_the_document(
    state: str, document: dict[str, Any], multilingual: ServerProcess
):
    body = {"state": STATES[state], "questions": QUESTIONS}
    validator(document, "Questions").validate(body)
    validator(document, "Answers").validate(multilingual.post(SYSTEMONE, body).json())


def test_router_bodies_and_scores_are_of_the_document(document: dict[str, Any], multilingual: ServerProcess):
    validator(document, "Router").validate(router())
    validator(document, "Scores").validate(multilingual.post(ROUTER, router()).json())
    for path, name in (("/health", "Health"), ("/v1/models", "Models"), ("/props", "Props")):
        validator(document, name).validate(multilingual.get(path).json())
    for body in (systemone(), router()):
        assert multilingual.post(RENDER, body).status == 200


# Refused by the server and not by the document: what JSON Schema cannot say.
UNSAYABLE = {"one answer key", "an id twice"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Questions", name) for name in REFUSED] + [("Router", name) for name in REFUSED_BY_ROUTER],
)
def test_what_the_server_refuses_the_document_refuses(kind: str, name: str, document: dict[str, Any]):
    body = (REFUSED if kind == "Questions" else REFUSED_BY_ROUTER)[name][0]
    try:
        value = json.loads(body) if isinstance(body, bytes) else json.loads(json.dumps(body))
    except (ValueError, RecursionError):
        return  # no JSON, for a schema to look at
    if name in ("NaN", "Infinity"):  # which Python reads all the same
        return
    assert validator(document, kind).is_valid(value) is (name in UNSAYABLE)


def test_the_example_of_a_good_body_is_one(document: dict[str, Any]):
    validator(document, "Questions").validate(json.loads(GOOD))
