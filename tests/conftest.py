"""Shared fixtures: the two tiny checkpoints, converted and loaded once a session, and two ways to run the command."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from layactl.convert.convert import convert

if TYPE_CHECKING:
    from layactl import Model

ROOT = Path(__file__).parent.parent
CHECKPOINTS = ROOT / "fixtures"
FAMILIES = ("tiny-multilingual", "tiny-english")

# For models this small a pool of threads costs more than it brings, here and in the processes the tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("LAYACTL_THREADS", os.environ["OMP_NUM_THREADS"])
# The same examples in every run, so that a failure is never a matter of luck.
settings.register_profile("layactl", derandomize=True, database=None, deadline=None)
settings.load_profile("layactl")


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
def gguf_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """(checkpoint name, outtype) -> its GGUF, converted on first use. Not to be written to."""
    folder = tmp_path_factory.mktemp("gguf")

    def get(name: str = "tiny-english", outtype: str = "f32") -> Path:
        path = folder / f"{name}-{outtype}.gguf"
        if not path.exists():
            convert(CHECKPOINTS / name, path, outtype=outtype)
        return path

    return get


@pytest.fixture(scope="session")
def model_for(gguf_for: Callable[..., Path]) -> Callable[..., Model]:
    """(checkpoint name, outtype) -> its model, loaded on first use."""
    import layactl

    loaded: dict[Path, Model] = {}

    def get(name: str = "tiny-english", outtype: str = "f32") -> Model:
        path = gguf_for(name, outtype)
        if path not in loaded:
            loaded[path] = layactl.load(path)
        return loaded[path]

    return get


@pytest.fixture(scope="session")
def served_for(gguf_for: Callable[..., Path]) -> Iterator[Callable[..., str]]:
    """checkpoint name -> the URL of a server of its own with --debug, started on first use."""
    from layactl.client.spawned_server import spawned_server

    with ExitStack() as stack:
        running: dict[str, str] = {}

        def get(name: str = "tiny-english") -> str:
            if name not in running:
                options = ["--debug", "--alias", gguf_for(name).stem]
                running[name] = stack.enter_context(spawned_server(gguf_for(name), options)).url
            return running[name]

        yield get


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's threads; as they were afterwards."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """name -> a private copy of a tiny checkpoint, to break."""

    def copy(name: str = "tiny-english") -> Path:
        return Path(shutil.copytree(CHECKPOINTS / name, tmp_path / name))

    return copy


@pytest.fixture
def fewer_probe_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions of this test prove the tokenizer on 60 texts: the proof is most of a tiny conversion's time, and
    test_tokenizer_probe repeats it at length.
    """
    from layactl.convert import convert as module
    from layactl.core.tokenizer_probe import probe_texts

    monkeypatch.setattr(module, "probe_texts", lambda count, added: probe_texts(60, added))


@pytest.fixture(scope="session")
def layactl() -> Callable[..., Finished]:
    """Run the command in a fresh process: layactl("decide", "-m", path, stdin=b"...")."""

    def run(*args: object, stdin: bytes = b"", timeout: float = 120) -> Finished:
        done = subprocess.run(
            [sys.executable, "-m", "layactl", *map(str, args)], input=stdin, capture_output=True, timeout=timeout
        )
        return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finished]:
    """Run the command in this process, which spares the start: cli("decide", "-m", path, stdin=b"...")."""
    from layactl.cli.app import main

    def run(*args: object, stdin: bytes = b"") -> Finished:
        streams = {"stdout": io.BytesIO(), "stderr": io.BytesIO()}
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)), encoding="utf-8"))
            for name, stream in streams.items():
                errors = "strict" if name == "stdout" else "backslashreplace"
                text = io.TextIOWrapper(stream, encoding="utf-8", errors=errors, write_through=True)
                patch.setattr(sys, name, text)
            code = main([str(arg) for arg in args])
            written = {name: stream.getvalue().decode() for name, stream in streams.items()}
        return Finished(code, written["stdout"], written["stderr"])

    return run
