"""A trained checkpoint is one as any other: the reference loads it and answers the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import layactl
from layactl.checkpoint.folder import read_checkpoint
from layactl.checkpoint.save import save_checkpoint, set_temperatures
from layactl.convert.convert import convert
from layactl.errors import OutputError
from layactl.train.run import TrainingRun, read_data
from layactl.train.run_folder import RunFolder
from layactl.train.settings import TrainSettings
from tests.conftest import CHECKPOINTS
from tests.train.data import data_files, decision

SETTINGS = TrainSettings(epochs=2, encoder_lr=2e-3, head_lr=2e-3)


@pytest.fixture(scope="module", params=["tiny-multilingual", "tiny-english"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train, dev = data_files(folder)
    data = read_data(CHECKPOINTS / request.param, [train], [dev], "error")
    TrainingRun(data, SETTINGS, RunFolder(folder / "run"), threads=1).start(resume=False)
    return folder / "run" / "model"


@pytest.mark.reference
def test_the_reference_loads_it_and_answers_the_same(trained: Path, tmp_path: Path):
    # A copy: the reference rewrites tokenizer_config.json in place.
    shutil.copytree(trained, tmp_path / "model")
    agent = pytest.importorskip("laya.agent").Agent(str(tmp_path / "model"), device="cpu")
    convert(trained, tmp_path / "model.gguf", outtype="f32")
    model = layactl.load(tmp_path / "model.gguf")
    for number in range(4):
        record = decision("test", number)
        ours = model.decide(record["state"], record["questions"])["answers"]
        theirs = agent.predict(record["state"], record["questions"])["answers"]
        assert ours["wanted"]["noul"] == pytest.approx(theirs["wanted"]["noul"], abs=2e-4)
        for name in ("colour", "urgency"):
            expected = list(theirs[name]["probabilities"].values())
            np.testing.assert_allclose(list(ours[name]["probabilities"].values()), expected, atol=2e-4)


def test_it_keeps_everything_of_the_base_but_weights_and_temperatures(trained: Path):
    base = next(
        path
        for path in (CHECKPOINTS / "tiny-multilingual", CHECKPOINTS / "tiny-english")
        if (path / "tokenizer/tokenizer.json").read_bytes() == (trained / "tokenizer/tokenizer.json").read_bytes()
    )
    for name in ("encoder/config.json", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"):
        assert (trained / name).read_bytes() == (base / name).read_bytes()
    before, after = (json.loads((root / "rl_agent_config.json").read_text()) for root in (base, trained))
    assert after == before | {"temperature": [1.0, 1.0, 1.0], "temperature_by_options": {}}
    types = [{name: tensor.dtype for name, tensor in read_checkpoint(root).tensors.items()} for root in (base, trained)]
    assert types[0] == types[1]


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16"])
def test_weights_are_stored_in_the_type_asked_for(outtype: str, tmp_path: Path):
    base = read_checkpoint(CHECKPOINTS / "tiny-english")
    exact = {name: tensor.floats(0, tensor.shape[0]) for name, tensor in base.tensors.items()}
    shifted = {name: values * np.float32(1.0001) for name, values in exact.items()}
    saved = save_checkpoint(tmp_path / "out", base, shifted, outtype)
    found = read_checkpoint(tmp_path / "out").tensors
    assert {tensor.dtype for tensor in found.values()} == {outtype.upper()}
    changed = 0
    for name, tensor in found.items():
        values = tensor.floats(0, tensor.shape[0])
        np.testing.assert_allclose(
            values, shifted[name], rtol={"f32": 0, "f16": 6e-4, "bf16": 4e-3}[outtype], atol=1e-7
        )
        changed += int((values != shifted[name]).sum())
    assert (saved.changed, saved.total) == (changed, sum(values.size for values in exact.values()))
    assert (changed == 0) == (outtype == "f32")


def test_a_weight_beyond_the_type_is_refused_and_nothing_is_left(tmp_path: Path):
    base = read_checkpoint(CHECKPOINTS / "tiny-english")
    weights = {"scorer.1.weight": np.full(base.tensors["scorer.1.weight"].shape, 1e6, dtype=np.float32)}
    with pytest.raises(OutputError, match=r"scorer\.1\.weight"):
        save_checkpoint(tmp_path / "out", base, weights, "f16")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_not_replaced(tmp_path: Path):
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputError, match="exists already"):
        save_checkpoint(tmp_path / "out", read_checkpoint(CHECKPOINTS / "tiny-english"), {})


def test_temperatures_are_put_where_both_engines_read_them(trained: Path, tmp_path: Path):
    shutil.copytree(trained, tmp_path / "model")
    set_temperatures(tmp_path / "model", (1.5, 0.8, 2.0), {"choice:3-5": 1.25})
    convert(tmp_path / "model", tmp_path / "model.gguf", outtype="f32")
    calibration = layactl.load(tmp_path / "model.gguf").spec.calibration
    assert calibration.temperature_for("choice", 4) == 1.25
    assert calibration.temperature_for("choice", 8) == 1.5
    assert calibration.temperature_for("noul", 2) == 2.0


def test_settings_are_not_shared_between_runs():
    assert replace(SETTINGS, epochs=3).rlcd == SETTINGS.rlcd
