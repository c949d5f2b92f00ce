"""Other readings of the architecture, each close enough to be written by mistake: strict-f32 must tell them apart by
far, or its bar would separate nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import layactl
from layactl.layouts.laya import head
from layactl.parity.answering import engine_record
from layactl.parity.gate import judge
from layactl.parity.items import load_items
from layactl.parity.shipped import shipped
from layactl.parity.tiers import read_tiers

from .conftest import COMMITTED
from .run_maker import ENGINE, REFERENCE, Pair
from .test_mutations import Patch, _patch_shape, exclusive_window, swapped_geglu_halves, tanh_gelu


def wrong_theta(patch: pytest.MonkeyPatch) -> None:
    _patch_shape(patch, lambda shape: replace(shape, local_theta=10_000.0 if shape.local_theta != 10_000 else 160_000))


def no_type_embedding(patch: pytest.MonkeyPatch) -> None:
    original = head.LayaHead.__init__

    def init(self: head.LayaHead, *arguments: Any) -> None:
        original(self, *arguments)
        self._type_embeddings = self._type_embeddings * 0

    patch.setattr(head.LayaHead, "__init__", init)


# Reading -> how many times over the bound it must be at least. The two GELUs differ by less than 5e-4 anywhere.
RIVALS: dict[str, tuple[Patch, float]] = {
    "the window excludes its edge": (exclusive_window, 1000),
    "tanh GELU": (tanh_gelu, 3),
    "another theta of the local layers": (wrong_theta, 1000),
    "no type embedding": (no_type_embedding, 1000),
    "GeGLU halves swapped": (swapped_geglu_halves, 1000),
}


@pytest.fixture(scope="module")
def chosen() -> list[dict[str, Any]]:
    return list(load_items(None, every=60).items)


@pytest.fixture(scope="module")
def right(chosen: list[dict[str, Any]], model_of: Callable[..., layactl.Model]) -> dict[str, list[dict[str, Any]]]:
    """The records that the reference is proved to give (test_reference.py)."""
    return {family: [engine_record(model_of(family), item) for item in chosen] for family in COMMITTED}


@pytest.mark.parametrize("family", COMMITTED)
@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_reading_fails_strict_by_far(
    name: str,
    family: str,
    chosen: list[dict[str, Any]],
    right: dict[str, list[dict[str, Any]]],
    gguf_of: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    path = gguf_of(family, "f32")
    mutate, margin = RIVALS[name]
    mutate(monkeypatch)
    rival = layactl.load(path, kernels="reference")
    pair = Pair(tmp_path, right[family], REFERENCE, ENGINE)
    pair.records[1] = [copy.deepcopy(engine_record(rival, item)) for item in chosen]
    tiers = read_tiers(shipped("tiers.json"))
    report = judge(*pair.runs(), tiers["strict-f32"], tiers)
    assert report.verdict == "fail"
    bound = next(bound for bound in report.bounds if bound.name == "max_abs_error")
    assert bound.margin > margin
    assert report.to_json()["bounds"][0]["margin"] == bound.margin


@pytest.mark.parametrize("family", COMMITTED)
def test_the_right_reading_passes_the_same_items(family: str, right: dict[str, list[dict[str, Any]]], tmp_path: Path):
    tiers = read_tiers(shipped("tiers.json"))
    report = judge(*Pair(tmp_path, right[family], REFERENCE, ENGINE).runs(), tiers["strict-f32"], tiers)
    assert (report.verdict, report.failures) == ("pass", [])
