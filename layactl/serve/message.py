"""One HTTP message off a socket: bounded in bytes and in time, its framing beyond doubt.

What two readers of one byte stream could disagree about (two lengths, a length beside chunks, a name with a space
before its colon, a folded line, a lone carriage return) is refused here, since that is how requests are smuggled.
"""

from __future__ import annotations

import codecs
import io
import re
import socket
import time
from dataclasses import dataclass
from email.message import Message
from typing import IO

from layactl.engine.request import MAX_BODY_BYTES, body_too_large
from layactl.serve.replies import HttpError, bad_message, too_slow

_MAX_HEAD_BYTES = 2**16
_MOST_HEADERS = 100
_LONGEST_REQUEST_LINE = 2**13
_LONGEST_CHUNK_LINE = 4096
# A chunk of one byte may cost a hundred of framing; more is an attack.
_MAX_CHUNKED_BYTES = 4 * MAX_BODY_BYTES
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([!-~\x80-\xff]+) (HTTP/1\.[01])\r?\n")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):([^\0\r\n]*)\r?\n")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\0\r\n]*)?\r\n")
_BLANK = (b"\r\n", b"\n")


class Source(io.RawIOBase):
    """The bytes of a socket. Raises TimeoutError at the deadline."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = 0.0

    def expect(self, seconds: float) -> None:
        """From now on: all that is read arrives within so many seconds."""
        self._deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


@dataclass(frozen=True)
class Head:
    """A request line and its headers. version: HTTP/1.0 or HTTP/1.1."""

    method: str
    target: str
    version: str
    headers: Message

    @property
    def closes(self) -> bool:
        """Whether the client wants the connection closed after the reply."""
        words = {word.strip().lower() for text in self.headers.get_all("connection", []) for word in text.split(",")}
        return "close" in words or (self.version == "HTTP/1.0" and "keep-alive" not in words)

    @property
    def expects(self) -> bool:
        """Whether the client waits to be asked for its body."""
        return self.version != "HTTP/1.0" and self.headers.get("expect", "").lower() == "100-continue"


def read_head(stream: IO[bytes]) -> Head | None:
    """The next head; None where the client leaves before its end.

    Raises HttpError for what is no HTTP/1 (400), a long request line (414) or too much of it (431); TimeoutError.
    """
    line = stream.readline(_LONGEST_REQUEST_LINE + 1)
    if line in _BLANK:  # left over by a client that ends its body with a line of its own
        line = stream.readline(_LONGEST_REQUEST_LINE + 1)
    if len(line) > _LONGEST_REQUEST_LINE:
        raise bad_message("the request line is too long", 414)
    if not line.endswith(b"\n"):
        return None
    request = _REQUEST_LINE.fullmatch(line)
    if request is None:
        raise bad_message(f"a request starts with `METHOD TARGET HTTP/1.1`, not {_shown(line)}")
    method, target, version = (part.decode("latin-1") for part in request.groups())
    headers = Message()
    left = _MAX_HEAD_BYTES - len(line)
    while (line := stream.readline(left + 1)) not in _BLANK:
        left -= len(line)
        if left < 0 or len(headers) == _MOST_HEADERS:
            raise bad_message("the head is too large", 431)
        if not line.endswith(b"\n"):
            return None
        name, value = _field(line)
        headers[name] = value
    if len(headers.get_all("host", [])) != 1 and (version != "HTTP/1.0" or "host" in headers):
        raise bad_message("a request names one Host")
    return Head(method, target, version, headers)


def _shown(line: bytes) -> str:
    text = line.removesuffix(b"\n").removesuffix(b"\r").decode("latin-1")
    return f"{text!r:.60}"


def _field(line: bytes) -> tuple[str, str]:
    field = _FIELD.fullmatch(line)
    if field is None:
        raise bad_message(f"a header line is `Name: value`, not {_shown(line)}")
    name, value = (part.decode("latin-1") for part in field.groups())
    return name, value.strip(" \t")


@dataclass(frozen=True)
class Framing:
    """How long a body is: a number of bytes, or chunks (length None). announced: the message says that it has one."""

    length: int | None
    announced: bool


def framing_of(head: Head) -> Framing:
    """Raises HttpError for a head whose body could end in two places."""
    headers = head.headers
    lengths = headers.get_all("content-length", [])
    codings = [part for value in headers.get_all("transfer-encoding", []) for part in value.lower().split(",")]
    if codings:
        if lengths or head.version == "HTTP/1.0":
            raise bad_message("Transfer-Encoding does not go with Content-Length or HTTP/1.0")
        if [coding.strip(" \t") for coding in codings] != ["chunked"]:
            raise bad_message("the only Transfer-Encoding spoken here is chunked")
        return Framing(None, announced=True)
    if not lengths:
        return Framing(0, announced=False)
    text = lengths[0]
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
    elif not _is_utf8(charset or "utf-8"):
        message = f"the body must be UTF-8, not {charset!r:.40}"
    elif encoding not in ("", "identity"):
        message = f"the body must not be encoded ({encoding:.40})"
    else:
        return
    raise HttpError(415, "UNSUPPORTED_MEDIA_TYPE", message)


def _is_utf8(charset: str) -> bool:
    try:
        return codecs.lookup(charset).name in ("utf-8", "ascii")
    except (LookupError, ValueError):
        return False


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
        line = stream.readline(_LONGEST_CHUNK_LINE)
        framed += len(line)
        if not line:
            raise ConnectionResetError("the client left in the middle of its body")
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None:
            raise bad_message(f"a chunk starts with its size in hexadecimal, not {_shown(line)}")
        count = int(size[1], 16)
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
    while (line := stream.readline(_LONGEST_CHUNK_LINE)) not in (*_BLANK, b""):
        _field(line)
        framed += len(line)
        if framed > _MAX_CHUNKED_BYTES:
            raise body_too_large()
    return bytes(body)
