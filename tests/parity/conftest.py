"""Checkpoints, models and references of the parity tests, each made once a session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import layactl
from layactl.convert.convert import convert

if TYPE_CHECKING:
    from .reference_run import Reference

FIXTURES = Path(__file__).parents[2] / "fixtures"
COMMITTED = ("tiny-multilingual", "tiny-english")
# Made at test time: two head attention heads and F32 weights; no head layers.
GENERATED = ("wide", "headless")

# The generators run as scripts and import each other by their plain names.
sys.path.append(str(FIXTURES))


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """name -> its folder, never written to."""
    import checkpoint_factory

    @cache
    def get(name: str) -> Path:
        if name in COMMITTED:
            return FIXTURES / name
        folder = tmp_path_factory.mktemp("checkpoint") / name
        recipe = {"wide": checkpoint_factory.WIDE, "headless": checkpoint_factory.HEADLESS}[name]
        checkpoint_factory.write_checkpoint(recipe, folder)
        return folder

    return get


@pytest.fixture(scope="session")
def gguf_of(folder_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """(name, outtype) -> its GGUF."""
    folder = tmp_path_factory.mktemp("parity-gguf")

    @cache
    def get(name: str, outtype: str) -> Path:
        path = folder / f"{name}-{outtype}.gguf"
        convert(folder_of(name), path, outtype=outtype)
        return path

    return get


@pytest.fixture(scope="session")
def model_of(gguf_of: Callable[[str, str], Path]) -> Callable[..., layactl.Model]:
    """(name, outtype) -> the loaded model; shared, so not to be changed."""

    @cache
    def get(name: str, outtype: str = "f32") -> layactl.Model:
        return layactl.load(gguf_of(name, outtype))

    return get


@pytest.fixture(scope="session")
def reference_of(
    folder_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Reference]:
    """name -> the reference over a copy of that checkpoint; skips where laya is not installed."""

    @cache
    def get(name: str) -> Reference:
        pytest.importorskip("laya")
        from .reference_run import Reference

        return Reference(folder_of(name), tmp_path_factory.mktemp("reference"))

    return get
