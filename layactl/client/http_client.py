"""Requests to a running server over one kept connection: HTTP, HTTPS or a Unix socket."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlsplit

from layactl.core import strict_json
from layactl.errors import RequestError, ServerError, UsageError

SYSTEMONE, ROUTER_SCORE = "/v1/systemone", "/v1/router/score"

_MAX_REPLY_BYTES = 2**26
_CONNECT_SECONDS = 10.0
_UNIX = "unix:"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class ServerClient:
    """Calls one server; use it in a `with` block, from one thread.

    url: http://HOST:PORT, https://HOST:PORT or unix:PATH, with a path in front of the routes where a proxy has put one;
    timeout: seconds for an answer; patience: seconds for a server that is overloaded or still loads; tell: told when it
    has to be waited for.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        patience: float = 60.0,
        tell: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.url = url
        self._timeout, self._patience, self._tell = timeout, patience, tell
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if api_key:
            if not api_key.isascii() or not api_key.isprintable():
                raise UsageError("an API key must be printable ASCII", where="--api-key")
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._prefix = ""
        self._connection = self._prepared(url)

    def _prepared(self, url: str) -> http.client.HTTPConnection:
        if url.startswith(_UNIX) and url != _UNIX:
            return _UnixConnection(url.removeprefix(_UNIX), self._timeout)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"is no URL: {error}", where=f"--server {url}") from None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
            raise UsageError("is no server's URL", where=f"--server {url}", hint="such as http://127.0.0.1:8090")
        self._prefix = parts.path.rstrip("/")
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._timeout)
        return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=ssl.create_default_context())

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def props(self) -> dict[str, Any]:
        """GET /props. Raises ServerError, also for a server of another kind."""
        try:
            found = self.get("/props")
        except RequestError as error:
            raise self._problem(f"GET /props was refused: {error.reason}: {error.message}") from None
        decision = found.get("decision")
        if not isinstance(decision, dict) or decision.get("api_version") != 1:
            raise self._problem("serves no decisions (GET /props has no decision.api_version 1)")
        return found

    def get(self, route: str) -> dict[str, Any]:
        """A document the server keeps. Raises as `post` does."""
        return self._call("GET", route, None)

    def post(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        """The response body. Raises RequestError for a request that is refused, ServerError for everything else."""
        return self._call("POST", route, strict_json.dumps(body).encode("utf-8"))

    def _call(self, method: str, route: str, data: bytes | None) -> dict[str, Any]:
        until = time.monotonic() + self._patience
        told = False
        while True:
            status, headers, body = self._exchange(method, route, data)
            if status == 200:
                return self._object(body)
            error = self._refusal(status, body)
            waits = error.reason in ("OVERLOADED", "LOADING") and time.monotonic() < until
            if not waits:
                raise error
            if not told:
                told = True
                self._tell(f"{error.reason}: asking again, for up to {self._patience:g} s ({self.url})")
            wait = headers.get("retry-after") or ""
            time.sleep(min(float(wait) if wait.isdecimal() and len(wait) < 4 else 1.0, self._patience))

    def _exchange(self, method: str, route: str, data: bytes | None) -> tuple[int, http.client.HTTPMessage, bytes]:
        """One request and its reply; once more where a kept connection turns out to have been closed meanwhile."""
        kept = self._connection.sock is not None
        try:
            return self._send(method, route, data)
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            stale = isinstance(error, (http.client.RemoteDisconnected, ConnectionError))
            if not (kept and stale):
                raise self._unreachable(error) from None
        try:
            return self._send(method, route, data)
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            raise self._unreachable(error) from None

    def _send(self, method: str, route: str, data: bytes | None) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = self._connection
        if connection.sock is None:
            connection.timeout = _CONNECT_SECONDS
            connection.connect()
            # What connects in seconds may compute for minutes.
            cast(socket.socket, connection.sock).settimeout(self._timeout)
        connection.request(method, self._prefix + route, body=data, headers=self._headers)
        reply = connection.getresponse()
        body = reply.read(_MAX_REPLY_BYTES + 1)
        if len(body) > _MAX_REPLY_BYTES:
            raise http.client.HTTPException(f"the reply is larger than {_MAX_REPLY_BYTES} bytes")
        if reply.length:
            raise http.client.IncompleteRead(body, reply.length)
        return reply.status, reply.msg, body

    def _object(self, body: bytes) -> dict[str, Any]:
        try:
            found = strict_json.loads_strict(body)
        except RequestError as error:
            raise self._problem(f"its reply is {error.message}") from None
        if not isinstance(found, dict):
            raise self._problem("its reply is no JSON object")
        return found

    def _refusal(self, status: int, body: bytes) -> RequestError:
        """The error that a reply carries. Raises ServerError where it is not in the one envelope."""
        error = None
        if body.lstrip()[:1] == b"{":
            error = self._object(body).get("error")
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            raise self._problem(f"answered with status {status}, and not in the error format of a decision server")
        # Another engine may leave the reason out.
        reason, param = error.get("reason"), error.get("param")
        return RequestError(
            reason if isinstance(reason, str) else "INVALID_REQUEST" if status < 500 else "UNAVAILABLE",
            error["message"],
            param=param if isinstance(param, str) else None,
            code=status,
        )

    def _unreachable(self, error: Exception) -> ServerError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        absent = isinstance(error, (ConnectionRefusedError, FileNotFoundError))
        hint = "layactl serve -m MODEL starts one" if absent else None
        return ServerError(f"cannot be reached: {reason}", where=self.url, hint=hint)

    def _problem(self, message: str) -> ServerError:
        return ServerError(message, where=self.url)
