"""The client against servers that misbehave: every reply is untrusted, and no failure is taken for an answer."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from layactl.client.http_client import SYSTEMONE, ServerClient
from layactl.errors import RequestError, ServerError, UsageError

Reply = tuple[int, dict[str, str], bytes]
BODY = {"state": "x", "questions": {}}
OVERLOADED = (429, {"Retry-After": "0"}, b'{"error": {"reason": "OVERLOADED", "message": "too many"}}')


@contextmanager
def replying(*replies: Reply) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives these replies in turn, the last one for ever; yields its URL and what it was sent."""
    left, sent = list(replies), []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            sent.append(self.rfile.read(int(self.headers["content-length"])))
            self._reply()

        def do_GET(self):
            sent.append(self.path.encode())
            self._reply()

        def _reply(self):
            status, headers, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = "Close-Silently" in headers

        def log_message(self, *args: object):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", sent
    finally:
        server.shutdown()
        server.server_close()


NO_ANSWERS: dict[str, tuple[Reply, str]] = {
    "a page": ((200, {}, b"<html>welcome</html>"), "its reply is not valid JSON"),
    "JSON that is no object": ((200, {}, b"[1]"), "no JSON object"),
    "a number that is none": ((200, {}, b'{"answers": NaN}'), "NaN"),
    "a redirect": ((301, {"Location": "http://example.invalid"}, b""), "status 301"),
    "an error page of a proxy": ((502, {}, b"<html>bad gateway</html>"), "status 502"),
    "an error in another shape": ((400, {}, b'{"detail": "no"}'), "status 400"),
    "half a reply": ((200, {"Content-Length": "100", "Close-Silently": "1"}, b'{"answers"'), "cannot be reached"),
}


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_a_reply_that_is_no_answer_is_one_clear_error(name: str):
    reply, message = NO_ANSWERS[name]
    with replying(reply) as (url, _), ServerClient(url) as client, pytest.raises(ServerError, match=message) as caught:
        client.post(SYSTEMONE, BODY)
    assert caught.value.where == url


def test_a_refusal_comes_back_as_the_error_it_is():
    error = {
        "code": 422,
        "type": "invalid_request_error",
        "reason": "STATE_TRUNCATED",
        "message": "cut",
        "param": "state",
    }
    reply = (422, {}, json.dumps({"error": error}).encode())
    with replying(reply) as (url, _), ServerClient(url) as client, pytest.raises(RequestError) as caught:
        client.post(SYSTEMONE, BODY)
    assert caught.value.to_json() == error


@pytest.mark.parametrize("reason", ["OVERLOADED", "LOADING"])
def test_a_server_that_asks_for_patience_is_asked_again(reason: str):
    wait = (429, {"Retry-After": "0"}, json.dumps({"error": {"reason": reason, "message": "wait"}}).encode())
    with replying(wait, wait, (200, {}, b'{"answers": {}}')) as (url, sent), ServerClient(url) as client:
        assert client.post(SYSTEMONE, BODY) == {"answers": {}}
    assert len(sent) == 3


def test_waiting_is_said_once():
    told: list[str] = []
    answer = (200, {}, b'{"answers": {}}')
    with replying(OVERLOADED, OVERLOADED, answer) as (url, _), ServerClient(url, tell=told.append) as client:
        client.post(SYSTEMONE, BODY)
    assert len(told) == 1 and "OVERLOADED" in told[0]


def test_only_where_nobody_listens_is_a_server_to_be_started():
    half = NO_ANSWERS["half a reply"][0]
    with replying(half) as (url, _), ServerClient(url) as client, pytest.raises(ServerError) as caught:
        client.post(SYSTEMONE, BODY)
    assert caught.value.hint is None
    with ServerClient("http://127.0.0.1:9") as client, pytest.raises(ServerError) as caught:
        client.post(SYSTEMONE, BODY)
    assert caught.value.hint == "layactl serve -m MODEL starts one"


def test_patience_ends():
    refused = pytest.raises(RequestError, match="too many")
    with replying(OVERLOADED) as (url, _), ServerClient(url, patience=0.0) as client, refused:
        client.post(SYSTEMONE, BODY)


def test_a_kept_connection_that_was_closed_meanwhile_is_opened_again():
    answer = (200, {"Close-Silently": "1"}, b'{"answers": {}}')
    with replying(answer) as (url, sent), ServerClient(url) as client:
        for _ in range(3):
            assert client.post(SYSTEMONE, BODY) == {"answers": {}}
    assert len(sent) == 3


def test_a_path_in_front_of_the_routes_is_kept():
    with (
        replying((200, {}, b'{"decision": {"api_version": 1}}')) as (url, sent),
        ServerClient(f"{url}/laya/") as client,
    ):
        client.props()
    assert sent == [b"/laya/props"]


@pytest.mark.parametrize("body", [b"{}", b'{"decision": {"api_version": 2}}', b'{"decision": 1}'])
def test_a_server_of_another_kind_is_told_by_its_props(body: bytes):
    with (
        replying((200, {}, body)) as (url, _),
        ServerClient(url) as client,
        pytest.raises(ServerError, match="api_version"),
    ):
        client.props()


@pytest.mark.parametrize(
    "url", ["", "localhost:8090", "ftp://host", "http://", "http://host:port", "http://user:secret@host", "unix:"]
)
def test_what_is_no_url_of_a_server_is_wrong_usage(url: str):
    with pytest.raises(UsageError):
        ServerClient(url)


def test_nobody_there_is_an_error_that_names_the_address(tmp_path):
    for url in ("http://127.0.0.1:9", f"unix:{tmp_path}/none"):
        with ServerClient(url) as client, pytest.raises(ServerError, match="cannot be reached"):
            client.post(SYSTEMONE, BODY)


def test_the_key_is_sent_as_a_bearer_token_and_must_be_sendable(monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []

    class Recorder(ServerClient):
        def _send(self, method, route, data):
            seen.append(self._headers["Authorization"])
            return super()._send(method, route, data)

    with replying((200, {}, b"{}")) as (url, _), Recorder(url, api_key="k") as client:
        client.post(SYSTEMONE, BODY)
    assert seen == ["Bearer k"]
    with pytest.raises(UsageError):
        ServerClient("http://127.0.0.1:9", api_key="a\r\nX-Evil: 1")


Served = Callable[..., str]


def test_a_server_of_our_own_answers_and_is_gone_afterwards(served_for: Served):
    with ServerClient(served_for()) as client:
        assert client.props()["decision"]["layout"] == "laya"
