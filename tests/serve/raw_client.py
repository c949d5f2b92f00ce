"""A client that says what a client of a library never would, and reads replies byte by byte."""

from __future__ import annotations

import socket
from contextlib import suppress
from types import TracebackType

from .server_process import PATIENCE, Answer, ServerProcess


class RawClient:
    """One connection: bytes out, replies in. Requests may follow each other, and so may replies."""

    def __init__(self, server: ServerProcess, timeout: float = PATIENCE) -> None:
        self.socket = server.connect(timeout)
        self._read = b""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.socket.close()

    def send(self, *parts: bytes | str) -> RawClient:
        """Text is sent as it is spelled, with the line ends that it has."""
        self.socket.sendall(b"".join(part.encode() if isinstance(part, str) else part for part in parts))
        return self

    def reply(self, *, head_only: bool = False) -> Answer:
        """The next reply, an interim one (100) included. Fails where it does not come whole."""
        while b"\r\n\r\n" not in self._read:
            self.read_some()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, *_ = first.split(" ")
        assert version == "HTTP/1.1"
        fields = [line.partition(": ") for line in lines]
        headers = {name.lower(): value for name, _, value in fields}
        assert len(headers) == len(fields), f"a header twice: {head!r}"
        length = 0 if head_only or status in ("100", "204") else int(headers["content-length"])
        while len(self._read) < length:
            self.read_some()
        body, self._read = self._read[:length], self._read[length:]
        return Answer(int(status), headers, body)

    def reconnect(self, server: ServerProcess) -> None:
        self.socket.close()
        self.socket, self._read = server.connect(), b""

    def read_some(self) -> None:
        """Wait for the next bytes of a reply, which `reply` then reads on."""
        data = self.socket.recv(65536)
        assert data, f"closed after {self._read!r}"
        self._read += data

    def closed(self) -> bool:
        """Whether the other side has closed without another byte; waits until it does."""
        with suppress(ConnectionError):
            return not self._read and self.socket.recv(65536) == b""
        return not self._read

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)


def post(path: str, body: bytes, *lines: str) -> bytes:
    """A whole POST. lines: further header lines."""
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def get(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *lines]).encode() + b"\r\n\r\n"
