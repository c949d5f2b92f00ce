"""Who may call, and by which way: keys, TLS, a Unix socket."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .bodies import GOOD, ROUTER, SYSTEMONE, TOO_LARGE, systemone
from .raw_client import RawClient, get, post
from .server_process import Answer, ServerProcess, wait_for

KEYS = ("first-key", "second-key", "from-the-file", "from/file+2=")
PUBLIC = ("/health", "/v1/health", "/models", "/v1/models")
PRIVATE = ("/props", "/metrics", "/openapi.json")


@dataclass(frozen=True)
class Guarded:
    """A server with TLS and keys, and what it was given."""

    server: ServerProcess
    certificate: Path
    log: Path


@pytest.fixture(scope="module")
def guarded(gguf_for: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    folder = tmp_path_factory.mktemp("guarded")
    certificate, key, log = folder / "cert.pem", folder / "key.pem", folder / "access.jsonl"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    keys = folder / "keys.txt"
    keys.write_text(f"# comments are no keys\n\n  {KEYS[2]}  \n{KEYS[3]}\n")
    server = ServerProcess(
        *("-m", gguf_for(), "--ssl-cert-file", certificate, "--ssl-key-file", key, "--metrics"),
        *("--api-key", ",".join(KEYS[:2]), "--api-key-file", keys, "--access-log", log),
    )
    yield Guarded(server.ready(), certificate, log)
    assert server.stop() == 0


def answers_to(guarded: Guarded, path: str, headers: dict[str, str]) -> Answer:
    body = GOOD if path in (SYSTEMONE, ROUTER) else None
    return guarded.server.request("POST" if body else "GET", path, body, headers)


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens_by_either_header(key: str, guarded: Guarded):
    for headers in ({"authorization": f"Bearer {key}"}, {"authorization": f"bearer  {key}"}, {"x-api-key": key}):
        assert answers_to(guarded, SYSTEMONE, headers).status == 200, headers


WRONG: dict[str, dict[str, str]] = {
    "none": {},
    "another": {"authorization": "Bearer other-key"},
    "a part of one": {"authorization": f"Bearer {KEYS[0][:-1]}"},
    "one and more": {"authorization": f"Bearer {KEYS[0]}x"},
    "both at once": {"authorization": f"Bearer {','.join(KEYS[:2])}"},
    "in capitals": {"authorization": f"Bearer {KEYS[0].upper()}"},
    "empty": {"authorization": "Bearer "},
    "without a scheme": {"authorization": KEYS[0]},
    "as a password": {"authorization": f"Basic {KEYS[0]}"},
    "a comment of the key file": {"authorization": "Bearer # comments are no keys"},
    "not ASCII": {"authorization": "Bearer first-k\xe9y"},
    "empty x-api-key": {"x-api-key": ""},
    "wrong x-api-key": {"x-api-key": "nope"},
}


@pytest.mark.parametrize("name", WRONG)
def test_401_without_a_right_key(name: str, guarded: Guarded):
    for path in (SYSTEMONE, *PRIVATE):
        answer = answers_to(guarded, path, WRONG[name])
        assert (answer.status, answer.reason) == (401, "UNAUTHORIZED"), path
        assert answer.headers["www-authenticate"] == "Bearer"
        error = answer.json()["error"]
        assert (error["code"], error["type"]) == (401, "authentication_error")
        assert not any(key in answer.body.decode() for key in KEYS)


def test_401_comes_before_a_router_is_refused_or_a_body_is_read(guarded: Guarded):
    assert answers_to(guarded, ROUTER, {}).status == 401
    with RawClient(guarded.server) as client:
        client.send(f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        assert client.reply().status == 401


@pytest.mark.parametrize("path", PUBLIC)
def test_public_routes_stay_public(path: str, guarded: Guarded):
    for headers in ({}, {"authorization": "Bearer other-key"}):
        assert answers_to(guarded, path, headers).status == 200


def test_a_preflight_needs_no_key_and_what_is_unknown_says_so(guarded: Guarded):
    assert guarded.server.request("OPTIONS", SYSTEMONE).status == 204
    assert guarded.server.request("GET", "/secret").status == 404


@pytest.mark.parametrize("path", PRIVATE)
def test_other_routes_open_with_a_key(path: str, guarded: Guarded):
    assert answers_to(guarded, path, {"x-api-key": KEYS[0]}).status == 200


def test_the_certificate_is_the_one_given_and_names_the_host(guarded: Guarded):
    context = ssl.create_default_context(cafile=str(guarded.certificate))
    assert guarded.server.url.startswith("https://127.0.0.1:")
    with (
        socket.create_connection(("127.0.0.1", guarded.server.port), timeout=60) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as connection,
    ):
        connection.sendall(get("/health", "Connection: close"))
        data = b""
        while part := connection.recv(65536):
            data += part
    assert data.startswith(b"HTTP/1.1 200 ")


def test_old_tls_is_refused(guarded: Guarded):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", guarded.server.port), timeout=60) as raw,
        pytest.raises(OSError),
    ):
        context.wrap_socket(raw)


def test_what_is_no_tls_ends_its_own_connection_only(guarded: Guarded):
    with socket.create_connection(("127.0.0.1", guarded.server.port), timeout=60) as silent:
        with socket.create_connection(("127.0.0.1", guarded.server.port), timeout=60) as plain:
            plain.sendall(get("/health"))
            data = b""
            try:
                while part := plain.recv(65536):
                    data += part
            except ConnectionError:
                pass
            assert b"HTTP/" not in data
        # `silent` never shakes hands, and keeps nobody waiting.
        assert guarded.server.get("/health").status == 200
        silent.close()


def test_requests_follow_each_other_over_tls_and_bodies_arrive_whole(guarded: Guarded):
    key = f"X-Api-Key: {KEYS[0]}"
    large = json.dumps(systemone("x" * 900_000)).encode()
    with RawClient(guarded.server) as client:
        client.send(post(SYSTEMONE, GOOD, key), post(SYSTEMONE, large, key), get("/health"))
        assert [client.reply().status for _ in range(3)] == [200, 200, 200]
        assert client.send(post(SYSTEMONE, TOO_LARGE, key)).reply().status == 413
        assert client.closed()


def test_a_body_without_a_key_never_becomes_a_request(guarded: Guarded):
    with RawClient(guarded.server) as client:
        assert client.send(post(SYSTEMONE, get("/smuggled"))).reply().status == 401
        assert client.send(get("/health")).reply().status == 200
        # Two megabytes are not worth keeping the connection for.
        answer = client.send(post(SYSTEMONE, get("/smuggled") * 50_000)).reply()
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert client.closed()


def test_a_client_that_leaves_over_tls_is_cancelled(guarded: Guarded):
    guarded.server.key = KEYS[0]
    try:
        before = guarded.server.counters()["cancelled"]
        with RawClient(guarded.server) as client:
            head = f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEYS[0]}\r\nContent-Length: 1000\r\n\r\n"
            client.send(head, "{")
        wait_for(lambda: guarded.server.counters()["cancelled"] == before + 1, "the cancelled request is counted")
    finally:
        guarded.server.key = None


def test_the_access_log_has_one_line_a_reply_and_no_secrets(guarded: Guarded):
    before = len(guarded.log.read_text().splitlines())
    answers_to(guarded, SYSTEMONE, {"x-api-key": KEYS[0]})
    answers_to(guarded, SYSTEMONE, {"x-api-key": "nope"})
    answers_to(guarded, "/health?who=me", {})
    lines = wait_for(
        lambda: len(text := guarded.log.read_text().splitlines()) >= before + 3 and text[before:], "three lines"
    )
    entries = [json.loads(line) for line in lines]
    assert [(entry["method"], entry["path"], entry["status"], entry["reason"]) for entry in entries] == [
        ("POST", SYSTEMONE, 200, None),
        ("POST", SYSTEMONE, 401, "UNAUTHORIZED"),
        ("GET", "/health?who=me", 200, None),
    ]
    for entry in entries:
        fields = ("time", "client", "method", "path", "status", "reason", "request_bytes", "reply_bytes", "ms")
        assert list(entry) == list(fields)
        assert entry["client"].startswith("127.0.0.1:")
        assert entry["ms"] >= 0
        assert entry["reply_bytes"] > 0
    assert (entries[0]["request_bytes"], entries[2]["request_bytes"]) == (len(GOOD), 0)
    text = guarded.log.read_text()
    assert not any(key in text for key in (*KEYS, "nope", "refund"))
    assert stat.S_IMODE(guarded.log.stat().st_mode) & 0o007 == 0


# A command line that would not do what it says.

REFUSED: dict[str, tuple[list[str], dict[str, str], int, str]] = {
    "an empty key": (["--api-key", ""], {}, 2, "no API key is given (--api-key)"),
    "an empty key of the environment": ([], {"LAYACTL_API_KEY": ","}, 2, "no API key is given (--api-key)"),
    "a key with a space": (["--api-key", "a b"], {}, 2, "an API key must be printable ASCII without spaces"),
    "a key file that is not there": (["--api-key-file", "/no/such"], {}, 1, "cannot be read"),
    "a key file without a key": (["--api-key-file", "/dev/null"], {}, 2, "no API key is given (/dev/null)"),
    "a certificate without its key": (["--ssl-cert-file", "/dev/null"], {}, 2, "go together (--ssl-key-file)"),
    "a key without its certificate": (["--ssl-key-file", "/dev/null"], {}, 2, "go together (--ssl-cert-file)"),
    "a certificate that is none": (
        ["--ssl-cert-file", "/dev/null", "--ssl-key-file", "/dev/null"],
        {},
        1,
        "the certificate and key cannot be used",
    ),
    "an empty socket": (["--socket", ""], {}, 2, "the path is empty (--socket)"),
    "an unknown host": (["--host", "no.such.host.invalid"], {}, 1, "cannot be listened on"),
    "an address of another machine": (["--host", "192.0.2.1"], {}, 1, "cannot be listened on"),
    "a port out of range": (["--port", "65536"], {}, 2, "--port"),
    "a negative queue": (["--queue", "-1"], {}, 2, "--queue"),
    "a timeout of nothing": (["--timeout", "0"], {}, 2, "--timeout"),
    "a delay that is no number": (["--debug"], {"LAYACTL_DEBUG_JOB_DELAY_MS": "soon"}, 2, "must be a number"),
    "an unknown place to throw at": (["--debug"], {"LAYACTL_DEBUG_THROW": "x"}, 2, "must be worker or http"),
    "an access log in no folder": (["--access-log", "/no/such/log"], {}, 1, "cannot be written"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_loaded(name: str, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    args, variables, code, text = REFUSED[name]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    # A model that is not there: had it been looked at, the message would be about it.
    done = cli("serve", "-m", "/no/such.gguf", *(["--port", "0"] if "--port" not in args else []), *args)
    assert (done.code, len(done.error_lines)) == (code, 1), done
    assert text in done.err
    assert "such.gguf" not in done.err


def test_a_taken_port_is_named(english: ServerProcess, cli: Callable[..., Any]):
    done = cli("serve", "-m", "/no/such.gguf", "--port", english.port)
    assert done.code == 1
    assert done.error_lines == [f"error: cannot be listened on: Address already in use (127.0.0.1:{english.port})"]


# A Unix socket. The path of one is short, so not below pytest's own folders.


@pytest.fixture
def socket_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lay") as folder:
        yield Path(folder) / "s"


def test_a_unix_socket(socket_path: Path, start: Callable[..., ServerProcess], cli: Callable[..., Any]):
    # Left behind by a server that died.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path))
    server = start("--socket", socket_path, "--timeout", "1", "--api-key", "k", "--metrics").ready()
    assert server.url == f"unix:{socket_path}"
    mode = socket_path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) & 0o077 == 0
    assert server.get("/health").status == 200
    assert server.post(SYSTEMONE, systemone()).status == 401
    assert server.post(SYSTEMONE, systemone(), x_api_key="k").status == 200
    # A second server leaves the first one its socket.
    done = cli("serve", "-m", "/no/such.gguf", "--socket", socket_path)
    assert (done.code, done.error_lines) == (1, [f"error: another server listens there ({socket_path})"])
    assert server.get("/health").status == 200
    # A client that leaves is noticed here too.
    with RawClient(server) as client:
        client.send(f"POST {SYSTEMONE} HTTP/1.1\r\nHost: x\r\nX-Api-Key: k\r\nContent-Length: 9\r\n\r\n{{")
    server.key = "k"
    wait_for(lambda: server.counters()["cancelled"] == 1, "the cancelled request is counted")
    assert server.stop() == 0
    assert not socket_path.exists()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_is_never_removed(kind: str, socket_path: Path, cli: Callable[..., Any]):
    target = socket_path.with_name("target")
    target.write_text("precious")
    if kind == "file":
        socket_path.write_text("precious")
    elif kind == "folder":
        socket_path.mkdir()
    else:
        socket_path.symlink_to(target)
    done = cli("serve", "-m", "/no/such.gguf", "--socket", socket_path)
    assert (done.code, done.error_lines) == (1, [f"error: is there and is no socket ({socket_path})"])
    assert os.path.lexists(socket_path)
    assert target.read_text() == "precious"


@pytest.mark.parametrize("path", ["/no/such/folder/s", "/tmp/" + "x" * 200])
def test_a_socket_that_cannot_be_made(path: str, cli: Callable[..., Any]):
    done = cli("serve", "-m", "/no/such.gguf", "--socket", path)
    assert (done.code, len(done.error_lines)) == (1, 1)
    assert "cannot be listened on" in done.err
