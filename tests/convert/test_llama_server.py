"""A stock llama-server answers the files written here, where LAYACTL_LLAMA_SERVER names one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from make_llama_cpp_golden import CASES

import layactl
from layactl.convert.convert import convert

SERVER = os.environ.get("LAYACTL_LLAMA_SERVER")
BODY = {
    "state": "Billed twice, please refund me today.",
    "questions": {
        "refund": {"type": "noul", "instructions": "Asks for money back?"},
        "team": {
            "type": "choice",
            "instructions": "Which team?",
            "criteria": {"billing": "payments", "tech": "faults"},
        },
    },
}


def _post(port: int) -> dict:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/systemone", json.dumps(BODY).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


@pytest.mark.skipif(SERVER is None, reason="LAYACTL_LLAMA_SERVER names no llama-server")
@pytest.mark.parametrize("name", ["stock-multilingual", "stock-english"])
def test_the_stock_server_gives_the_probabilities_of_this_engine(name, tmp_path):
    path = tmp_path / f"{name}.gguf"
    convert(CASES[name].write(tmp_path), path, outtype="f32", dialect="llama.cpp")
    ours = layactl.load(path).decide(BODY["state"], BODY["questions"])["answers"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [SERVER, "-m", path, "--host", "127.0.0.1", "--port", port, "--no-repack", "-t", 2]
    with subprocess.Popen([*map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(120):
                try:
                    theirs = _post(port)["answers"]
                    break
                except (urllib.error.URLError, ConnectionError):
                    time.sleep(0.5)
            assert abs(theirs["refund"]["noul"] - ours["refund"]["noul"]) < 1e-2
            for label, p in ours["team"]["probabilities"].items():
                assert abs(theirs["team"]["probabilities"][label] - p) < 1e-2
        finally:
            server.terminate()
