"""A stock llama-server as a peer: it answers typed decisions at /v1/systemone from a file of its own dialect."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from layactl.client.http_client import SYSTEMONE, ServerClient
from layactl.errors import ModelLoadError, RequestError, ServerError, UsageError
from layactl.gguf_file.dialect import dialect_of
from layactl.gguf_file.reader import GgufFile

_START_SECONDS = 120.0
_PROBE = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "Ready?", "criteria": {"true": "y"}}}}


@contextmanager
def running_llama_server(binary: Path, model: Path, threads: int) -> Iterator[str]:
    """Its URL, once it answers. Raises UsageError for a model of another dialect, ModelLoadError."""
    if not binary.is_file():
        raise UsageError("is neither a URL nor a program", where=f"--peer llama-server={binary}")
    if dialect_of(GgufFile(model)) != "llama.cpp":
        raise UsageError(
            "a llama-server loads the dialect llama.cpp only",
            where=str(model),
            hint="layactl gguf convert-dialect makes such a file; give it with --peer-model",
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Its own micro-batch limits what it reads of a sequence; the largest a model here takes.
    arguments = ["-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-t", str(threads), "-ub", "8192"]
    process = subprocess.Popen(
        [str(binary), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(process, url)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        try:
            with ServerClient(url, patience=0.0, timeout=30.0) as client:
                client.post(SYSTEMONE, _PROBE)
                return
        except RequestError:  # it answers, though not this
            return
        except ServerError:
            time.sleep(0.25)
    raise ModelLoadError("llama-server did not answer", where=url)
