"""Models with a spec of their own, and routers over them, loaded once a session."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import layactl as package
from layactl import Model
from layactl.router.score import Router


@pytest.fixture(scope="session")
def model_with(gguf_for: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Model]:
    """(checkpoint name, **fields of its spec) -> the model."""
    folder = tmp_path_factory.mktemp("specs")
    loaded: dict[str, Model] = {}

    def get(name: str = "tiny-multilingual", **fields: Any) -> Model:
        text = json.dumps({"spec_version": 1, "layout": "laya"} | fields)
        if (key := name + text) not in loaded:
            path = folder / f"{len(loaded)}.json"
            path.write_text(text)
            loaded[key] = package.load(gguf_for(name), spec=path)
        return loaded[key]

    return get


@pytest.fixture(scope="session")
def router_with(model_with: Callable[..., Model]) -> Callable[..., Router]:
    """(checkpoint name, **fields of its spec) -> a router that does not ask for a calibration."""
    return lambda *name, **fields: Router(model_with(*name, **fields), allow_uncalibrated=True)
