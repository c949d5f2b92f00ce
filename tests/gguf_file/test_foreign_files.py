"""gguf_file.foreign: a GGUF of neither dialect is refused by the name of what it is.

Each file holds the keys that its writer's source gives it, and no weights worth mentioning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_edit import edited, text

import layactl
from layactl.errors import GgufError
from layactl.gguf_file import names
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.foreign import KINDS, Kind, foreign_error
from layactl.gguf_file.inspection import inspect
from layactl.gguf_file.reader import GgufFile


@dataclass(frozen=True)
class Foreign:
    """fragment: a part of the message; keys: beside the architecture; tensors: names; lacks: keys it must list."""

    fragment: str
    architecture: str
    keys: Mapping[str, Any]
    tensors: tuple[str, ...] = ("token_embd.weight",)
    lacks: tuple[str, ...] = ()


STATIM = {
    "statim.format": "statim-decision-v1",
    "laya.encoder.n_embd": 1024,
    "laya.encoder.n_layer": 28,
    "laya.head.n_layer": 2,
    "laya.max_len": 512,
    "laya.temperature": [1.0, 1.0, 1.0],
    "laya.temperature_by_options": '{"choice:2": 1.2}',
    "tokenizer.statim.tokens": ["a", "b"],
    "tokenizer.statim.mask_id": 4,
}
CANONICAL = {
    "laya.weight_layout": "ggml-canonical",
    "laya.hidden_size": 1024,
    "laya.num_layers": 28,
    "laya.head_layers": 2,
    "laya.vocab_size": 50368,
    "laya.temperature.0": 1.6,
    "laya.temperature.1": 1.0,
    "laya.temperature.2": 1.1,
    "laya.temperature_by_options": "{}",
    "tokenizer.huggingface.json": "{}",
}
ENCODER = {
    "modern-bert.block_count": 22,
    "modern-bert.embedding_length": 768,
    "modern-bert.attention.head_count": 12,
    "tokenizer.ggml.pre": "modern-bert",
}
BRANCH = {
    "laya.block_count": 28,
    "laya.embedding_length": 1024,
    "laya.embedding_length_out": 1,
    "laya.decision_head.block_count": 2,
    "laya.decision_head.qtype_token_ids": [10, 11, 12],
    "laya.decision_head.calibration_temperature": [1.0, 1.0, 1.0],
}
# llama.cpp pull request #29363, before the sliding window and the RoPE bases had to be there.
FIRST = {
    "laya.block_count": 22,
    "laya.context_length": 8192,
    "laya.embedding_length": 768,
    "laya.feed_forward_length": 1152,
    "laya.attention.head_count": 12,
    "laya.attention.layer_norm_rms_epsilon": 1e-5,
    "laya.vocab_size": 256000,
    "laya.head_layers": 2,
    "laya.n_qtype": 3,
    "laya.act_classes": 2,
    "laya.max_len": 1024,
    "laya.head_max_len": 256,
    "laya.temperature": [1.0, 1.0, 1.0],
    "laya.marker_token_id": 4,
    "tokenizer.ggml.pre": "modern-bert",
}
FOREIGN = {
    "ggmlc": Foreign("compiled for the ggmlc runtime", "ggmlc", {"ggmlc.graph_spec": "{}", "laya.max_opts": 16}),
    "ggmlc under another architecture": Foreign("ggmlc runtime", "laya", {"ggmlc.decision": "{}"}),
    "statim": Foreign("of the Statim runtime", "laya", STATIM, lacks=("laya.block_count", "and 9 more")),
    "canonical": Foreign("private Laya layout of another runtime", "laya", CANONICAL, lacks=("laya.block_count",)),
    "encoder keys of its own": Foreign("private Laya layout", "laya", {"laya.encoder.n_layer": 22}),
    "embedding_length_out": Foreign(
        "decision_head layout", "laya", BRANCH, lacks=("laya.context_length", "and 8 more")
    ),
    "first pull request": Foreign(
        "pull request #29363",
        "laya",
        FIRST,
        lacks=(
            "it lacks laya.rope.freq_base, laya.rope.freq_base_swa, laya.attention.sliding_window, "
            "laya.attention.sliding_window_pattern",
        ),
    ),
    "laya by name only": Foreign("another early converter", "laya", {}, lacks=("laya.block_count", "and 10 more")),
    "encoder": Foreign("is a ModernBERT encoder; a decision head that ships beside it", "modern-bert", ENCODER),
    "head half": Foreign("is a decision head without its encoder", "laya-head", {"laya-head.layers": 2}, ("a.weight",)),
    "head half by its tensors": Foreign("a decision head without its", "laya", {}, ("scorer.1.weight", "x.bias")),
    "head half of a stock file": Foreign("a decision head without its", "modern-bert", {}, ("cls.norm.weight",)),
    "another decision model": Foreign("but no Laya", "qwen3", {"qwen3.decision.type": "kev"}),
    "another decision type": Foreign("but no Laya", "modern-bert", {**ENCODER, "modern-bert.decision.type": "clef"}),
    "julia": Foreign("is a Julia model", "julia", {"julia.block_count": 22}),
    "a language model": Foreign(
        "is not a Laya GGUF (general.architecture is 'llama')", "llama", {"llama.block_count": 2}
    ),
    "no architecture": Foreign("is not a Laya GGUF (general.architecture is '')", "", {"laya.block_count": 2}),
}


def write(path: Path, file: Foreign) -> Path:
    writer = gguf.GGUFWriter(path, file.architecture)
    for key, value in file.keys.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    for name in file.tensors:
        writer.add_tensor(name, np.zeros(2, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_is_told_what_it_is_and_what_to_use_instead(name: str, tmp_path: Path):
    file = FOREIGN[name]
    path = write(tmp_path / "foreign.gguf", file)
    with pytest.raises(GgufError) as error:
        layactl.load(path)
    assert file.fragment in error.value.message
    assert all(key in error.value.message for key in file.lacks)
    assert len(error.value.message) < 400
    assert error.value.where == str(path)
    assert "layactl convert CHECKPOINT" in str(error.value.hint)
    assert inspect(GgufFile(path))["problem"] == error.value.message


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.what)
def test_every_kind_has_a_file(kind: Kind):
    assert any(file.fragment.partition(" (")[0] in kind.what for file in FOREIGN.values())


def test_one_line_on_the_command_line(cli: Callable[..., Any], tmp_path: Path):
    path = write(tmp_path / "foreign.gguf", FOREIGN["encoder"])
    for command in (("decide", "x", "--ask", "noul: Is it?"), ("tokenize", "x")):
        done = cli(*command, "-m", path)
        assert (done.code, done.out) == (1, "")
        assert len(done.error_lines) == 1
        assert "hint: convert the official checkpoint instead" in done.err


@pytest.mark.parametrize("mark", ["tokenizer.ggml.scores", "laya.comment", "general.finetune"])
def test_a_key_that_nobody_knows_makes_no_file_foreign(mark: str, gguf_for: Callable[..., Path], tmp_path: Path):
    assert foreign_error(GgufFile(edited(gguf_for(), tmp_path / "more.gguf", keys={mark: text("x")}))) is None


def test_an_early_file_that_lacks_nothing_is_read(gguf_for: Callable[..., Path], tmp_path: Path):
    """Before the tokenizer's key there was only metaspace-bpe, whose vocabulary has a piece for every byte."""
    unnamed = {names.LAYA_TOKENIZER: None, names.LAYA_NORMALIZER: None, names.LAYA_ADDED_TOKENS: None}
    path = edited(gguf_for("tiny-multilingual"), tmp_path / "early.gguf", keys=unnamed)
    assert read_model(GgufFile(path)).tokenizer == read_model(GgufFile(gguf_for("tiny-multilingual"))).tokenizer
    with pytest.raises(GgufError, match=r"decision\.laya\.tokenizer: key is missing"):
        layactl.load(edited(gguf_for("tiny-english"), tmp_path / "early-english.gguf", keys=unnamed))
