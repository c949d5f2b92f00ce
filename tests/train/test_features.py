"""A frozen encoder's states are computed once, kept under the hash of what they are, and the trunk keeps its bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from layactl.errors import UsageError
from layactl.layouts.interface import Cuts, TokenSequence
from layactl.train.features import FeatureStore, trunk_identity
from layactl.train.run import Data, TrainingRun, load_network, read_data
from layactl.train.run_folder import RunFolder
from layactl.train.settings import TrainSettings
from tests.conftest import CHECKPOINTS
from tests.train.data import data_files

FROZEN = TrainSettings(epochs=2, batch_size=8, accumulate=2, head_lr=2e-3, freeze_encoder=True, eval_every=2)

UNCUT = Cuts(0, 0, 0, 0, 0, 0, None, None)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    train, dev = data_files(tmp_path_factory.mktemp("data"))
    return read_data(CHECKPOINTS / "tiny-english", [train], [dev], "error")


def store_for(data: Data, root: Path) -> FeatureStore:
    return FeatureStore(root, trunk_identity(load_network(data.checkpoint, 0.0).encoder))


def test_a_sequence_is_encoded_once(data: Data, tmp_path: Path):
    network = load_network(data.checkpoint, 0.0).eval()
    examples = data.train.examples
    store = store_for(data, tmp_path)
    first = store.add_missing(examples[:20], network.encoder)
    files = {path: path.read_bytes() for path in store.folder.iterdir()}
    second = store_for(data, tmp_path).add_missing(examples, network.encoder)
    third = store_for(data, tmp_path).add_missing(examples, network.encoder)
    assert (first.found, first.added) == (0, 20)
    assert (second.found, second.added) == (20, len(examples) - 20)
    assert (third.found, third.added) == (len(examples), 0)
    assert all(path.read_bytes() == content for path, content in files.items())


def test_states_are_those_of_the_engine(data: Data, model_for, tmp_path: Path):
    """Whatever stands beside a sequence: each is encoded on its own."""
    network = load_network(data.checkpoint, 0.0).eval()
    store = store_for(data, tmp_path)
    store.add_missing(data.dev.examples, network.encoder)
    chosen = list(data.dev.examples[:3])
    states = store.states(chosen)
    for found, example in zip(states, chosen, strict=True):
        sequence = TokenSequence(example.ids.tolist(), example.markers.tolist(), example.type_id, UNCUT)
        expected = model_for("tiny-english").forward.trace(sequence)["encoder.final_norm"]
        np.testing.assert_allclose(found[: len(example.ids)].numpy(), expected, atol=2e-5)
        assert not found[len(example.ids) :].any()


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty"])
def test_a_damaged_file_is_made_again(damage: str, data: Data, tmp_path: Path):
    network = load_network(data.checkpoint, 0.0).eval()
    store = store_for(data, tmp_path)
    store.add_missing(data.dev.examples, network.encoder)
    states = store.states(data.dev.examples)
    (path,) = store.folder.iterdir()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes({"flipped": bytes(content), "cut": bytes(content[:-9]), "empty": b""}[damage])
    again = store_for(data, tmp_path)
    done = again.add_missing(data.dev.examples, network.encoder)
    assert (done.found, done.dropped) == (0, [path.name])
    assert (again.states(data.dev.examples) == states).all()


def test_another_trunk_has_a_folder_of_its_own(data: Data, tmp_path: Path):
    network = load_network(data.checkpoint, 0.0)
    before = FeatureStore(tmp_path, trunk_identity(network.encoder)).folder
    network.encoder.final_norm.weight.data[0] += 1e-3
    assert FeatureStore(tmp_path, trunk_identity(network.encoder)).folder != before


def test_a_head_trained_over_a_frozen_trunk_leaves_the_trunk_its_bytes(data: Data, tmp_path: Path):
    run = TrainingRun(data, FROZEN, RunFolder(tmp_path / "run"), features=tmp_path / "states", threads=1)
    outcome = run.start(resume=False)
    assert outcome.final.loss < outcome.initial.loss
    base = {name: tensor.stored(0, tensor.shape[0]) for name, tensor in data.checkpoint.tensors.items()}
    trained = read_data(run.folder.model, [data.train.files[0].path], [data.dev.files[0].path], "error").checkpoint
    for name, tensor in trained.tensors.items():
        same = (tensor.stored(0, tensor.shape[0]) == base[name]).all()
        assert same == (name.startswith(("encoder.", "act_head."))), name


def test_a_frozen_run_is_the_same_from_a_full_store(data: Data, tmp_path: Path):
    for name in ("first", "second"):
        run = TrainingRun(data, FROZEN, RunFolder(tmp_path / name), features=tmp_path / "states", threads=1)
        run.start(resume=False)
    first, second = (load_file(tmp_path / name / "best.safetensors") for name in ("first", "second"))
    assert set(first) == set(second)
    assert all((first[name] == second[name]).all() for name in first)
    assert not any(name.startswith("encoder.") for name in first)


def test_a_frozen_encoder_needs_a_store(data: Data, tmp_path: Path):
    with pytest.raises(UsageError, match="folder for the encoder's states"):
        TrainingRun(data, FROZEN, RunFolder(tmp_path / "run"), threads=1).start(resume=False)
    assert not (tmp_path / "run").exists()
    TrainingRun(data, replace(FROZEN, freeze_encoder=False, epochs=1), RunFolder(tmp_path / "run"), threads=1)


def test_a_stop_keeps_what_is_encoded(data: Data, tmp_path: Path):
    network = load_network(data.checkpoint, 0.0).eval()
    asked: list[None] = []

    def stop() -> bool:
        asked.append(None)
        return len(asked) > 5

    done = store_for(data, tmp_path).add_missing(data.dev.examples, network.encoder, stop=stop)
    assert (done.added, done.stopped) == (5, True)
    again = store_for(data, tmp_path).add_missing(data.dev.examples, network.encoder)
    assert (again.found, again.stopped) == (5, False)


def test_what_is_not_of_the_store_is_left_alone(data: Data, tmp_path: Path):
    folder = store_for(data, tmp_path).folder
    (folder / "mine.safetensors").write_bytes(b"mine")
    (folder / f"{'a' * 64}.safetensors").mkdir()
    assert store_for(data, tmp_path).dropped == []
    assert (folder / "mine.safetensors").read_bytes() == b"mine"
