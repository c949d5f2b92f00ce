"""layactl router, and router lines of decide --jsonl."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CARD = {"schema": "atomic.executor-card/1", "name": "A", "kind": "local"}
CHECK = {"skill": "sums", "status": "measured", "passed": 3, "total": 4, "version": "v1"}
BODY = {"task": "Sum it", "criterion": "Exact", "candidates": [{"id": "a", "card": CARD}, {"id": "b", "card": CARD}]}
SPEC = {
    "spec_version": 1,
    "layout": "laya",
    "router": {"max_card_tokens": 0, "calibration": {"method": "platt", "a": 1.5, "b": -0.5}},
}
STATE = {"state": "Billed twice", "questions": {"q": {"type": "noul", "instructions": "Urgent?"}}}


@pytest.fixture
def model(gguf_for: Callable[..., Path]) -> Path:
    """A model without a router calibration."""
    return gguf_for("tiny-multilingual")


@pytest.fixture
def calibrated(model: Path, tmp_path: Path, cli) -> Path:
    """The same, stamped with one."""
    spec, out = tmp_path / "router-spec.json", tmp_path / "router.gguf"
    spec.write_text(json.dumps(SPEC))
    assert cli("spec", "set", model, spec, "-o", out).code == 0
    return out


def untimed(response: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in response.items() if key not in ("id", "latency_ms", "timings")}


# -- score -----------------------------------------------------------------------------------------------------------


def test_score_prints_one_response(calibrated, tmp_path: Path, cli):
    file = tmp_path / "body.json"
    file.write_text(json.dumps(BODY))
    done = cli("router", "score", "-m", calibrated, file)
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
    response = json.loads(done.out)
    assert list(response)[:3] == ["object", "model", "scores"]
    assert (response["model"], response["runtime"]["calibration"]) == ("router", "platt")
    assert [score["id"] for score in response["scores"]] == ["a", "b"]
    score = response["scores"][0]
    assert score["p_success"] == pytest.approx(1 / (1 + math.exp(0.5 - 1.5 * score["logit"])), rel=1e-12)
    piped = cli("router", "score", "-m", calibrated, "-", stdin=file.read_bytes())
    assert untimed(json.loads(piped.out)) == untimed(response)


def test_score_rounds_and_explains_when_asked(calibrated, cli):
    stdin = json.dumps(BODY).encode()
    exact = json.loads(cli("router", "score", "-m", calibrated, "-", stdin=stdin).out)["scores"]
    rounded = json.loads(cli("router", "score", "-m", calibrated, "-", "--round", "3", "--debug", stdin=stdin).out)
    for score, rough in zip(exact, rounded["scores"], strict=True):
        assert (rough["p_success"], rough["logit"]) == (round(score["p_success"], 3), round(score["logit"], 3))
        assert rough["debug"]["logits"][1] - rough["debug"]["logits"][0] == score["logit"]


def test_without_a_calibration_no_body_is_read(model, cli):
    done = cli("router", "score", "-m", model, "no such file")
    assert (done.code, done.out) == (1, "")
    assert done.error_lines == [
        "error: ROUTER_NOT_CALIBRATED: the model has no router calibration; --allow-uncalibrated scores without one"
    ]


def test_allow_uncalibrated(model, cli):
    done = cli("router", "score", "--allow-uncalibrated", "-m", model, "-", stdin=json.dumps(BODY).encode())
    response = json.loads(done.out)
    assert response["runtime"]["calibration"] == "none"
    assert not response["scores"][0]["calibrated"]


def test_a_spec_file_brings_a_calibration(model, tmp_path: Path, cli):
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(SPEC))
    done = cli("router", "score", "-m", model, "--spec", spec, "-", stdin=json.dumps(BODY).encode())
    assert json.loads(done.out)["runtime"]["calibration"] == "platt"


REFUSED = {
    "no JSON": (b"{", "MALFORMED_JSON", ""),
    "no object": (b"[]", "BODY_NOT_OBJECT", ""),
    "over 1 MiB": (b" " * (2**20 + 1), "BODY_TOO_LARGE", ""),
    "no task": (b"{}", "INVALID_REQUEST", "(task)"),
    "bad card": (
        json.dumps(BODY | {"candidates": [{"id": "a", "card": {}}]}).encode(),
        "INVALID_CARD",
        ".card.schema)",
    ),
    "does not fit": (
        json.dumps(BODY | {"task": "x " * 500, "truncation": "error"}).encode(),
        "STATE_TRUNCATED",
        "(task)",
    ),
}


@pytest.mark.parametrize("command", ["score", "render"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_request_is_one_line_and_exit_code_1(name: str, command: str, calibrated, cli):
    data, reason, param = REFUSED[name]
    done = cli("router", command, "-m", calibrated, "-", stdin=data)
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert done.err.startswith(f"error: {reason}: ")
    assert done.err.endswith(f"{param}\n")


def test_a_body_that_cannot_be_read(calibrated, tmp_path: Path, cli):
    done = cli("router", "score", "-m", calibrated, tmp_path / "x.json")
    assert (done.code, len(done.error_lines)) == (1, 1)
    assert "cannot be read" in done.error_lines[0]


def test_warnings_are_notes(calibrated, cli):
    body = BODY | {"task": "x " * 500, "candidates": [{"id": "a", "card": CARD | {"zz": 1}}]}
    for command in ("score", "render"):
        done = cli("router", command, "-m", calibrated, "-", stdin=json.dumps(body).encode())
        assert done.err.splitlines()[0] == "note: unknown field ignored (candidates[0].card.zz)"
        assert "state tokens dropped (task)" in done.err.splitlines()[1]
        assert len(json.loads(done.out)["warnings"]) == 2
        quiet = cli("router", command, "-q", "-m", calibrated, "-", stdin=json.dumps(body).encode())
        assert (quiet.err, len(json.loads(quiet.out)["warnings"])) == ("", 2)


def test_a_checkpoint_folder_is_a_model(tmp_path: Path, checkpoint, cli):
    options = ["--cache-dir", tmp_path / "cache", "--allow-uncalibrated", "-q"]
    done = cli("router", "score", "-m", checkpoint("tiny-multilingual"), *options, "-", stdin=json.dumps(BODY).encode())
    assert json.loads(done.out)["model"] == "tiny-multilingual"


# -- render ----------------------------------------------------------------------------------------------------------


def test_render_prints_what_the_model_reads(model, cli):
    done = cli("router", "render", "-m", model, "-", stdin=json.dumps(BODY | {"task": "Sum <mask> it"}).encode())
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
    rendered = json.loads(done.out)
    assert list(rendered) == [
        *("object", "model", "question", "special_tokens", "state_split", "max_card_tokens", "spec_sha256"),
        *("items", "warnings"),
    ]
    assert (rendered["state_split"], rendered["max_card_tokens"]) == (True, 96)
    item = rendered["items"][0]
    assert item["state"].endswith("\n\ntask: Sum <mask> it")
    assert item["model_text"].endswith("\n\ntask: Sum   it")
    assert item["n_state_cut"] == 0
    tokens = json.loads(cli("tokenize", "-m", model, item["model_text"]).out)["ids"]
    assert item["token_ids"][-len(tokens) - 1 : -1] == tokens


def test_render_and_card_load_no_torch(model):
    for command, value in ((["render", "-m", str(model), "-"], BODY), (["card", "-"], CARD)):
        script = "import sys; from layactl.cli.app import main; code = main(sys.argv[1:]); "
        script += "assert 'torch' not in sys.modules; sys.exit(code)"
        run = [sys.executable, "-c", script, "router", *command]
        done = subprocess.run(run, input=json.dumps(value).encode(), capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout


def test_render_tells_what_the_user_should_know_about_the_file(gguf_for, cli):
    stdin = json.dumps(BODY).encode()
    for command in (["render"], ["score", "--allow-uncalibrated"]):
        done = cli("router", *command, "-m", gguf_for("tiny-english"), "-", stdin=stdin)
        assert done.code == 0
        assert "temperature 0.1006 of choice" in done.err


# -- card ------------------------------------------------------------------------------------------------------------


def test_card_prints_the_text(tmp_path: Path, cli):
    file = tmp_path / "card.json"
    file.write_text(json.dumps(CARD | {"name": "A\nB \u4e2d", "checks": [CHECK]}, ensure_ascii=False), encoding="utf-8")
    expected = "executor: A B \u4e2d\nkind: local\nchecks:\n- sums: passed 3 of 4; source: v1\n"
    for done in (cli("router", "card", file), cli("router", "card", "-", stdin=file.read_bytes())):
        assert (done.code, done.out, done.err) == (0, expected, "")


def test_card_warns_on_stderr(cli):
    card = CARD | {"zz": 1, "checks": [CHECK | {"note\n": 1}]}
    done = cli("router", "card", "-", stdin=json.dumps(card).encode())
    assert done.err.splitlines() == [
        "note: unknown field ignored (card.zz)",
        "note: unknown field ignored (card.checks[0].note\\n)",
    ]
    assert cli("router", "card", "-q", "-", stdin=json.dumps(card).encode()).err == ""


BAD_CARDS = {
    "no name": (json.dumps({"schema": CARD["schema"]}).encode(), "error: INVALID_CARD: is missing (card.name)"),
    "no object": (b"[]", "error: INVALID_CARD: a card must be an object (card)"),
    "no JSON": (b"{", "error: MALFORMED_JSON: not valid JSON: "),
    "NaN": (b'{"x": NaN}', "error: UNSUPPORTED_NUMBER: NaN is not a JSON number"),
}


@pytest.mark.parametrize("name", BAD_CARDS)
def test_a_bad_card_is_one_line(name: str, cli):
    data, line = BAD_CARDS[name]
    done = cli("router", "card", "-", stdin=data)
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert done.err.startswith(line)


# -- decide --jsonl --------------------------------------------------------------------------------------------------


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def test_lines_with_candidates_are_router_requests(calibrated, cli):
    lines = jsonl({"id": "r"} | BODY, {"id": "s"} | STATE, BODY, {"candidates": None, **STATE})
    done = cli("decide", "-q", "-m", calibrated, "--jsonl", "-", stdin=lines)
    first, second, third, fourth = map(json.loads, done.out.splitlines())
    assert done.code == 3
    assert list(first)[:3] == ["id", "object", "model"]
    assert (first["id"], first["object"], third["id"]) == ("r", "router.scores", 3)
    assert second["answers"]["q"]["type"] == "noul"
    single = json.loads(cli("router", "score", "-m", calibrated, "-", stdin=json.dumps(BODY).encode()).out)
    assert untimed(first) == untimed(third) == untimed(single)
    assert fourth["error"]["param"] == "task"


def test_a_refused_router_line_gives_its_error_and_the_run_goes_on(calibrated, cli):
    bad = {"id": "x"} | BODY | {"candidates": [{"id": "a", "card": CARD}, {"id": "a", "card": CARD}]}
    done = cli("decide", "-q", "-m", calibrated, "--jsonl", "-", stdin=jsonl(bad, BODY))
    refused, answered = map(json.loads, done.out.splitlines())
    assert done.code == 3
    assert list(refused) == ["id", "line", "error"]
    assert (refused["id"], refused["line"]) == ("x", 1)
    assert (refused["error"]["reason"], refused["error"]["param"]) == ("DUPLICATE_CANDIDATE_ID", "candidates[1].id")
    assert answered["scores"]


def test_router_lines_without_a_calibration(model, cli):
    done = cli("decide", "-q", "-m", model, "--jsonl", "-", stdin=jsonl({"candidates": 1}, STATE))
    refused, answered = map(json.loads, done.out.splitlines())
    assert done.code == 3
    assert (refused["error"]["code"], refused["error"]["reason"]) == (501, "ROUTER_NOT_CALIBRATED")
    assert refused["error"]["type"] == "not_supported_error"
    assert answered["answers"]
    allowed = cli("decide", "-q", "-m", model, "--allow-uncalibrated", "--jsonl", "-", stdin=jsonl(BODY))
    assert allowed.code == 0
    assert not json.loads(allowed.out)["scores"][0]["calibrated"]


def test_options_of_a_run_hold_for_router_lines(calibrated, cli):
    long = BODY | {"task": "x " * 500}
    done = cli(
        *("decide", "-q", "-m", calibrated, "--jsonl", "-", "--truncation", "error", "--round", "2", "--debug"),
        *("--ask", "noul: Urgent?"),
        stdin=jsonl(long, long | {"truncation": "allow"}),
    )
    refused, answered = map(json.loads, done.out.splitlines())
    assert refused["error"]["reason"] == "STATE_TRUNCATED"
    score = answered["scores"][0]
    assert score["logit"] == round(score["logit"], 2)
    assert "debug" in score
    assert score["truncated_tokens"] > 0


def test_a_run_with_another_permission_is_not_resumed(model, tmp_path: Path, cli):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl(BODY, BODY))
    run = ["decide", "-q", "-m", model, "--jsonl", source, "-o", out]
    assert cli(*run, "--allow-uncalibrated").code == 0
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(lines[0] + lines[1][:40])
    refused = cli(*run, "--resume")
    assert refused.code == 2
    assert "options" in refused.error_lines[0]
    assert cli(*run, "--resume", "--allow-uncalibrated").code == 0
    again = out.read_bytes().splitlines()
    assert [untimed(json.loads(line)) for line in again] == [untimed(json.loads(line)) for line in lines]


def test_a_stamped_file_may_be_copied_and_scored_elsewhere(calibrated, tmp_path: Path, cli):
    copy = shutil.copy(calibrated, tmp_path / "elsewhere.gguf")
    assert cli("router", "score", "-q", "-m", copy, "-", stdin=json.dumps(BODY).encode()).code == 0
