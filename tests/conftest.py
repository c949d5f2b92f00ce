"""Shared fixtures: the two tiny checkpoints, converted once a session."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from layactl.convert.convert import convert

ROOT = Path(__file__).parent.parent
CHECKPOINTS = ROOT / "fixtures"
FAMILIES = ("tiny-multilingual", "tiny-english")


@dataclass(frozen=True)
class Finished:
    """A finished run of the command."""

    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """Each tiny checkpoint's name in turn."""
    return request.param


@pytest.fixture(scope="session")
def gguf_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """(checkpoint name, outtype) -> its GGUF, converted on first use."""
    folder = tmp_path_factory.mktemp("gguf")

    def get(name: str, outtype: str = "f32") -> Path:
        path = folder / f"{name}-{outtype}.gguf"
        if not path.exists():
            convert(CHECKPOINTS / name, path, outtype=outtype)
        return path

    return get


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[str], Path]:
    """name -> a private copy of a tiny checkpoint, to break."""

    def copy(name: str = "tiny-english") -> Path:
        return Path(shutil.copytree(CHECKPOINTS / name, tmp_path / name))

    return copy


@pytest.fixture(scope="session")
def layactl() -> Callable[..., Finished]:
    """Run the command in a fresh process: layactl("decide", "-m", path, stdin=b"...")."""

    def run(*args: object, stdin: bytes = b"", timeout: float = 120) -> Finished:
        done = subprocess.run(
            [sys.executable, "-m", "layactl", *map(str, args)], input=stdin, capture_output=True, timeout=timeout
        )
        return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
