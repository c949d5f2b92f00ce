"""A real server process: started, asked how it is, stopped."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# For whatever a busy machine may make slow; nothing is expected to come near it.
PATIENCE = 60.0
MIB_IN_KB = 1024


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Ask again until the answer is true; returns it."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)
    return answer


class ServerProcess:
    """`layactl serve` with these arguments, on a free port unless they name a socket.

    variables: added to its environment; descriptors: its limit of open files.
    """

    def __init__(
        self, *args: object, variables: Mapping[str, str] | None = None, descriptors: int | None = None
    ) -> None:
        words = [str(arg) for arg in args]
        self.socket_path = words[words.index("--socket") + 1] if "--socket" in words else None
        self.tls = "--ssl-cert-file" in words
        self.key: str | None = None
        place = [] if self.socket_path else ["--port", "0"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LAYACTL_")}
        limit = ["prlimit", f"--nofile={descriptors}"] if descriptors else []
        self.process = subprocess.Popen(
            [*limit, sys.executable, "-m", "layactl", "serve", "-t", "1", *place, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=kept | (variables or {}),
        )
        self._written = {"stdout": bytearray(), "stderr": bytearray()}
        self._readers = [
            threading.Thread(target=self._read, args=(name,), daemon=True) for name in ("stdout", "stderr")
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        with getattr(self.process, name) as stream:
            while data := stream.read1(65536):
                self._written[name] += data

    @property
    def out(self) -> str:
        return self._written["stdout"].decode()

    @property
    def err(self) -> str:
        return self._written["stderr"].decode()

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]

    def _told(self, word: str) -> str:
        def found() -> re.Match[str] | None:
            match = re.search(rf"^note: {word} on ([^\s,]+?)(?:,|:? )", self.err, re.MULTILINE)
            assert match or self.process.poll() is None, f"ended with {self.process.poll()}: {self.err}"
            return match

        return wait_for(found, f"{word}: {self.err}").group(1)

    def listening(self) -> ServerProcess:
        """Wait until it accepts connections, whether or not it can answer them."""
        self.url = self._told("listening")
        return self

    def ready(self) -> ServerProcess:
        """Wait until it says that it answers."""
        self.url = self._told("ready")
        return self

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def connect(self, timeout: float = PATIENCE) -> socket.socket:
        """A connected socket; over TLS without asking whose certificate it is."""
        if self.socket_path:
            raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            raw.settimeout(timeout)
            try:
                raw.connect(self.socket_path)
            except OSError:
                raw.close()
                raise
        else:
            raw = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        if self.tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            raw = context.wrap_socket(raw)
        return raw

    def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own. body: bytes as they are, anything else as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE)
        connection.sock = self.connect()
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            named = {"content-type": "application/json"} if data is not None else {}
            named |= {"content-length": str(len(data))} if data is not None else {}
            named |= {"authorization": f"Bearer {self.key}"} if self.key else {}
            for name, value in (named | dict(headers or {})).items():
                connection.putheader(name, value)
            connection.endheaders(data)
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, fields, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def counters(self) -> dict[str, float]:
        """The decision counters of /metrics, by the word between `decision_` and `_total`."""
        text = self.get("/metrics").body.decode()
        found = re.findall(r"^llamacpp:decision_(\w+?)(?:_total)? (\S+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    def status(self, field: str) -> int:
        """A number of /proc/PID/status: VmRSS in kB, Threads."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{field}:\s+(\d+)", text, re.MULTILINE).group(1))

    def reset_peak(self) -> int:
        """Let VmHWM begin again from here; returns VmRSS, in kB."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.status("VmRSS")

    def send_signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """The exit code, once all that it wrote is read."""
        code = self.process.wait(seconds)
        for reader in self._readers:
            reader.join(seconds)
        return code

    def stop(self) -> int:
        if self.process.poll() is None:
            self.send_signal()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


class Answer:
    """A reply. headers: by their names in lower case."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str | None:
        """The error's word; None for an answer."""
        return self.json()["error"]["reason"] if self.status >= 400 else None

    def __repr__(self) -> str:
        return f"{self.status} {self.headers} {self.body[:500]!r}"
