"""gguf_file.laya_dialect: what a file must hold to be a model, and what it may leave out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType as Kind
from gguf_edit import Value, array, edited, f32, read_tensor, read_values, text, u32

import layactl
from layactl.errors import GgufError
from layactl.gguf_file import names
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.model_file import ModelFile
from layactl.gguf_file.reader import GgufFile

ENGLISH, MULTILINGUAL = "tiny-english", "tiny-multilingual"


@pytest.fixture
def loaded(gguf_for: Callable[..., Path], tmp_path: Path) -> Callable[..., ModelFile]:
    """Load an edited copy of a fixture: loaded(keys={...}, tensors={...}, family=...)."""

    def load(family: str = ENGLISH, **changes: Any) -> ModelFile:
        return read_model(GgufFile(edited(gguf_for(family), tmp_path / "edited.gguf", **changes)))

    return load


# -- keys that must be there -----------------------------------------------------------------------------------------

REQUIRED = {
    ENGLISH: [
        names.CONTEXT_LENGTH,
        names.EMBEDDING_LENGTH,
        names.FEED_FORWARD_LENGTH,
        names.HEAD_COUNT,
        names.VOCAB_SIZE,
        names.NORM_EPS,
        names.ROPE_FREQ_BASE,
        names.ROPE_FREQ_BASE_SWA,
        names.SLIDING_WINDOW,
        names.SLIDING_WINDOW_PATTERN,
        names.HEAD_LAYERS,
        names.N_QTYPE,
        names.ACT_CLASSES,
        names.TEMPERATURE,
        names.MARKER_TOKEN_ID,
        names.TOKENS,
        names.TOKEN_TYPES,
        names.MERGES,
        # The multilingual ids are no fallback for another vocabulary.
        names.BOS_TOKEN_ID,
        names.SEP_TOKEN_ID,
        names.MASK_TOKEN_ID,
        names.TEMPERATURE_BUCKETS,
        names.TEMPERATURE_VALUES,
    ],
    MULTILINGUAL: [names.MARKER_TOKEN_ID, names.MERGES, names.ROPE_FREQ_BASE_SWA],
}


@pytest.mark.parametrize(("family", "key"), [(family, key) for family, keys in REQUIRED.items() for key in keys])
def test_a_missing_key_is_named(family: str, key: str, loaded: Callable[..., ModelFile]):
    with pytest.raises(GgufError) as error:
        loaded(family, keys={key: None})
    assert error.value.message == f"{key}: key is missing"


# -- keys that may be absent, and what then holds --------------------------------------------------------------------


@dataclass(frozen=True)
class Absent:
    keys: list[str]
    read: Callable[[ModelFile], Any]
    value: Any
    family: str = MULTILINGUAL


OPTIONAL = {
    "max_len": Absent([names.MAX_LEN], lambda m: m.shape.limits.max_len, 1024),
    "head_max_len": Absent([names.HEAD_MAX_LEN], lambda m: m.shape.limits.head_max_len, 256),
    "hidden activation": Absent([names.HIDDEN_ACTIVATION], lambda m: m.shape.encoder.layers, 4),
    "rope scaling": Absent([names.ROPE_SCALING_TYPE], lambda m: m.shape.encoder.layers, 4),
    "causal, second eps, general": Absent(
        [names.CAUSAL, names.LAYER_NORM_EPS, names.NAME, names.FILE_TYPE, "general.type", "general.size_label"],
        lambda m: m.shape.encoder.norm_eps,
        1e-5,
    ),
    "tokenizer family": Absent([names.LAYA_TOKENIZER], lambda m: m.tokenizer.family, "metaspace-bpe"),
    "normalizer": Absent([names.LAYA_NORMALIZER], lambda m: m.tokenizer.normalizer, "none", family=ENGLISH),
    "added token flags": Absent(
        [names.LAYA_ADDED_TOKENS],
        lambda m: {(token.lstrip, token.normalized) for token in m.tokenizer.added},
        {(False, False)},
        family=ENGLISH,
    ),
    "multilingual special ids": Absent(
        [names.BOS_TOKEN_ID, names.EOS_TOKEN_ID, names.SEP_TOKEN_ID, names.MASK_TOKEN_ID],
        lambda m: (m.tokenizer.special.cls, m.tokenizer.special.sep, m.tokenizer.special.mask),
        (2, 1, 4),
    ),
    "pad and unk": Absent(
        [names.PAD_TOKEN_ID, names.UNK_TOKEN_ID],
        lambda m: (m.tokenizer.special.pad, m.tokenizer.special.unk),
        (None,) * 2,
    ),
    "temperature buckets": Absent(
        [names.TEMPERATURE_BUCKETS, names.TEMPERATURE_VALUES],
        lambda m: m.calibration.temperature,
        {"choice": {"*": 1.31}, "score": {"*": 0.93}, "noul": {"*": 1.12}},
        family=ENGLISH,
    ),
    "source digest": Absent([names.SOURCE_SHA256], lambda m: names.SOURCE_SHA256 in m.file.keys, False),
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_an_absent_key_has_its_documented_default(name: str, loaded: Callable[..., ModelFile]):
    case = OPTIONAL[name]
    assert case.read(loaded(case.family, keys=dict.fromkeys(case.keys))) == case.value


# -- what is refused -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bad:
    fragment: str
    keys: Mapping[str, Value | None] = field(default_factory=dict)
    tensors: Mapping[str, np.ndarray | None] = field(default_factory=dict)
    family: str = ENGLISH


def floats(*values: float) -> Value:
    return array(list(values), Kind.FLOAT32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.float32)


BAD = {
    # what the file is
    "another architecture": Bad(
        "is not a Laya GGUF (general.architecture is 'bert'", {names.ARCHITECTURE: text("bert")}
    ),
    "no architecture": Bad("is not a Laya GGUF (general.architecture is ''", {names.ARCHITECTURE: None}),
    "architecture as a number": Bad("general.architecture: is not a string", {names.ARCHITECTURE: u32(1)}),
    "layers missing": Bad("laya.block_count: key is missing", {names.BLOCK_COUNT: None}),
    # types of keys
    "layers as text": Bad("laya.block_count: is not a non-negative integer", {names.BLOCK_COUNT: text("5")}),
    "layers as a float": Bad("laya.block_count: is not a non-negative integer", {names.BLOCK_COUNT: f32(5.0)}),
    "width as a bool": Bad("laya.embedding_length: is not", {names.EMBEDDING_LENGTH: Value(True, Kind.BOOL)}),
    "negative layers": Bad("laya.block_count: is not a non-negative", {names.BLOCK_COUNT: Value(-5, Kind.INT32)}),
    "one MLP width a layer": Bad(
        "laya.feed_forward_length: is not", {names.FEED_FORWARD_LENGTH: array([96] * 5, Kind.INT32)}
    ),
    "theta as an integer": Bad("laya.rope.freq_base: is not a float", {names.ROPE_FREQ_BASE: u32(160_000)}),
    "eps as text": Bad("layer_norm_rms_epsilon: is not a float", {names.NORM_EPS: text("1e-5")}),
    "activation as a number": Bad("laya.hidden_activation: is not a string", {names.HIDDEN_ACTIVATION: u32(0)}),
    "temperature as one float": Bad("laya.temperature: is not an array of floats", {names.TEMPERATURE: f32(1.0)}),
    "temperature as integers": Bad(
        "laya.temperature: is not an array of floats", {names.TEMPERATURE: array([1, 1, 1], Kind.INT32)}
    ),
    "temperature as JSON text": Bad("laya.temperature: is not", {names.TEMPERATURE: text("[1, 1, 1]")}),
    "buckets as one text": Bad("buckets: is not an array of strings", {names.TEMPERATURE_BUCKETS: text("{}")}),
    "tokens as integers": Bad("tokens: is not an array of strings", {names.TOKENS: array([1, 2], Kind.INT32)}),
    "token types as text": Bad(
        "token_type: is not an array of integers", {names.TOKEN_TYPES: array(["1"], Kind.STRING)}
    ),
    "token types as floats": Bad("token_type: is not an array of integers", {names.TOKEN_TYPES: floats(1.0)}),
    "token types as bools": Bad(
        "token_type: is not an array of integers", {names.TOKEN_TYPES: array([True], Kind.BOOL)}
    ),
    "merges as integers": Bad("merges: is not an array of strings", {names.MERGES: array([1], Kind.INT32)}),
    "mask id as text": Bad("mask_token_id: is not a non-negative integer", {names.MASK_TOKEN_ID: text("928")}),
    # shape
    "activation gelu_new": Bad("laya.hidden_activation: is 'gelu_new'", {names.HIDDEN_ACTIVATION: text("gelu_new")}),
    "scaled RoPE": Bad("laya.rope.scaling.type: is 'yarn'", {names.ROPE_SCALING_TYPE: text("yarn")}),
    "no layers": Bad("num_hidden_layers is out of range", {names.BLOCK_COUNT: u32(0)}),
    "absurd layers": Bad("num_hidden_layers is out of range", {names.BLOCK_COUNT: u32(2**31)}),
    "one layer too many": Bad("blk.5.attn_norm.weight: tensor is missing", {names.BLOCK_COUNT: u32(6)}),
    "one layer too few": Bad("blk.4.attn_norm.weight: tensor has no place", {names.BLOCK_COUNT: u32(4)}),
    "another width": Bad(
        "token_embd.weight: tensor has shape (960, 64), not (960, 128)", {names.EMBEDDING_LENGTH: u32(128)}
    ),
    "heads that do not divide": Bad("does not divide into 7 heads", {names.HEAD_COUNT: u32(7)}),
    "another MLP width": Bad("blk.0.ffn_up.weight: tensor has shape", {names.FEED_FORWARD_LENGTH: u32(97)}),
    "window 0": Bad("local_attention is out of range", {names.SLIDING_WINDOW: u32(0)}),
    "pattern 0": Bad("global_attn_every_n_layers is out of range", {names.SLIDING_WINDOW_PATTERN: u32(0)}),
    "theta 0": Bad("global_rope_theta is out of range", {names.ROPE_FREQ_BASE: f32(0.0)}),
    "local theta NaN": Bad("local_rope_theta is out of range", {names.ROPE_FREQ_BASE_SWA: f32(math.nan)}),
    "eps infinite": Bad("norm_eps is out of range", {names.NORM_EPS: f32(math.inf)}),
    "max_len 0": Bad("max_len is out of range", {names.MAX_LEN: u32(0)}),
    "absurd max_len": Bad("max_len is out of range", {names.MAX_LEN: u32(2**31)}),
    "head_max_len 0": Bad("head_max_len is out of range", {names.HEAD_MAX_LEN: u32(0)}),
    "a head layer too many": Bad("head.1.attn_norm.weight: tensor is missing", {names.HEAD_LAYERS: u32(2)}),
    "no head layers": Bad("head.0.attn_norm.bias: tensor has no place", {names.HEAD_LAYERS: u32(0)}),
    "two question types": Bad("laya.n_qtype: is 2, not 3", {names.N_QTYPE: u32(2)}),
    "four question types": Bad("laya.n_qtype: is 4, not 3", {names.N_QTYPE: u32(4)}),
    "type_emb of two rows": Bad("type_emb.weight: tensor has shape", tensors={"type_emb.weight": zeros(2, 64)}),
    "no act classes": Bad("laya.act_classes: is 0", {names.ACT_CLASSES: u32(0)}),
    "an act class too many": Bad("act_head.2.weight: tensor has shape", {names.ACT_CLASSES: u32(4)}),
    # tensors
    "a missing tensor": Bad("output_norm.weight: tensor is missing", tensors={"output_norm.weight": None}),
    "a missing bias": Bad("scorer.1.bias: tensor is missing", tensors={"scorer.1.bias": None}),
    "a tensor of another model": Bad("pooler.weight: tensor has no place", tensors={"pooler.weight": zeros(64, 64)}),
    "a norm in layer 0": Bad(
        "blk.0.attn_norm.weight: tensor has no place", tensors={"blk.0.attn_norm.weight": zeros(64)}
    ),
    "a transposed tensor": Bad(
        "blk.0.ffn_down.weight: tensor has shape", tensors={"blk.0.ffn_down.weight": zeros(96, 64)}
    ),
    "an empty tensor": Bad("output_norm.weight: tensor has shape (0,)", tensors={"output_norm.weight": zeros(0)}),
    "a tensor of doubles": Bad(
        "output_norm.weight: tensor type 28 is not supported", tensors={"output_norm.weight": np.zeros(64)}
    ),
    # calibration
    "two temperatures": Bad("laya.temperature: holds 2 temperatures, not 3", {names.TEMPERATURE: floats(1.0, 1.0)}),
    "NaN temperature": Bad("temperature nan is not a finite number", {names.TEMPERATURE: floats(1.0, math.nan, 1.0)}),
    "infinite temperature": Bad("temperature inf is not", {names.TEMPERATURE: floats(math.inf, 1.0, 1.0)}),
    "temperature of minus infinity": Bad("temperature -inf is not", {names.TEMPERATURE: floats(1.0, 1.0, -math.inf)}),
    "fewer values than buckets": Bad("6 buckets but 1 values", {names.TEMPERATURE_VALUES: floats(1.0)}),
    "a NaN bucket": Bad("temperature nan is not", {names.TEMPERATURE_VALUES: floats(*[1.0] * 5, math.nan)}),
    # vocabulary
    "fewer types than tokens": Bad("960 tokens but 1 types", {names.TOKEN_TYPES: array([1], Kind.INT32)}),
    "an unknown token type": Bad(
        "token 1 has unknown type 2", {names.TOKEN_TYPES: array([1, 2, *[1] * 958], Kind.INT32)}
    ),
    "a negative token type": Bad(
        "token 0 has unknown type -1", {names.TOKEN_TYPES: array([-1, *[1] * 959], Kind.INT32)}
    ),
    "an unknown family": Bad("decision.laya.tokenizer: is 'unigram'", {names.LAYA_TOKENIZER: text("unigram")}),
    "an unknown normalizer": Bad("decision.laya.normalizer: is 'nfkc'", {names.LAYA_NORMALIZER: text("nfkc")}),
    "half a pair of flags": Bad("holds an odd number", {names.LAYA_ADDED_TOKENS: array([925, 0, 926], Kind.INT32)}),
    "flags as text": Bad("is not an array of integers", {names.LAYA_ADDED_TOKENS: array(["925"], Kind.STRING)}),
    "an embedded tokenizer that is not there": Bad(
        "tokenizer.huggingface.json: key is missing", {names.LAYA_TOKENIZER: text("huggingface-json")}
    ),
    # special ids
    "CLS outside": Bad("bos_token_id: id 960 is outside the vocabulary of 960", {names.BOS_TOKEN_ID: u32(960)}),
    "SEP outside": Bad("seperator_token_id: id 4294967295 is outside", {names.SEP_TOKEN_ID: u32(2**32 - 1)}),
    "mask outside": Bad("mask_token_id: id 5000 is outside", {names.MASK_TOKEN_ID: u32(5000)}),
    "mask is a filler": Bad("mask_token_id: id 959 is outside", {names.MASK_TOKEN_ID: u32(959)}),
    "pad outside": Bad("padding_token_id: id 960 is outside", {names.PAD_TOKEN_ID: u32(960)}),
    "unk outside": Bad("unknown_token_id: id 960 is outside", {names.UNK_TOKEN_ID: u32(960)}),
    "another marker than the mask": Bad(
        "marker_token_id: is 926, but the mask token is 928", {names.MARKER_TOKEN_ID: u32(926)}
    ),
    "another mask than the marker": Bad(
        "marker_token_id: is 928, but the mask token is 926", {names.MASK_TOKEN_ID: u32(926)}
    ),
    "another marker than the fallback mask": Bad(
        "marker_token_id: is 5, but the mask token is 4",
        {names.MASK_TOKEN_ID: None, names.MARKER_TOKEN_ID: u32(5)},
        family=MULTILINGUAL,
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_model_says_why(name: str, loaded: Callable[..., ModelFile], tmp_path: Path):
    case = BAD[name]
    with pytest.raises(GgufError) as error:
        loaded(case.family, keys=case.keys, tensors=case.tensors)
    assert case.fragment in error.value.message
    assert error.value.where == str(tmp_path / "edited.gguf")


def test_more_tokens_than_rows_of_the_embedding_are_refused(loaded: Callable[..., ModelFile], gguf_for):
    values = read_values(gguf_for())
    longer = {
        names.TOKENS: array([*values[names.TOKENS].value, "one more"], Kind.STRING),
        names.TOKEN_TYPES: array([*values[names.TOKEN_TYPES].value, 1], Kind.INT32),
    }
    with pytest.raises(GgufError, match="961 tokens but token_embd has 960 rows"):
        loaded(keys=longer)


def test_a_long_text_in_a_key_is_shortened_in_the_message(loaded: Callable[..., ModelFile]):
    for key in (names.ARCHITECTURE, names.HIDDEN_ACTIVATION, names.LAYA_TOKENIZER, names.LAYA_NORMALIZER):
        with pytest.raises(GgufError) as error:
            loaded(keys={key: text("x" * 10_000)})
        assert len(error.value.message) < 200


# -- what is accepted although it differs ----------------------------------------------------------------------------


def test_dimensions_of_1_may_come_and_go(loaded: Callable[..., ModelFile], gguf_for):
    flat = read_tensor(gguf_for(), "scorer.3.weight").reshape(-1)
    model = loaded(tensors={"scorer.3.weight": flat})
    assert model.file.tensors["scorer.3.weight"].shape == (64,)


def test_a_file_with_fewer_tokens_than_rows_loads_without_the_fillers(loaded: Callable[..., ModelFile], gguf_for):
    values = read_values(gguf_for())
    tokens, types = values[names.TOKENS].value, values[names.TOKEN_TYPES].value
    first_filler = types.index(names.TYPE_UNUSED)
    assert set(types[first_filler:]) == {names.TYPE_UNUSED}
    shorter = {
        names.TOKENS: array(tokens[:first_filler], Kind.STRING),
        names.TOKEN_TYPES: array(types[:first_filler], Kind.INT32),
    }
    assert len(loaded(keys=shorter).tokenizer.pieces) == first_filler < len(tokens)


def test_byte_tokens_of_type_6_read_like_type_1(gguf_for, tmp_path: Path):
    values = read_values(gguf_for(MULTILINGUAL))
    tokens, types = values[names.TOKENS].value, list(values[names.TOKEN_TYPES].value)
    for n, token in enumerate(tokens):
        if token.startswith("<0x") and types[n] == names.TYPE_NORMAL:
            types[n] = names.TYPE_BYTE
    assert names.TYPE_BYTE in types
    keys = {names.TOKEN_TYPES: array(types, Kind.INT32)}
    marked = layactl.load(edited(gguf_for(MULTILINGUAL), tmp_path / "x.gguf", keys=keys))
    plain = layactl.load(gguf_for(MULTILINGUAL))
    for sample in ("\u00ff\u0100 caf\u00e9", "\U0001f600"):
        assert marked.tokenizer.encode(sample) == plain.tokenizer.encode(sample)


def test_the_unused_temperature_tensor_is_no_stranger(loaded: Callable[..., ModelFile]):
    assert loaded(tensors={"temperature": zeros(3)}).shape.head.act_classes == 3


def test_names_the_reference_never_looks_up_are_no_temperatures(loaded: Callable[..., ModelFile]):
    keys = {names.TEMPERATURE_BUCKETS: array(["choice:7", "x", "", "a:2", "noul:2", "score:3-5"], Kind.STRING)}
    model = loaded(keys=keys)
    assert model.calibration.temperature == {
        "choice": {"*": 1.31},
        "score": {"3-5": 1.43, "*": 0.93},
        "noul": {"1-2": 1.07, "*": 1.12},
    }


def test_numbers_come_back_as_they_were_configured(loaded: Callable[..., ModelFile]):
    model = loaded()
    # A float32 of 1.76 is 1.7599999904632568 as a double; the checkpoint says 1.76.
    assert model.calibration.temperature["choice"] == {"1-2": 1.21, "3-5": 1.76, "6-10": 2.2, "11+": 0.1006, "*": 1.31}
    assert model.shape.encoder.norm_eps == 1e-5


def test_a_model_whose_tokenizer_cannot_be_built_is_refused(gguf_for, tmp_path: Path):
    keys = {names.MERGES: array(["no such"], Kind.STRING)}
    with pytest.raises(GgufError, match="the tokenizer cannot be built"):
        layactl.load(edited(gguf_for(), tmp_path / "x.gguf", keys=keys))
