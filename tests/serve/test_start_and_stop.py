"""From the command line to the first answer: listening before loading, folders through the cache, errors of a load."""

from __future__ import annotations

import json
import re
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from .bodies import ROUTER, SYSTEMONE, systemone
from .server_process import ServerProcess, wait_for

CHECKPOINTS = Path(__file__).parents[2] / "fixtures"


def test_while_it_loads_it_says_so(start: Callable[..., ServerProcess]):
    server = start("--debug", "--metrics", LAYACTL_DEBUG_LOAD_DELAY_MS="600000").listening()
    for path in ("/health", "/v1/health", "/v1/models", "/models", "/props"):
        answer = server.get(path)
        assert (answer.status, answer.reason) == (503, "LOADING"), path
        assert answer.json()["error"]["type"] == "unavailable_error"
        assert answer.headers["retry-after"] == "1"
    for path in (SYSTEMONE, ROUTER, "/v1/decision/render"):
        assert server.post(path, systemone()).reason == "LOADING"
    assert server.request("HEAD", "/health").status == 503
    # What does not depend on the model is as it will be.
    assert server.get("/nowhere").status == 404
    assert server.request("DELETE", "/health").status == 405
    assert server.request("OPTIONS", SYSTEMONE).status == 204
    assert "ready" not in server.err
    # A load is no reason to wait.
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
    assert server.error_lines == []


def test_a_folder_is_converted_after_listening_and_found_again(start: Callable[..., ServerProcess], tmp_path: Path):
    folder = CHECKPOINTS / "tiny-english"
    arguments = ("--cache-dir", tmp_path, "--outtype", "f32", "--no-warmup")
    facts, answers = [], []
    for hit in (False, True):
        server = start(*arguments, model=folder).listening()
        statuses = [server.get("/health").status]

        def healthy(server: ServerProcess = server, statuses: list[int] = statuses) -> bool:
            statuses.append(server.get("/health").status)
            return statuses[-1] == 200

        wait_for(healthy, "the server is ready")
        # It listens first: the conversion takes far longer than a look at it.
        assert set(statuses[:-1]) == {503}
        server.ready()
        assert ("converted in" in server.err) is not hit
        props = server.get("/props").json()
        decision = props["decision"]
        assert (props["model_alias"], props["model_path"]) == ("tiny-english", str(folder))
        assert decision["source"] == "checkpoint-dir"
        facts.append(decision["checkpoint"])
        assert list(facts[-1]) == ["dir", "cache_dir", "key", "outtype", "cache_hit", "convert_ms", "converter"]
        assert (facts[-1]["dir"], facts[-1]["cache_dir"], facts[-1]["outtype"]) == (str(folder), str(tmp_path), "f32")
        assert facts[-1]["cache_hit"] is hit
        assert Path(decision["cache_path"]).is_file()
        assert tmp_path in Path(decision["cache_path"]).parents
        answers.append(server.post(SYSTEMONE, systemone()).json()["answers"])
        assert server.stop() == 0
    assert facts[0]["key"] == facts[1]["key"]
    assert facts[0]["convert_ms"] > 0
    assert answers[0] == answers[1]


def test_a_load_that_fails_ends_the_process_with_one_line(
    start: Callable[..., ServerProcess], gguf_for: Callable[..., Path], tmp_path: Path
):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf_for().read_bytes()[:5000])
    no_checkpoint = tmp_path / "folder"
    no_checkpoint.mkdir()
    for model, server in [(path, start(model=path)) for path in (broken, no_checkpoint)]:
        assert server.wait() == 1
        # It listened, and nothing of it is left.
        assert "note: listening on http://127.0.0.1:" in server.err
        assert "ready" not in server.err
        assert len(server.error_lines) == 1, server.err
        assert str(model) in server.error_lines[0]
        assert "Traceback" not in server.err
        assert server.out == ""


def test_the_ready_line_has_address_and_model(english: ServerProcess, multilingual: ServerProcess):
    (line,) = re.findall(r"^note: ready on .*$", english.err, re.MULTILINE)
    assert re.fullmatch(
        rf"note: ready on http://127\.0\.0\.1:{english.port}: tiny-english-f32 \(\w+, 1 threads\)", line
    )
    assert f"note: ready on http://127.0.0.1:{multilingual.port}: router-test (" in multilingual.err
    # Data goes to stdout, and there is none.
    assert english.out == multilingual.out == ""


def test_quiet_on_stderr_with_the_access_log_on_stdout_and_settings_of_the_environment(
    gguf_for: Callable[..., Path], tmp_path: Path
):
    """A service as an init system starts it: everything by variables, addresses known beforehand."""
    with tempfile.TemporaryDirectory(prefix="lay") as folder:
        path = str(Path(folder) / "s")
        variables = {"LAYACTL_MODEL": str(gguf_for()), "LAYACTL_API_KEY": "one,two", "LAYACTL_QUEUE": "9"}
        variables |= {"LAYACTL_MAX_ITEMS": "3", "LAYACTL_METRICS": "1", "LAYACTL_ALIAS": "by-variable"}
        server = ServerProcess("--socket", path, "--quiet", "--access-log", "-", "--queue", "2", variables=variables)
        try:
            wait_for(lambda: Path(path).exists() and healthy(server), "the server is ready")
            server.key = "two"
            props = server.get("/props").json()
            assert props["model_alias"] == "by-variable"
            assert props["decision"]["limits"]["max_questions"] == 3
            # A flag beats the variable.
            assert props["decision"]["queue_capacity"] == 2
            assert server.get("/metrics").status == 200
        finally:
            assert server.stop() == 0
        assert server.err == ""
        entries = [json.loads(line) for line in server.out.splitlines()]
        assert [entry["path"] for entry in entries[-2:]] == ["/props", "/metrics"]
        assert {entry["client"] for entry in entries} == {"unix"}


def healthy(server: ServerProcess) -> bool:
    try:
        return server.get("/health").status == 200
    except ConnectionError:
        return False
