"""checkpoint.config: both spellings of a ModernBERT config, and what is refused rather than guessed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_edit import AGENT, ENCODER, set_fields

from layactl.checkpoint.folder import read_checkpoint
from layactl.core.model_shape import EncoderShape, Limits
from layactl.errors import CheckpointError

ENGLISH = EncoderShape(960, 64, 5, 2, 96, 512, 1e-5, 160000.0, 10000.0, 16, 3)
FULL, SLIDING = "full_attention", "sliding_attention"
TYPES = [FULL, SLIDING, SLIDING, FULL, SLIDING]


def ropes(full: Any = 160000.0, sliding: Any = 10000.0, **more: Any) -> dict[str, Any]:
    return {FULL: {"rope_theta": full} | more, SLIDING: {"rope_theta": sliding} | more}


NO_THETAS = {"global_rope_theta": None, "local_rope_theta": None}

# Edits of encoder/config.json that leave the same model.
SPELLINGS: dict[str, dict[str, Any]] = {
    "transformers 4": {},
    "transformers 5": NO_THETAS | {"rope_parameters": ropes(rope_type="default"), "layer_types": TYPES},
    "rope_parameters without rope_type": NO_THETAS | {"rope_parameters": ropes()},
    "both spellings of RoPE": {"rope_parameters": ropes()},
    "layer types and the number": {"layer_types": TYPES},
    "layer types without the number": {"layer_types": TYPES, "global_attn_every_n_layers": None},
    "number without layer types": {"layer_types": None},
    "only norm_eps": {"layer_norm_eps": None},
    "only layer_norm_eps": {"norm_eps": None},
    "norm_eps beats layer_norm_eps": {"layer_norm_eps": 1e-3},
    "integer thetas": {"global_rope_theta": 160000, "local_rope_theta": 10000},
    "no hidden_activation": {"hidden_activation": None},
    "no biases mentioned": {"norm_bias": None, "attention_bias": None, "mlp_bias": None},
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_gives_the_same_shape(name: str, checkpoint: Callable[..., Path]):
    root = checkpoint()
    set_fields(root / ENCODER, **SPELLINGS[name])
    assert read_checkpoint(root).shape.encoder == ENGLISH


@pytest.mark.parametrize(
    ("types", "every"),
    [([FULL] * 5, 1), ([FULL, SLIDING] * 2 + [FULL], 2), ([FULL] + [SLIDING] * 4, 5)],
    ids=["all global", "every second", "only the first"],
)
def test_the_number_follows_from_regular_layer_types(types: list[str], every: int, checkpoint: Callable[..., Path]):
    root = checkpoint()
    set_fields(root / ENCODER, layer_types=types, global_attn_every_n_layers=None)
    assert read_checkpoint(root).shape.encoder == replace(ENGLISH, global_every=every)


def test_no_eps_is_the_default_of_transformers(checkpoint: Callable[..., Path]):
    root = checkpoint()
    set_fields(root / ENCODER, norm_eps=None, layer_norm_eps=None)
    assert read_checkpoint(root).shape.encoder.norm_eps == 1e-5


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no model_type": ({"model_type": None}, "model_type is missing"),
    "another encoder": ({"model_type": "bert"}, "model_type is 'bert'"),
    "another activation": ({"hidden_activation": "gelu_new"}, "hidden_activation is 'gelu_new'"),
    "attention bias": ({"attention_bias": True}, "attention_bias must be false"),
    "MLP bias": ({"mlp_bias": True}, "mlp_bias must be false"),
    "norm bias": ({"norm_bias": 1}, "norm_bias must be false"),
    "scaled RoPE, transformers 4": ({"rope_scaling": {"type": "linear"}}, "rope_scaling is set"),
    "scaled RoPE, transformers 5": ({"rope_parameters": ropes(rope_type="yarn")}, "rope_type is 'yarn'"),
    "no global theta": ({"global_rope_theta": None}, "global_rope_theta is missing"),
    "no local theta": ({"local_rope_theta": None}, "local_rope_theta is missing"),
    "no sliding RoPE": (
        {"rope_parameters": {FULL: {"rope_theta": 160000.0}}},
        "rope_parameters.sliding_attention is missing",
    ),
    "RoPE without theta": ({"rope_parameters": {FULL: {}, SLIDING: {}}}, "full_attention.rope_theta is missing"),
    "RoPE as a list": ({"rope_parameters": [1]}, "rope_parameters must be an object"),
    "theta as text": ({"global_rope_theta": "160000"}, "global_rope_theta must be a finite number"),
    "theta as a bool": ({"local_rope_theta": True}, "local_rope_theta must be a finite number"),
    "theta beyond a float32": ({"global_rope_theta": 1e39}, "global_rope_theta"),
    "theta below zero": ({"local_rope_theta": -1.0}, "local_rope_theta is out of range"),
    "eps below a float32": ({"norm_eps": 1e-60}, "norm_eps is out of range"),
    "layer types too short": ({"layer_types": TYPES[:4]}, "layer_types lists 4 layers, but num_hidden_layers is 5"),
    "layer types that disagree with the number": (
        {"layer_types": [FULL, SLIDING, FULL, SLIDING, FULL]},
        "layer_types is not one global layer in every 3",
    ),
    "layer types in no pattern": (
        {"layer_types": [FULL, SLIDING, FULL, FULL, SLIDING], "global_attn_every_n_layers": None},
        "layer_types is not one global layer in every",
    ),
    "layer types that begin sliding": (
        {"layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL], "global_attn_every_n_layers": None},
        "layer_types is not",
    ),
    "layer types all sliding": (
        {"layer_types": [SLIDING] * 5, "global_attn_every_n_layers": None},
        "layer_types is not",
    ),
    "an unknown layer type": ({"layer_types": [*TYPES[:4], "chunked"]}, "layer_types holds 'chunked'"),
    "layer types as text": ({"layer_types": "full"}, "layer_types must be a list"),
    "neither number nor layer types": ({"global_attn_every_n_layers": None}, "global_attn_every_n_layers is missing"),
    "a zero number": ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers"),
    "a zero number beside layer types": ({"global_attn_every_n_layers": 0, "layer_types": TYPES}, "layer_types"),
    "no width": ({"hidden_size": None}, "hidden_size is missing"),
    "width as a float": ({"hidden_size": 64.0}, "hidden_size must be an integer"),
    "width as a bool": ({"hidden_size": True}, "hidden_size must be an integer"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers is out of range"),
    "a window beyond a u32": ({"local_attention": 2**40}, "local_attention is out of range"),
    "positions beyond a u32": ({"max_position_embeddings": 2**40}, "max_position_embeddings is out of range"),
    "layers that are not there": ({"num_hidden_layers": 6}, "tensor encoder.layers.5.attn_norm.weight is missing"),
    "a vocabulary of other size": ({"vocab_size": 961}, "tok_embeddings.weight has shape (960, 64), not (961, 64)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_config_that_is_not_understood_is_refused(name: str, checkpoint: Callable[..., Path]):
    root = checkpoint()
    fields, fragment = REFUSED[name]
    set_fields(root / ENCODER, **fields)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(root)
    assert fragment in error.value.message
    assert error.value.where is not None and error.value.where.startswith(str(root))


# -- rl_agent_config.json --------------------------------------------------------------------------------------------

DEFAULTS = ["head_layers", "max_len", "head_max_len", "temperature", "temperature_by_options"]


def test_absent_agent_fields_have_the_converters_defaults(checkpoint: Callable[..., Path]):
    root = checkpoint("tiny-multilingual")
    set_fields(root / AGENT, **dict.fromkeys(DEFAULTS))
    read = read_checkpoint(root)
    assert read.shape.limits == Limits(max_len=512, head_max_len=192)
    assert read.shape.head.layers == 2
    assert (list(read.agent.temperature), read.agent.temperature_by_options) == ([1.0, 1.0, 1.0], {})


AGENT_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "two temperatures": ({"temperature": [1.0, 1.0]}, "temperature must be a list of 3 numbers"),
    "temperature as a number": ({"temperature": 1.0}, "temperature must be a list of 3 numbers"),
    "temperature of text": ({"temperature": [1.0, "1", 1.0]}, "temperature[1] must be a finite number"),
    "temperature beyond a float32": ({"temperature": [1.0, 1.0, 1e39]}, "temperature[2] must be a finite number"),
    "buckets as a list": ({"temperature_by_options": [1.0]}, "temperature_by_options must be an object"),
    "bucket of text": ({"temperature_by_options": {"noul:2": "1"}}, "temperature_by_options.noul:2 must be"),
    "bucket beyond a float32": ({"temperature_by_options": {"noul:2": -1e39}}, "temperature_by_options.noul:2 must be"),
    "max_len as text": ({"max_len": "512"}, "max_len must be an integer"),
    "max_len 0": ({"max_len": 0}, "max_len is out of range"),
    "negative head_max_len": ({"head_max_len": -1}, "head_max_len is out of range"),
    "negative head layers": ({"head_layers": -1}, "head_layers is out of range"),
    "head layers that are not there": ({"head_layers": 2}, "tensor head.layers.1.norm1.weight is missing"),
    "head layers left over": ({"head_layers": 0}, "tensor head.layers.0."),
    "act costs as a list": ({"act_costs": ["a"]}, "act_costs must be an object"),
    "an act class too many": ({"act_costs": {"a": 1, "b": 2, "c": 3}}, "act_head.2.weight has shape"),
    "another option layout": ({"option_layout": "parallel"}, "option_layout is 'parallel'"),
}


@pytest.mark.parametrize("name", AGENT_REFUSED)
def test_an_agent_config_that_is_not_understood_is_refused(name: str, checkpoint: Callable[..., Path]):
    root = checkpoint()
    fields, fragment = AGENT_REFUSED[name]
    set_fields(root / AGENT, **fields)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(root)
    assert fragment in error.value.message
