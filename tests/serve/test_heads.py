"""Heads that are no request, that two readers could read in two ways, or that never end."""

from __future__ import annotations

import pytest

from .bodies import GOOD, SYSTEMONE
from .raw_client import RawClient, get
from .server_process import MIB_IN_KB, ServerProcess

HOST = "Host: x\r\n"
LENGTH = f"Content-Length: {len(GOOD)}\r\n"
START = f"POST {SYSTEMONE} HTTP/1.1\r\n"
SHAPES: dict[str, str | bytes] = {
    "a space before a colon": START + HOST + f"Content-Length : {len(GOOD)}\r\n",
    "a tab before a colon": START + HOST + f"Content-Length\t: {len(GOOD)}\r\n",
    "a folded header": START + HOST + "X: a\r\n b\r\n" + LENGTH,
    "a folded length": START + HOST + f"Content-Length:\r\n {len(GOOD)}\r\n",
    "a first header that is folded": START + " X: a\r\n" + HOST + LENGTH,
    "a header without a colon": START + HOST + "garbage\r\n" + LENGTH,
    "a header without a name": START + HOST + ": x\r\n" + LENGTH,
    "a name in brackets": START + HOST + "(X): y\r\n" + LENGTH,
    "a name that is not ASCII": (START + HOST + "X\u00e9: y\r\n" + LENGTH).encode(),
    "a NUL in a name": START + HOST + "X\0: y\r\n" + LENGTH,
    "a NUL in a value": START + HOST + "X: a\0b\r\n" + LENGTH,
    "a lone CR in a value": START + HOST + "X: a\rTransfer-Encoding: chunked\r\n" + LENGTH,
    "a lone CR as a line end": START + "Host: x\r" + LENGTH,
    "a lone CR before the end": START + HOST + LENGTH.replace("\r\n", "\r\r\n"),
    "a vertical tab before a coding": START + HOST + "Transfer-Encoding: \x0bchunked\r\n",
    "a length after a vertical tab": START + HOST + f"Content-Length: \x0b{len(GOOD)}\r\n",
    "two codings": START + HOST + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    "a coding and a length": START + HOST + "Transfer-Encoding: chunked\r\n" + LENGTH,
    "a coding of HTTP/1.0": START.replace("1.1", "1.0") + HOST + "Transfer-Encoding: chunked\r\n",
    "two lengths": START + HOST + LENGTH + "Content-Length: 0\r\n",
    "no host": START + LENGTH,
    "two hosts": START + HOST + "Host: y\r\n" + LENGTH,
    "two equal hosts": START + HOST + HOST + LENGTH,
    "HTTP/0.9": "GET /health\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/3.0": "GET /health HTTP/3.0\r\n" + HOST,
    "HTTP/1.10": "GET /health HTTP/1.10\r\n" + HOST,
    "http in lower case": "GET /health http/1.1\r\n" + HOST,
    "no version": "GET /health HTTP\r\n" + HOST,
    "two spaces": "GET  /health HTTP/1.1\r\n" + HOST,
    "a space in a target": "GET /health x HTTP/1.1\r\n" + HOST,
    "a tab for a space": "GET\t/health HTTP/1.1\r\n" + HOST,
    "a space before the method": " GET /health HTTP/1.1\r\n" + HOST,
    "a space after the version": "GET /health HTTP/1.1 \r\n" + HOST,
    "a NUL in a target": "GET /health\0 HTTP/1.1\r\n" + HOST,
    "a lone CR in a target": "GET /hea\rlth HTTP/1.1\r\n" + HOST,
    "a method that is no word": "G@T /health HTTP/1.1\r\n" + HOST,
    "a hello of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\n",
    "two empty lines": "\r\n\r\nGET /health HTTP/1.1\r\n" + HOST,
    "a reply": "HTTP/1.1 200 OK\r\n" + HOST,
    "a URL that is none": "GET http://[::1 HTTP/1.1\r\n" + HOST,
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_two_readers_could_read_in_two_ways_is_refused(name: str, english: ServerProcess):
    with RawClient(english) as client:
        answer = client.send(SHAPES[name], "\r\n", GOOD, get("/smuggled")).reply()
        assert (answer.status, answer.reason) == (400, "INVALID_REQUEST")
        if name != "a URL that is none":
            assert answer.headers["connection"] == "close"
            # One reply and no other, whatever followed.
            assert client.closed()


@pytest.mark.parametrize(
    ("flood", "status"),
    [
        pytest.param(b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"x" * 10_000), 414, id="long request line"),
        pytest.param(b"GET /" + b"x" * 1_000_000, 414, id="endless request line"),
        pytest.param(get("/health", *(f"X-{n}: y" for n in range(200))), 431, id="many headers"),
        pytest.param(get("/health", "X: " + "y" * 70_000), 431, id="huge header"),
        pytest.param(get("/health", *("X: " + "y" * 6_000 for _ in range(20))), 431, id="large headers"),
        pytest.param(b"GET /health HTTP/1.1\r\nX: " + b"y" * 5_000_000, 431, id="endless header"),
        pytest.param(b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 100_000, 431, id="endless headers"),
    ],
)
def test_a_head_has_its_limits(flood: bytes, status: int, english: ServerProcess):
    before = english.status("VmRSS")
    with RawClient(english) as client:
        answer = client.send(flood).reply()
        assert (answer.status, answer.reason) == (status, "INVALID_REQUEST")
        assert client.closed()
    assert english.status("VmRSS") - before < 16 * MIB_IN_KB


def test_a_head_just_below_its_limits_is_read(english: ServerProcess):
    with RawClient(english) as client:
        lines = [f"X-{n}: {'y' * 550}" for n in range(99)]
        assert client.send(get("/health?" + "q" * 8_000, *lines)).reply().status == 200
