"""Digests of file ranges: the child process and the fallback give hashlib's values, and a short file is an error."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from layactl.checkpoint.digest import FileRange, RangeDigests

DATA = bytes(range(256)) * 40_000  # more than two slices


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "data").write_bytes(DATA)
    opened = os.open(tmp_path / "data", os.O_RDONLY)
    yield opened
    os.close(opened)


@pytest.fixture(params=["child", "no executable", "an executable that fails"])
def interpreter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "no executable":
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    elif request.param == "an executable that fails":
        monkeypatch.setattr(sys, "executable", "/bin/false")
    return str(request.param)


RANGES = [(0, len(DATA)), (0, 0), (17, 1), (1000, 9_000_000), (len(DATA) - 3, 3)]


@pytest.mark.usefixtures("interpreter")
def test_every_range_gets_its_digest_in_order(descriptor: int):
    digests = RangeDigests([FileRange(descriptor, start, length) for start, length in RANGES])
    assert digests.result() == [hashlib.sha256(DATA[start : start + length]).hexdigest() for start, length in RANGES]


@pytest.mark.usefixtures("interpreter")
def test_more_ranges_than_a_pipe_holds(descriptor: int):
    ranges = [FileRange(descriptor, start, 8) for start in range(9000)]
    assert RangeDigests(ranges).result() == [hashlib.sha256(DATA[n : n + 8]).hexdigest() for n in range(9000)]


@pytest.mark.usefixtures("interpreter")
def test_a_file_that_ends_early_is_an_error(descriptor: int):
    with pytest.raises(OSError, match="ended while it was read"):
        RangeDigests([FileRange(descriptor, 0, len(DATA) + 1)]).result()


def test_cancelling_leaves_no_process(descriptor: int):
    digests = RangeDigests([FileRange(descriptor, 0, len(DATA))])
    assert digests._child is not None
    digests.cancel()
    # Waited for: the system knows it no more.
    with pytest.raises(ChildProcessError):
        os.waitpid(digests._child.pid, os.WNOHANG)
