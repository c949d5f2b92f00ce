"""The first stage of laya-nano on a small scale: what it starts from, and that it gives the same bytes again."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import make_nano
import nano_pretrain
import numpy as np
import pytest
import torch
from checkpoint_factory import write_checkpoint
from nano_data.build import write_files
from nano_words import ask, learn_words, number_labels
from safetensors.numpy import load_file
from tokenizer_factory import TokenizerSize

from layactl.checkpoint.folder import read_checkpoint
from layactl.train.examples import read_split, text_side

SMALL = replace(make_nano.LAYA_NANO, tokenizer=TokenizerSize(trained_merges=1500), vocab_size=2048, layers=3)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nano")
    write_files(folder / "data", 0.01)
    lines = tuple(
        line for name in ("train", "train-router") for line in make_nano.texts(folder / "data" / f"{name}.jsonl")
    )
    write_checkpoint(SMALL, folder / "base", lines)
    return folder / "base"


def data(base: Path) -> list[Path]:
    return [base.parent / "data" / f"{name}.jsonl" for name in ("train", "train-router")]


def test_a_bag_of_tokens_learns_from_words_alone(base: Path):
    text = text_side(read_checkpoint(base))
    examples = read_split("training", data(base), text, "allow").examples
    labels = number_labels(data(base))
    sep = text.tokenizer.special.sep
    torch.manual_seed(0)
    bag = learn_words(examples, labels, torch.randn(SMALL.vocab_size, SMALL.d) * 0.1, sep, epochs=6, size=64)
    asked = ask(examples, labels)
    uniform = float(torch.log(asked.options.sum(-1).float()).mean())
    states = [torch.unique(state_from_the_end(example, sep)) for example in examples]
    with torch.no_grad():
        assert float(asked.loss(bag(states, asked))) < 0.8 * uniform


def state_from_the_end(example, sep: int) -> torch.Tensor:
    """The state's tokens, read from the end: between the last two separators."""
    ids = example.ids.tolist()
    assert ids[-1] == sep
    start = len(ids) - 1 - ids[-2::-1].index(sep)
    return torch.tensor(ids[start:-1])


def test_the_first_stage_gives_the_same_weights_again(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = []
    for name in ("one", "two"):
        monkeypatch.setattr(
            sys, "argv", ["nano_pretrain", str(base), str(tmp_path / name), "--updates", "4", *map(str, data(base))]
        )
        assert nano_pretrain.main() == 0
        found.append((tmp_path / name / "model.safetensors").read_bytes())
    assert found[0] == found[1]
    before, after = load_file(base / "model.safetensors"), load_file(tmp_path / "one" / "model.safetensors")
    same = {name for name, values in after.items() if np.array_equal(values, before[name])}
    # The act head is left to what follows; biases begin at 0 and may stay there.
    assert all(name == "temperature" or name.startswith("act_head.") for name in same if before[name].any())
