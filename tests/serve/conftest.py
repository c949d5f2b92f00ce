"""Server processes. Those of the session are shared by tests that change nothing; a start takes seconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .bodies import CALIBRATED_SPEC
from .server_process import ServerProcess

ORIGIN = "https://app.example"


@pytest.fixture(scope="session")
def calibrated_spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "spec.json"
    path.write_text(json.dumps(CALIBRATED_SPEC))
    return path


@pytest.fixture(scope="session")
def shared(gguf_for: Callable[..., Path], calibrated_spec: Path) -> Iterator[dict[str, ServerProcess]]:
    """The two servers that most tests ask, started side by side."""
    servers = {
        "english": ServerProcess("-m", gguf_for(), "--metrics", "--cors-origin", ORIGIN),
        "multilingual": ServerProcess(
            *("-m", gguf_for("tiny-multilingual"), "--spec", calibrated_spec, "--debug", "--metrics"),
            *("--alias", "router-test", "--cors-origin", "*", "--max-items", "8", "--plan", "packed"),
        ),
    }
    yield servers
    for server in servers.values():
        server.listening().send_signal()
    assert {name: server.wait() for name, server in servers.items()} == dict.fromkeys(servers, 0)


@pytest.fixture(scope="session")
def english(shared: dict[str, ServerProcess]) -> ServerProcess:
    """The English checkpoint as it is: no router calibration, no --debug."""
    return shared["english"].ready()


@pytest.fixture(scope="session")
def multilingual(shared: dict[str, ServerProcess]) -> ServerProcess:
    """The multilingual checkpoint with a spec that calibrates its router, and --debug."""
    return shared["multilingual"].ready()


@pytest.fixture
def start(gguf_for: Callable[..., Path]) -> Iterator[Callable[..., ServerProcess]]:
    """start(*args, model=..., **variables): a server of this test's own; not waited for, and stopped with the test."""
    servers = []

    def run(*args: object, model: Path | None = None, **variables: str) -> ServerProcess:
        servers.append(ServerProcess("-m", model or gguf_for(), *args, variables=variables))
        return servers[-1]

    yield run
    # All of them first, and `stop` once more, which ends them at once: how they stop is tested where it matters.
    for server in servers:
        server.send_signal()
    for server in servers:
        server.stop()
