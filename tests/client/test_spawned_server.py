"""A server that is started for a run lives as long as the run, and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from layactl.client.http_client import ServerClient
from layactl.client.spawned_server import spawned_server
from layactl.errors import ModelLoadError

# Prints the server's process number, and is killed while it waits.
HOLDER = """
import sys, time
from pathlib import Path
from layactl.client.spawned_server import spawned_server
with spawned_server(Path(sys.argv[1])) as server:
    print(server.pid, flush=True)
    time.sleep(600)
"""


def gone(pid: int, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_it_stops_with_the_block_and_ignores_what_a_user_told_his_own_server(gguf_for, monkeypatch):
    monkeypatch.setenv("LAYACTL_API_KEY", "of-another-server")
    with spawned_server(gguf_for(), ["--alias", "mine"]) as server, ServerClient(server.url) as client:
        assert client.props()["model_alias"] == "mine"
        assert server.ready_seconds > 0
    assert gone(server.pid)


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_it_dies_with_a_process_that_is_killed(gguf_for):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(gguf_for())], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert gone(pid)


def test_one_that_cannot_start_says_why(tmp_path: Path):
    (tmp_path / "x.gguf").write_bytes(b"not a GGUF")
    with pytest.raises(ModelLoadError, match=r"did not start: .*GGUF"), spawned_server(tmp_path / "x.gguf"):
        pass
