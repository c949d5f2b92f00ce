"""A headless browser for page tests: what a page really becomes, in light and in dark mode and on paper."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")


def run(page: Path, *arguments: str) -> str:
    """The browser's standard output. A profile of its own, so that runs at once do not share one."""
    assert BROWSER is not None
    profile = page.parent / "profile"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
    done = subprocess.run(
        [BROWSER, *options, *arguments, page.as_uri()],
        capture_output=True,
        timeout=120,
        env=os.environ | {"HOME": str(page.parent)},
        check=True,
    )
    return done.stdout.decode()


def document(page: Path) -> str:
    """The document as the browser holds it after parsing."""
    return run(page, "--dump-dom")


def pixels(page: Path, *, dark: bool = False, height: int = 800) -> list[list[tuple[int, int, int]]]:
    """A picture of the page, 600 wide, as rows of (red, green, blue)."""
    picture = page.with_suffix(".png")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    run(page, f"--screenshot={picture}", f"--window-size=600,{height}", *scheme)
    return decode_png(picture.read_bytes())


def decode_png(data: bytes) -> list[list[tuple[int, int, int]]]:
    """A PNG of 8-bit RGB or RGBA without interlacing (RFC 2083)."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, width, height, channels = 8, b"", 0, 0, 0
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8 and colour in (2, 6)
            channels = 3 if colour == 2 else 4
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    raw, stride = zlib.decompress(packed), width * channels
    rows, before = [], bytearray(stride)
    for y in range(height):
        start = y * (stride + 1)
        line = _unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), before, channels)
        rows.append([(line[x], line[x + 1], line[x + 2]) for x in range(0, stride, channels)])
        before = line
    return rows


def _unfiltered(kind: int, line: bytearray, before: bytearray, channels: int) -> bytearray:
    for i, value in enumerate(line):
        left = line[i - channels] if i >= channels else 0
        corner = before[i - channels] if i >= channels else 0
        up = before[i]
        guess = (0, left, up, (left + up) // 2, _paeth(left, up, corner))[kind]
        line[i] = (value + guess) & 255
    return line


def _paeth(left: int, up: int, corner: int) -> int:
    estimate = left + up - corner
    return min((left, up, corner), key=lambda one: abs(estimate - one))
