"""The listening socket: TCP or Unix, one thread a connection, and no more of them than the process can hold."""

from __future__ import annotations

import os
import socket
import socketserver
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from layactl.errors import OutputError
from layactl.serve.http_handler import Connection
from layactl.serve.routes import Routes
from layactl.serve.settings import Settings

MOST_CONNECTIONS = 1000
# Descriptors for everything that is no connection: the model, its libraries, standard streams.
_OTHER_DESCRIPTORS = 64
# Without a body: nothing is spent on a flood.
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"

Access = Callable[[dict[str, Any]], None]


class Listener(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Accepts connections from `serve_forever` until `shutdown`.

    log_access: told of every reply. Raises OutputError where the address cannot be listened on.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 512

    def __init__(
        self, settings: Settings, routes: Routes, log_access: Access, log: Callable[[BaseException], None]
    ) -> None:
        self.settings = settings
        self.routes = routes
        self.log_access = log_access
        self.stopping = False
        self._log = log
        self._most = _connections_possible()
        self._socket_made = False
        self._connections = 0
        self._active = 0
        self._changed = threading.Condition()
        address = self._choose(settings)
        try:
            super().__init__(address, Connection)
        except OSError as error:
            raise _cannot_listen(error, settings) from None

    def _choose(self, settings: Settings) -> Any:
        if settings.socket is not None:
            if not hasattr(socket, "AF_UNIX"):
                raise OutputError("this system has no Unix sockets", where=str(settings.socket))
            self.address_family = socket.AF_UNIX
            _make_way(settings.socket)
            return str(settings.socket)
        try:
            found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            raise _cannot_listen(error, settings) from None
        self.address_family, address = found[0][0], found[0][4]
        return address

    def server_bind(self) -> None:
        if self.settings.socket is None:
            super().server_bind()
            return
        # For this user alone; whoever may use it else is for chmod to say.
        mask = os.umask(0o177)
        try:
            self.socket.bind(self.server_address)
        finally:
            os.umask(mask)
        self._socket_made = True

    @property
    def url(self) -> str:
        """Where the server is reached, its port as it was really chosen."""
        if self.settings.socket is not None:
            return f"unix:{self.settings.socket}"
        host, port = self.socket.getsockname()[:2]
        scheme = "https" if self.settings.tls else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def client_name(self, address: Any) -> str:
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) and address else "unix"

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            # Out of descriptors, most likely: the connection stays in the queue, and asking again at once only burns.
            time.sleep(0.05)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            full = self._connections >= self._most
            self._connections += not full
        if full:
            with suppress(OSError):
                request.settimeout(0)
                request.send(b"" if self.settings.tls else _REFUSAL)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # the system gives no further thread
            with self._changed:
                self._connections -= 1
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._changed:
                self._connections -= 1

    @contextmanager
    def active(self) -> Iterator[None]:
        """Around a request that is being answered, which a stop waits for."""
        with self._changed:
            self._active += 1
        try:
            yield
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    def drain(self, seconds: float) -> bool:
        """Wait until no request is being answered; False where the time did not suffice."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._active, seconds)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An exception on a connection's thread: the client's doing is silent, ours is logged."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self._log(error)

    def server_close(self) -> None:
        super().server_close()
        if self.settings.socket is not None and self._socket_made:
            with suppress(OSError):
                self.settings.socket.unlink()


def _make_way(path: Path) -> None:
    """Remove a socket that a dead server left behind. Raises OutputError for anything else that is there."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise OutputError("is there and is no socket", where=str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            with suppress(OSError):
                path.unlink()
            return
    raise OutputError("another server listens there", where=str(path))


def _cannot_listen(error: Exception, settings: Settings) -> OutputError:
    where = str(settings.socket) if settings.socket else f"{settings.host}:{settings.port}"
    return OutputError(f"cannot be listened on: {getattr(error, 'strerror', None) or error}", where=where)


def _connections_possible() -> int:
    """As many as wanted, with the soft limit of descriptors raised for them, or what the hard one leaves."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return MOST_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + _OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, soft - _OTHER_DESCRIPTORS))
