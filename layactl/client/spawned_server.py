"""A server of our own, started for a measurement or a parity run and gone with it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from layactl.errors import ModelLoadError

# Ends the server when its standard input closes, which the death of the process that holds the other end does too,
# whatever it died of.
_TIED = """
import os, runpy, signal, sys, threading

def watch():
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=watch, daemon=True).start()
runpy.run_module("layactl", run_name="__main__", alter_sys=True)
"""
# What a user's own server was told is no business of this one.
_KEPT_VARIABLES = ("LAYACTL_CACHE", "LAYACTL_THREADS")
_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class SpawnedServer:
    """A server that is ready. pid: of its process; ready_seconds: from its start until it answered."""

    url: str
    pid: int
    ready_seconds: float


@contextmanager
def spawned_server(model: Path, options: Sequence[str] = (), *, seconds: float = 600.0) -> Iterator[SpawnedServer]:
    """`layactl serve` on a private Unix socket, ready to answer; stopped afterwards.

    options: of the command, beyond the model and the socket; seconds: to wait for it.
    Raises ModelLoadError with what the server said when it does not come up.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LAYACTL_") or k in _KEPT_VARIABLES}
    with tempfile.TemporaryDirectory(prefix="layactl-") as folder:
        socket, said = Path(folder) / "s", Path(folder) / "stderr"
        arguments = ["serve", "-m", str(model), "--socket", str(socket), *options]
        started = time.perf_counter()
        with said.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", _TIED, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment,
            )
        try:
            _wait(process, said, started + seconds)
            yield SpawnedServer(f"unix:{socket}", process.pid, time.perf_counter() - started)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], said: Path, until: float) -> None:
    while b"note: ready on " not in (text := said.read_bytes()):
        if process.poll() is not None or time.perf_counter() > until:
            lines = [line for line in text.decode("utf-8", "replace").splitlines() if line.startswith("error: ")]
            raise ModelLoadError(
                "the server did not start: " + (lines[-1].removeprefix("error: ") if lines else "it said nothing")
            )
        time.sleep(0.01)
