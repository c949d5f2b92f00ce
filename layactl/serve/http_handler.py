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
from email.utils import formatdate
from http import HTTPStatus
from socketserver import BaseRequestHandler
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import layactl
from layactl.errors import RequestError
from layactl.serve.message import (
    Framing,
    Head,
    Source,
    check_json,
    check_length,
    framing_of,
    read_body,
    read_head,
)
from layactl.serve.replies import HttpError, Reply, bad_message, error_reply, too_slow
from layactl.serve.routes import Call, ClientLeft, Route

if TYPE_CHECKING:
    from layactl.serve.listener import Listener

# What is read of a body nobody wants before the connection is given up, to keep it or to let the reply arrive.
_DRAINED_TO_KEEP = 2**18
_DRAINED_TO_CLOSE = 2**24
_LINGER_SECONDS = 2.0
_SEND_AT_ONCE = 2**16


class Connection(BaseRequestHandler):
    """Made by the listener for every accepted socket, on a thread of its own."""

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
        self._connection = raw
        self._source = Source(raw)
        self._stream = io.BufferedReader(self._source)
        self._linger = False

    def handle(self) -> None:
        """Raises OSError where the connection breaks."""
        self._closes = False
        while not self._closes:
            self._answer_one()

    def _answer_one(self) -> None:
        """One request and its reply."""
        self._head: Head | None = None
        self._route: Route | None = None
        self._framing = Framing(0, announced=False)
        self._unread = self._expects = False
        timeout = self.server.settings.timeout
        self._source.expect(timeout)
        try:
            if not self._stream.peek(1):
                self._closes = True
                return
        except TimeoutError:  # an idle connection has nothing to be told
            self._closes = True
            return
        self._started = time.perf_counter()
        self._source.expect(timeout)
        try:
            head = self._head = read_head(self._stream)
        except (RequestError, TimeoutError) as error:
            # Nobody knows where this message ends.
            self._closes = self._linger = True
            self._send(error_reply(error if isinstance(error, RequestError) else too_slow()))
            return
        if head is None:
            self._closes = True
            return
        self._closes, self._expects = head.closes, head.expects
        with self.server.active():
            self._exchange(head)

    def _exchange(self, head: Head) -> None:
        server = self.server
        reply: Reply | None
        try:
            reply = self._reply(head)
        except RequestError as error:
            reply = error_reply(error)
        except (ClientLeft, ConnectionError, ssl.SSLError):
            reply = None
        except Exception as error:
            reply = server.routes.internal(error)
        if self._route is not None:
            server.routes.count(self._route, reply)
        if reply is None:
            self._closes = True
            return self.log_reply(None)
        if server.stopping or reply.reason == "REQUEST_TIMEOUT":
            self._closes = True
        drains = self._unread and not self._expects and 0 <= (self._framing.length or -1) <= _DRAINED_TO_KEEP
        if self._unread and not drains:
            self._closes = True
        self._send(reply)
        if drains and not self._closes:
            self._source.expect(server.settings.timeout)
            self._closes = len(self._stream.read(self._framing.length or 0)) < (self._framing.length or 0)

    def _reply(self, head: Head) -> Reply:
        """Raises RequestError, ClientLeft."""
        try:
            self._framing = framing_of(head)
        except HttpError:
            self._closes = self._linger = True
            raise
        self._unread = self._framing.announced and self._framing.length != 0
        routes, path = self.server.routes, _path(head.target)
        if head.method == "OPTIONS":
            return routes.preflight(path)
        route = self._route = routes.find(path)
        routes.admit(route, head.method, head.headers)
        if head.method == "POST":
            check_json(head.headers)
            check_length(self._framing)
        return routes.answer(route, Call(self._body, self._framing.length, self._client_left, self._started))

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
            self._closes = self._linger = True
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
            poll.register(self._connection, gone | select.POLLIN)
            events = sum(event for _, event in poll.poll(0))
            if events & gone or not events:
                return bool(events)
        try:
            # Past the TLS layer, whose own recv cannot peek.
            self._connection.settimeout(0)
            return socket.socket.recv(self._connection, 1, socket.MSG_PEEK) == b""
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def _send(self, reply: Reply) -> None:
        """Head and body in one piece; a client that takes neither within the time limit is given up."""
        if self._unread:
            self._linger = True
        head = self._head
        kept = {"Connection": "keep-alive"} if head and head.version == "HTTP/1.0" else {}
        headers = {
            "Server": f"layactl/{layactl.__version__}",
            "Date": formatdate(usegmt=True),
            **({"Content-Type": reply.content_type} if reply.content_type else {}),
            **({} if reply.status == HTTPStatus.NO_CONTENT else {"Content-Length": str(len(reply.body))}),
            "Cache-Control": "no-store",
            **reply.headers,
            **self.server.routes.cors(head.headers.get("origin") if head else None),
            **({"Connection": "close"} if self._closes else kept),
        }
        lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        text = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"
        self._write(text if head and head.method == "HEAD" else text + reply.body)
        self.log_reply(reply)

    def _write(self, data: bytes) -> None:
        self._connection.settimeout(self.server.settings.timeout)
        self._connection.sendall(data)

    def finish(self) -> None:
        """Close without taking the reply back: unread bytes would make the kernel reset the connection under it."""
        if self._linger:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
                self._source.expect(_LINGER_SECONDS)
                left = _DRAINED_TO_CLOSE
                while left > 0 and (data := self._stream.read1(_SEND_AT_ONCE)):
                    left -= len(data)
        # The listener closes the socket that it accepted, which is no longer this one under TLS.
        self._connection.close()

    def log_reply(self, reply: Reply | None) -> None:
        """One entry of the access log. reply: None where the client left before it."""
        self.server.log_access(
            {
                "client": self.server.client_name(self.client_address),
                "method": self._head.method if self._head else None,
                "path": self._head.target[:1000] if self._head else None,
                "status": reply.status if reply else None,
                "reason": reply.reason if reply else "CLIENT_LEFT",
                "request_bytes": self._framing.length,
                "reply_bytes": len(reply.body) if reply else 0,
                "ms": (time.perf_counter() - self._started) * 1000.0,
            }
        )


def _path(target: str) -> str:
    """The path of a request target, which may be a whole URL (RFC 9112, 3.2)."""
    if target.startswith("/") or target == "*":
        return target.partition("?")[0].partition("#")[0]
    try:
        return urlsplit(target).path or "/"
    except ValueError:
        raise bad_message("the request target is no URL") from None
