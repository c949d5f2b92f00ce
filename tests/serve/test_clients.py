"""What people already use gets the answers that a local run gives, digit for digit."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import layactl
from layactl.router.score import Router

from .bodies import GOOD, QUESTIONS, RENDER, ROUTER, STATES, SYSTEMONE, router, systemone
from .server_process import ServerProcess

TIMES = ("latency_ms", "timings")


def without_times(response: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in response.items() if key not in TIMES}


@pytest.fixture(scope="module")
def local(gguf_for: Callable[..., Path], calibrated_spec: Path) -> dict[str, layactl.Model]:
    """The models of the two servers, in this process."""
    model = layactl.load(gguf_for("tiny-multilingual"), spec=calibrated_spec, plan="packed")
    model.name = "router-test"
    return {"english": layactl.load(gguf_for()), "multilingual": model}


def asked(request: pytest.FixtureRequest, name: str) -> ServerProcess:
    return request.getfixturevalue(name)


# Answers.


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", ["english", "multilingual"])
def test_every_question_type_is_answered_as_in_a_local_run(name: str, state: str, local, request):
    server, model = asked(request, name), local[name]
    body = {"state": STATES[state], "questions": QUESTIONS}
    answer = server.post(SYSTEMONE, body)
    assert answer.status == 200
    expected = model.decide(STATES[state], QUESTIONS, debug=name == "multilingual")
    assert list(answer.json()) == list(expected)
    # Compared as text: order of keys and every digit.
    assert json.dumps(without_times(answer.json())) == json.dumps(without_times(json.loads(json.dumps(expected))))
    assert set(answer.json()["timings"]) == {"queue_ms", "render_ms", "compute_ms"}


@pytest.mark.parametrize("question", QUESTIONS)
def test_one_question_at_a_time_too(question: str, english: ServerProcess, local):
    body = systemone(**{question: QUESTIONS[question]})
    expected = local["english"].decide(body["state"], body["questions"])
    assert json.dumps(without_times(english.post(SYSTEMONE, body).json())) == json.dumps(without_times(expected))


def test_the_router_scores_as_in_a_local_run(multilingual: ServerProcess, local):
    expected = Router(local["multilingual"]).score(Router(local["multilingual"]).parse(router()), debug=True)
    answer = multilingual.post(ROUTER, router())
    assert answer.status == 200
    assert json.dumps(without_times(answer.json())) == json.dumps(without_times(expected))
    scores = answer.json()["scores"]
    assert [score["calibrated"] for score in scores] == [True, True]
    assert scores[0]["p_success"] != scores[1]["p_success"]


def test_what_the_model_reads_is_rendered_as_in_a_local_run(multilingual: ServerProcess, local):
    rendered = multilingual.post(RENDER, router()).json()
    local_router = Router(local["multilingual"])
    assert rendered == json.loads(json.dumps(local_router.render(local_router.parse(router()))))
    debug = multilingual.post(SYSTEMONE, systemone()).json()["answers"]["refund"]["debug"]
    (item,) = multilingual.post(RENDER, systemone()).json()["items"]
    assert item["token_ids"] == debug["token_ids"]
    assert item["markers"] == debug["markers"]


def test_the_command_gives_the_same_answer(english: ServerProcess, gguf_for: Callable[..., Path], cli, tmp_path: Path):
    questions = tmp_path / "questions.json"
    questions.write_text(json.dumps(QUESTIONS))
    done = cli("decide", "-q", "-m", gguf_for(), STATES["text"], "--questions", questions)
    assert done.code == 0
    over_http = english.post(SYSTEMONE, {"state": STATES["text"], "questions": QUESTIONS}).body.decode()
    for text in (done.out, over_http):
        assert text.endswith("}\n")
        assert text.count("\n") == 1
    assert json.dumps(without_times(json.loads(done.out))) == json.dumps(without_times(json.loads(over_http)))


def test_the_same_request_gives_the_same_bits_every_time(english: ServerProcess):
    bodies = [{"state": state, "questions": QUESTIONS} for state in STATES.values()]
    rounds = [[without_times(english.post(SYSTEMONE, body).json()) for body in bodies] for _ in range(3)]
    assert rounds[0] == rounds[1] == rounds[2]


def test_nothing_asked_is_answered_with_nothing(english: ServerProcess):
    response = english.post(SYSTEMONE, {"state": "x", "questions": {}}).json()
    assert response["answers"] == {}
    assert response["usage"]["input_tokens"] == response["usage"]["evaluated_tokens"] == 0


# Clients.


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
class TestCurl:
    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        command = ["curl", "-sS", "--max-time", "60", "--noproxy", "*", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout

    def test_the_example_of_the_documentation(self, english: ServerProcess):
        json_type = "content-type: application/json"
        out = self.run(f"{english.url}{SYSTEMONE}", "-H", json_type, "-d", GOOD.decode())
        assert json.loads(out)["answers"]["refund"]["type"] == "noul"

    def test_its_own_default_content_type_is_refused_with_a_word_of_help(self, english: ServerProcess):
        error = json.loads(self.run(f"{english.url}{SYSTEMONE}", "-d", GOOD.decode()))["error"]
        assert (error["code"], error["reason"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
        assert "application/json" in error["message"]

    def test_json_from_standard_input_by_the_short_option(self, english: ServerProcess):
        out = self.run(f"{english.url}{SYSTEMONE}", "--json", "@-", stdin=GOOD)
        assert "refund" in json.loads(out)["answers"]

    def test_a_large_body_which_it_sends_only_when_asked(self, english: ServerProcess):
        # Over a megabyte curl sends Expect: 100-continue by itself; below it is told to.
        body = json.dumps(systemone("x" * 500_000)).encode()
        out = self.run(f"{english.url}{SYSTEMONE}", "--json", "@-", "-H", "Expect: 100-continue", stdin=body)
        assert "refund" in json.loads(out)["answers"]
        too_large = json.dumps(systemone("x" * 3_000_000)).encode()
        out = self.run(f"{english.url}{SYSTEMONE}", "--json", "@-", stdin=too_large)
        assert json.loads(out)["error"]["code"] == 413

    def test_chunks(self, english: ServerProcess):
        out = self.run(f"{english.url}{SYSTEMONE}", "--json", "@-", "-H", "Transfer-Encoding: chunked", stdin=GOOD)
        assert "refund" in json.loads(out)["answers"]

    def test_head_and_several_requests_on_one_connection(self, english: ServerProcess):
        assert self.run("-I", f"{english.url}/health").startswith(b"HTTP/1.1 200 OK\r\n")
        url = f"{english.url}/health"
        out = self.run("-w", "%{num_connects} ", "-o", "/dev/null", url, "-o", "/dev/null", url)
        assert out == b"1 0 "


class TestHttpx:
    def test_a_client_with_a_pool(self, english: ServerProcess):
        with httpx.Client(base_url=english.url, timeout=60, trust_env=False) as client:
            for _ in range(3):
                response = client.post(SYSTEMONE, json=systemone())
                assert response.raise_for_status().json()["answers"]["refund"]["type"] == "noul"
            refused = client.post(SYSTEMONE, json=systemone(state=None))
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "state"
            assert client.get("/health").json()["ok"] is True

    def test_many_at_once_are_answered_or_told_when_to_come_again(self, english: ServerProcess):
        import asyncio

        async def ask() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=english.url, timeout=60, trust_env=False) as client:
                return await asyncio.gather(*(client.post(SYSTEMONE, json=systemone()) for _ in range(32)))

        responses = asyncio.run(ask())
        assert {response.status_code for response in responses} <= {200, 429}
        answers = [response.json()["answers"] for response in responses if response.status_code == 200]
        assert all(answer == answers[0] for answer in answers)
        assert all("retry-after" in response.headers for response in responses if response.status_code == 429)

    def test_a_body_of_unknown_length(self, english: ServerProcess):
        parts = (GOOD[i : i + 10] for i in range(0, len(GOOD), 10))
        headers = {"content-type": "application/json"}
        response = httpx.post(english.url + SYSTEMONE, content=parts, headers=headers, trust_env=False, timeout=60)
        assert response.status_code == 200


def test_urllib_of_the_standard_library(english: ServerProcess):
    request = urllib.request.Request(english.url + SYSTEMONE, GOOD, {"content-type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as response:
        assert json.load(response)["answers"]["refund"]["type"] == "noul"


class TypeSafe:
    """A client of the TypeSafe shape: it names a model, and reads only the fields that it knows."""

    def __init__(self, base_url: str, model: str) -> None:
        self.url, self.model = f"{base_url}/v1/systemone", model

    def ask(self, state: Any, questions: dict[str, Any]) -> dict[str, Any]:
        body = {"model": self.model, "state": state, "questions": questions}
        headers = {"authorization": "Bearer sk-of-another-service"}
        response = httpx.post(self.url, json=body, headers=headers, trust_env=False, timeout=60)
        response.raise_for_status()
        return {name: self.read(answer) for name, answer in response.json()["answers"].items()}

    def read(self, answer: dict[str, Any]) -> tuple[Any, float]:
        kind, confidence = answer["type"], answer["confidence"]
        assert 0 <= confidence <= 1
        if kind == "noul":
            return answer["noul"], confidence
        probabilities = answer["probabilities"]
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-12)
        if kind == "choice":
            assert max(probabilities, key=probabilities.__getitem__) == answer["choice"]
            return answer["choice"], confidence
        assert answer["score"] == pytest.approx(sum(int(level) * p for level, p in probabilities.items()))
        return answer["score"], confidence


def test_a_client_of_the_typesafe_shape(english: ServerProcess):
    questions = {
        "refund": {"type": "noul", "instructions": "Asks for money back?"},
        "topic": {"type": "choice", "instructions": "Topic?", "criteria": {"billing": "payments", "other": None}},
        "tone": {"type": "choice", "instructions": "Tone?", "criteria": ["calm", "angry"]},
        "sev": {"type": "score", "instructions": "Severity?", "criteria": ["low", "mid", "high"]},
    }
    state = {"messages": [{"role": "user", "content": "Billed twice"}]}
    # Whatever model it names, the one that is served answers.
    answers = [TypeSafe(english.url, model).ask(state, questions) for model in ("jev-k5", "no-such-model")]
    assert answers[0] == answers[1]
    assert list(answers[0]) == list(questions)
    assert answers[0]["topic"][0] in ("billing", "other")


@pytest.mark.parametrize("model", [None, 5, {"name": "x"}, "", "router-test"])
def test_the_model_that_a_request_names_is_ignored(model: Any, english: ServerProcess):
    response = english.post(SYSTEMONE, systemone() | {"model": model, "stream": False, "metadata": {"a": 1}}).json()
    assert response["model"] == "tiny-english-f32"
    assert without_times(response) == without_times(english.post(SYSTEMONE, systemone()).json())
