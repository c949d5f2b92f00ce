"""One connection: heads and bodies in, replies out, until either side has had enough.

Requests of a connection are answered one after the other, in their order (pipelining). A body that nobody asked for is
read to its end where that costs little; otherwise the connection closes, so that it is never taken for a request.
"""

from __future__ import annotations

import io
import select
import socket
import ssl
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import layactl
from layactl.errors import RequestError
from layactl.serve.message import Framing, HeadTooLarge, Source, check_json, check_length, framing_of, read_body
from layactl.serve.replies import HttpError, Reply, bad_message, error_reply, too_slow
from layactl.serve.routes import Call, ClientLeft, Route

if TYPE_CHECKING:
    from layactl.serve.listener import Listener

# What is read of a body nobody wants before the connection is given up, to keep it or to let the reply arrive.
_DRAINED_TO_KEEP = 2**18
_DRAINED_TO_CLOSE = 2**24
_LINGER_SECONDS = 2.0
_SEND_AT_ONCE = 2**16


class Connection(BaseHTTPRequestHandler):
    """Made by the listener for every accepted socket, on a thread of its own."""

    protocol_version = "HTTP/1.1"
    server: Listener

    def setup(self) -> None:
        settings = self.server.settings
        raw = cast(socket.socket, self.request)
        raw.settimeout(settings.timeout)
        if raw.family != getattr(socket, "AF_UNIX", None):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        if settings.tls is not None:
            # On this thread: a client that never finishes its handshake keeps nobody else waiting.
            raw = settings.tls.wrap_socket(raw, server_side=True)
            self.request = raw
        self.connection = raw
        self._source = Source(raw)
        self._stream = io.BufferedReader(self._source)
        self.rfile = self._stream
        self.wfile = io.BytesIO()  # unused: replies are sent whole
        self._linger = False
        self.close_connection = True

    def handle_one_request(self) -> None:
        """One request and its reply. Raises OSError where the connection breaks."""
        self._framing = Framing(0, announced=False)
        self._unread = self._expects = False
        self.command, self._began = "", False
        self._route: Route | None = None
        try:
            if not self._read_head():
                self.close_connection = True
                return
        except TimeoutError:
            self.close_connection = True
            # An idle connection has nothing to be told.
            if self._began:
                self._send(error_reply(too_slow()))
            return
        except HeadTooLarge:
            self._refuse(bad_message("the head is too large", 431))
            return
        with self.server.active():
            self._exchange()

    def _read_head(self) -> bool:
        """Whether a request came. What http.server cannot read it refuses by `send_error`."""
        timeout = self.server.settings.timeout
        self._source.expect(timeout)
        if not self._stream.peek(1):
            return False
        self._began, self._started = True, time.perf_counter()
        self._source.expect(timeout, head=True)
        line = self.rfile.readline(2**16 + 1)
        if line in (b"\r\n", b"\n"):  # left over by a client that ends its body with a line of its own
            line = self.rfile.readline(2**16 + 1)
        if len(line) > 2**16:
            raise HeadTooLarge
        self.raw_requestline = line
        parsed: bool = self.parse_request()
        if not parsed:
            return False
        if self.request_version not in ("HTTP/1.0", "HTTP/1.1"):
            self._refuse(bad_message(f"{self.request_version[:20]!r} is not spoken here"))
            return False
        return True

    def _exchange(self) -> None:
        server = self.server
        reply: Reply | None
        try:
            reply = self._reply()
        except RequestError as error:
            reply = error_reply(error)
        except (ClientLeft, ConnectionError, ssl.SSLError):
            reply = None
        except Exception as error:
            reply = server.routes.internal(error)
        if self._route is not None:
            server.routes.count(self._route, reply)
        if reply is None:
            self.close_connection = True
            return self.log_reply(None)
        if server.stopping or reply.reason == "REQUEST_TIMEOUT":
            self.close_connection = True
        drains = self._unread and not self._expects and 0 <= (self._framing.length or -1) <= _DRAINED_TO_KEEP
        if self._unread and not drains:
            self.close_connection = True
        self._send(reply)
        if drains and not self.close_connection:
            self._source.expect(server.settings.timeout)
            self.close_connection = len(self.rfile.read(self._framing.length or 0)) < (self._framing.length or 0)

    def _reply(self) -> Reply:
        """Raises RequestError, ClientLeft."""
        try:
            self._framing = framing_of(self.headers)
        except HttpError:
            # Nobody knows where this message ends.
            self.close_connection = True
            self._linger = True
            raise
        self._unread = self._framing.announced and self._framing.length != 0
        routes, path = self.server.routes, _path(self.path)
        if self.command == "OPTIONS":
            return routes.preflight(path)
        route = self._route = routes.find(path)
        routes.admit(route, self.command, self.headers)
        if self.command == "POST":
            check_json(self.headers)
            check_length(self._framing)
        return routes.answer(route, Call(self._body, self._client_left, self._started))

    def _body(self) -> bytes:
        """The body, asked for where the client waits to be asked (Expect: 100-continue)."""
        if not self._unread:
            return b""
        if self._expects:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects = False
        self._source.expect(self.server.settings.timeout)
        try:
            data = read_body(self._stream, self._framing)
        except RequestError:
            # Of a body in chunks nobody knows the end.
            self.close_connection = self._linger = True
            raise
        self._unread = False
        return data

    def _client_left(self) -> bool:
        """Whether the other side has closed. One that only closed its sending half counts as gone: it cannot be told
        from one that left.
        """
        if hasattr(select, "poll"):
            gone = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
            poll = select.poll()
            poll.register(self.connection, gone | select.POLLIN)
            events = sum(event for _, event in poll.poll(0))
            if events & gone or not events:
                return bool(events)
        try:
            # Past the TLS layer, whose own recv cannot peek.
            self.connection.settimeout(0)
            return socket.socket.recv(self.connection, 1, socket.MSG_PEEK) == b""
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def _refuse(self, error: RequestError) -> None:
        self.close_connection = self._linger = True
        self._send(error_reply(error))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server says of a head it cannot read, in our envelope."""
        self._refuse(bad_message(message or HTTPStatus(code).phrase, code if code in (400, 414, 431) else 400))

    def handle_expect_100(self) -> bool:
        self._expects = True
        return True

    def _send(self, reply: Reply) -> None:
        """Head and body in one piece; a client that takes neither within the time limit is given up."""
        if self._unread:
            self._linger = True
        old = getattr(self, "request_version", "") == "HTTP/1.0"
        headers = {
            "Server": f"layactl/{layactl.__version__}",
            "Date": self.date_time_string(),
            **({"Content-Type": reply.content_type} if reply.content_type else {}),
            **({} if reply.status == HTTPStatus.NO_CONTENT else {"Content-Length": str(len(reply.body))}),
            "Cache-Control": "no-store",
            **reply.headers,
            **self.server.routes.cors(self.headers.get("origin") if getattr(self, "headers", None) else None),
            **({"Connection": "close"} if self.close_connection else {"Connection": "keep-alive"} if old else {}),
        }
        lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"
        self._write(head if self.command == "HEAD" else head + reply.body)
        self.log_reply(reply)

    def _write(self, data: bytes) -> None:
        self.connection.settimeout(self.server.settings.timeout)
        self.connection.sendall(data)

    def finish(self) -> None:
        """Close without taking the reply back: unread bytes would make the kernel reset the connection under it."""
        if self._linger:
            with suppress(OSError, HeadTooLarge):
                self.connection.shutdown(socket.SHUT_WR)
                self._source.expect(_LINGER_SECONDS)
                left = _DRAINED_TO_CLOSE
                while left > 0 and (data := self._stream.read1(_SEND_AT_ONCE)):
                    left -= len(data)
        self.rfile.close()

    def log_reply(self, reply: Reply | None) -> None:
        """One entry of the access log. reply: None where the client left before it."""
        self.server.log_access(
            {
                "client": self.server.client_name(self.client_address),
                "method": self.command,
                "path": getattr(self, "path", "")[:1000],
                "status": reply.status if reply else None,
                "reason": reply.reason if reply else "CLIENT_LEFT",
                "request_bytes": self._framing.length,
                "reply_bytes": len(reply.body) if reply else 0,
                "ms": (time.perf_counter() - self._started) * 1000.0 if self._began else 0.0,
            }
        )

    def log_message(self, format: str, *args: Any) -> None:
        """http.server's own log, which we have no use for."""


def _path(target: str) -> str:
    """The path of a request target, which may be a whole URL (RFC 9112, 3.2)."""
    if target.startswith("/") or target == "*":
        return target.partition("?")[0].partition("#")[0]
    try:
        return urlsplit(target).path or "/"
    except ValueError:
        raise bad_message("the request target is no URL") from None
