"""durable: a file appears whole under its name or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from layactl.durable import check_target, readable_name, replacing
from layactl.errors import OutputError


def test_a_new_file_takes_its_name_when_the_block_ends(tmp_path: Path):
    path = tmp_path / "x"
    with replacing(path) as temporary:
        temporary.write_bytes(b"whole")
        assert not path.exists()
        assert temporary.parent == tmp_path
    assert path.read_bytes() == b"whole"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_an_earlier_file_is_there_until_the_block_ends(tmp_path: Path):
    path = tmp_path / "x"
    path.write_bytes(b"earlier")
    with replacing(path) as temporary:
        temporary.write_bytes(b"later")
        assert path.read_bytes() == b"earlier"
    assert path.read_bytes() == b"later"


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt(), SystemExit(1)], ids=lambda e: type(e).__name__)
def test_a_block_that_raises_changes_nothing(error: BaseException, tmp_path: Path):
    path = tmp_path / "x"
    path.write_bytes(b"earlier")
    with pytest.raises(type(error)), replacing(path) as temporary:
        temporary.write_bytes(b"half")
        raise error
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"x": b"earlier"}


def test_what_the_system_refuses_is_an_output_error_naming_the_file(tmp_path: Path):
    path = tmp_path / "x"
    with pytest.raises(OutputError, match="No space left on device") as error, replacing(path):
        raise OSError(28, "No space left on device")
    assert error.value.where == str(path)
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_do_not_meet(tmp_path: Path):
    path = tmp_path / "x"
    with replacing(path) as first:
        first.write_bytes(b"first")
        with replacing(path) as second:
            second.write_bytes(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"


@pytest.mark.skipif(sys.platform != "linux", reason="names of 255 bytes")
@pytest.mark.parametrize("name", ["x" * 255, "\u00e9" * 127, "\U0001f600" * 63], ids=["1 byte", "2 bytes", "4 bytes"])
def test_the_longest_names_can_be_written(name: str, tmp_path: Path):
    with replacing(tmp_path / name) as temporary:
        temporary.write_bytes(b"whole")
    assert (tmp_path / name).read_bytes() == b"whole"


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def link(path: Path) -> Path:
    path.symlink_to(path.with_name("target"))
    return path


def link_to_a_file(path: Path) -> Path:
    path.with_name("target").write_bytes(b"target")
    return link(path)


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


TARGETS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "folder": (folder, "it is a folder"),
    "dangling link": (link, "it is not a regular file"),
    "link to a file": (link_to_a_file, "it is not a regular file"),
    "pipe": (pipe, "it is not a regular file"),
    "no folder": (lambda path: path / "x", "its folder does not exist"),
    "too long a name": (lambda path: path.with_name("x" * 300), "File name too long"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX file types")
@pytest.mark.parametrize("name", TARGETS)
def test_only_a_new_or_a_regular_file_is_a_target(name: str, tmp_path: Path):
    make, fragment = TARGETS[name]
    path = make(tmp_path / "x")
    before = sorted(tmp_path.iterdir())
    for write in (check_target, lambda target: replacing(target).__enter__()):
        with pytest.raises(OutputError, match=fragment) as error:
            write(path)
        assert error.value.where == str(path)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "readable"), [(b"plain", "plain"), ("caf\u00e9".encode(), "caf\u00e9"), (b"a\xffb", "a\\xffb")]
)
def test_a_name_of_any_bytes_is_readable(name: bytes, readable: str):
    assert readable_name(os.fsdecode(name)) == readable
    assert readable_name(Path(os.fsdecode(name))) == readable
