"""One HTTP message off a socket: bounded in bytes and in time, its framing beyond doubt.

`http.server` splits the head; what two readers of one byte stream could disagree about (two lengths, a length beside
chunks, a name with a space before its colon, a folded line) is refused here, since that is how requests are smuggled.
"""

from __future__ import annotations

import io
import re
import socket
import time
from dataclasses import dataclass
from email.message import Message
from typing import IO

from layactl.engine.request import MAX_BODY_BYTES, body_too_large
from layactl.serve.replies import HttpError, bad_message, too_slow

MAX_HEAD_BYTES = 2**16
_LONGEST_LINE = 4096
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# A chunk of one byte may cost a hundred of framing; more is an attack.
_MAX_CHUNKED_BYTES = 4 * MAX_BODY_BYTES


class HeadTooLarge(Exception):
    """A head over MAX_HEAD_BYTES."""


class Source(io.RawIOBase):
    """The bytes of a socket. Raises TimeoutError at the deadline, and HeadTooLarge once a head has had its share."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = 0.0
        self._head_left: int | None = None

    def expect(self, seconds: float, *, head: bool = False) -> None:
        """From now on: all that is read arrives within so many seconds, and of a head no more than its share."""
        self._deadline = time.monotonic() + seconds
        self._head_left = MAX_HEAD_BYTES if head else None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self._head_left is not None and self._head_left <= 0:
            raise HeadTooLarge
        self._connection.settimeout(left)
        count = self._connection.recv_into(buffer)
        if self._head_left is not None:
            self._head_left -= count
        return count


@dataclass(frozen=True)
class Framing:
    """How long a body is: a number of bytes, or chunks (length None). announced: the message says that it has one."""

    length: int | None
    announced: bool


def framing_of(headers: Message) -> Framing:
    """Raises HttpError for a head whose body could end in two places."""
    if headers.defects or headers.get_payload():
        raise bad_message("a header line is no `Name: value`")
    for name, value in headers.raw_items():
        if not _TOKEN.fullmatch(name):
            raise bad_message(f"{name!r:.60} is no header name")
        if any(c in value for c in "\r\n\0"):
            raise bad_message(f"the header {name} holds a line break")
    lengths = headers.get_all("content-length", [])
    codings = [part.strip().lower() for value in headers.get_all("transfer-encoding", []) for part in value.split(",")]
    if codings:
        if lengths:
            raise bad_message("Content-Length and Transfer-Encoding do not go together")
        if codings != ["chunked"]:
            raise bad_message("the only Transfer-Encoding spoken here is chunked")
        return Framing(None, announced=True)
    if not lengths:
        return Framing(0, announced=False)
    text = lengths[0].strip()
    if len(set(lengths)) > 1 or not (text.isascii() and text.isdecimal()):
        raise bad_message(f"Content-Length is no number of bytes: {', '.join(lengths)!r:.60}")
    # Longer than this is too large in any case, and no number of digits reaches int().
    return Framing(int(text) if len(text) < 19 else 2**62, announced=True)


def check_json(headers: Message) -> None:
    """Raises HttpError UNSUPPORTED_MEDIA_TYPE for a content type that is named and is not UTF-8 JSON.

    Pages of other origins can send what a form can send without asking first, and JSON is not among it.
    """
    if headers.get("content-type") is None:
        return
    kind, charset = headers.get_content_type(), headers.get_content_charset()
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        message = f"the body must be application/json, not {headers['content-type']!r:.60}"
    elif charset not in (None, "utf-8", "us-ascii"):
        message = f"the body must be UTF-8, not {charset!r:.40}"
    elif encoding not in ("", "identity"):
        message = f"the body must not be encoded ({encoding:.40})"
    else:
        return
    raise HttpError(415, "UNSUPPORTED_MEDIA_TYPE", message)


def check_length(framing: Framing) -> None:
    """Raises RequestError LENGTH_REQUIRED, BODY_TOO_LARGE before a byte of the body is read."""
    if not framing.announced:
        raise HttpError(411, "LENGTH_REQUIRED", "the request needs a Content-Length, or chunks")
    if framing.length is not None and framing.length > MAX_BODY_BYTES:
        raise body_too_large()


def read_body(stream: IO[bytes], framing: Framing) -> bytes:
    """Raises RequestError: BODY_TOO_LARGE, bad chunks, REQUEST_TIMEOUT; ConnectionError where the client leaves."""
    try:
        if framing.length is None:
            return _read_chunks(stream)
        data = stream.read(framing.length)
    except TimeoutError:
        raise too_slow() from None
    if len(data) < framing.length:
        raise ConnectionResetError("the client left in the middle of its body")
    return data


def _read_chunks(stream: IO[bytes]) -> bytes:
    body = bytearray()
    framed = 0
    while True:
        line = stream.readline(_LONGEST_LINE)
        framed += len(line)
        size = line.split(b";", 1)[0].strip()
        if not line:
            raise ConnectionResetError("the client left in the middle of its body")
        if not line.endswith(b"\n") or not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", size):
            raise bad_message(f"a chunk starts with its size in hexadecimal, not {line[:40]!r}")
        count = int(size, 16)
        if len(body) + count > MAX_BODY_BYTES or framed > _MAX_CHUNKED_BYTES:
            raise body_too_large()
        if not count:
            break
        data = stream.read(count + 2)
        if len(data) < count + 2:
            raise ConnectionResetError("the client left in the middle of its body")
        if not data.endswith(b"\r\n"):
            raise bad_message("a chunk does not end where its size says")
        body += data[:count]
        framed += len(data)
    while (line := stream.readline(_LONGEST_LINE)) not in (b"\r\n", b"\n", b""):
        framed += len(line)
        if framed > _MAX_CHUNKED_BYTES:
            raise body_too_large()
    return bytes(body)
