"""core.tensor_table and core.model_shape: every tensor once, and shapes that no forward pass could use are named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from layactl.checkpoint.folder import read_checkpoint
from layactl.core.model_shape import EncoderShape, HeadShape, Limits, ModelShape, shape_problem
from layactl.core.tensor_table import UNUSED_TENSORS, tensor_specs

CHECKPOINTS = Path(__file__).parents[2] / "fixtures"


def shape(layers: int, head_layers: int, act_classes: int, hidden: int = 64) -> ModelShape:
    return ModelShape(
        encoder=EncoderShape(960, hidden, layers, 2, 96, 512, 1e-5, 160000.0, 10000.0, 16, 3),
        head=HeadShape(hidden, head_layers, act_classes),
        limits=Limits(192, 96),
    )


SHAPES = {
    "laya-multilingual": shape(22, 2, 4, hidden=768),
    "laya": shape(28, 2, 4, hidden=1024),
    "one layer, no head layers": shape(1, 0, 1),
    "no act head": shape(4, 1, 0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_counts(name: str):
    specs = list(tensor_specs(SHAPES[name]))
    encoder, head = SHAPES[name].encoder, SHAPES[name].head
    # Embeddings and their norm; 6 a layer but for layer 0's norm; the final norm; types; 12 a head layer; the scorer.
    expected = 2 + 6 * encoder.layers - 1 + 1 + 1 + 12 * head.layers + 6 + (4 if head.act_classes else 0)
    assert len(specs) == expected


@pytest.mark.parametrize("name", SHAPES)
def test_names_are_unique_in_both_spellings(name: str):
    specs = list(tensor_specs(SHAPES[name]))
    assert len({spec.checkpoint for spec in specs}) == len({spec.gguf for spec in specs}) == len(specs)
    # gguf refuses names of 64 bytes and more.
    assert max(len(spec.gguf) for spec in specs) < 64


def test_layer_0_has_no_norm_of_its_own():
    names = {spec.gguf for spec in tensor_specs(SHAPES["laya"])}
    assert "blk.0.attn_norm.weight" not in names
    assert "blk.1.attn_norm.weight" in names


def test_the_table_is_the_fixtures_file(family: str):
    data = (CHECKPOINTS / family / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    stored = {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    specs = list(tensor_specs(read_checkpoint(CHECKPOINTS / family).shape))
    assert {spec.checkpoint: spec.shape for spec in specs} | UNUSED_TENSORS == stored


# -- shapes ----------------------------------------------------------------------------------------------------------


def changed(field: str, value: Any) -> ModelShape:
    base = shape(4, 1, 2)
    for part in ("encoder", "head", "limits"):
        if hasattr(getattr(base, part), field):
            return replace(base, **{part: replace(getattr(base, part), **{field: value})})
    raise AssertionError(field)


UNUSABLE = {
    "no vocabulary": ("vocab_size", 0, "vocab_size"),
    "absurd vocabulary": ("vocab_size", 2**24 + 1, "vocab_size"),
    "no layers": ("layers", 0, "num_hidden_layers"),
    "absurd layers": ("layers", 65_537, "num_hidden_layers"),
    "no attention heads": ("heads", 0, "num_attention_heads"),
    "no MLP": ("ffn", 0, "intermediate_size"),
    "no positions": ("context_length", 0, "max_position_embeddings"),
    "positions beyond a u32": ("context_length", 2**32, "max_position_embeddings"),
    "eps zero": ("norm_eps", 0.0, "norm_eps"),
    "eps below a float32": ("norm_eps", 1e-50, "norm_eps"),
    "eps NaN": ("norm_eps", float("nan"), "norm_eps"),
    "eps one": ("norm_eps", 1.0, "norm_eps"),
    "theta zero": ("global_theta", 0.0, "global_rope_theta"),
    "theta infinite": ("local_theta", float("inf"), "local_rope_theta"),
    "theta beyond a float32": ("global_theta", 1e39, "global_rope_theta"),
    "no window": ("local_attention", 0, "local_attention"),
    "a window beyond a u32": ("local_attention", 2**32, "local_attention"),
    "no pattern": ("global_every", 0, "global_attn_every_n_layers"),
    "a pattern beyond a u32": ("global_every", 2**32, "global_attn_every_n_layers"),
    "negative act classes": ("act_classes", -1, "act_costs"),
    "absurd act classes": ("act_classes", 4097, "act_costs"),
    "max_len below its four structural tokens": ("max_len", 3, "max_len"),
    "absurd max_len": ("max_len", 2**20 + 1, "max_len"),
    "no head budget": ("head_max_len", 0, "head_max_len"),
    "absurd head budget": ("head_max_len", 2**20 + 1, "head_max_len"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_shape_names_its_field(name: str):
    field, value, blamed = UNUSABLE[name]
    problem = shape_problem(changed(field, value))
    assert problem is not None
    assert problem[0] == blamed
    assert blamed in problem[1]


@pytest.mark.parametrize("heads", [3, 64], ids=["do not divide", "of odd width"])
def test_encoder_heads_must_divide_the_width_evenly(heads: int):
    problem = shape_problem(changed("heads", heads))
    assert problem == (
        "num_attention_heads",
        f"hidden_size 64 does not divide into {heads} heads of an even width",
    )


def test_head_layers_beyond_any_model_are_unusable():
    base = shape(4, 65_537, 2)
    assert shape_problem(base) == ("head_layers", "head_layers is out of range: 65537 layers")


def test_a_width_the_head_cannot_divide_is_unusable():
    # 200 // 64 = 3 heads in the head, whatever the encoder's 2.
    problem = shape_problem(shape(4, 1, 2, hidden=200))
    assert problem is not None
    assert problem[0] == "hidden_size"


@pytest.mark.parametrize("name", SHAPES)
def test_a_usable_shape_has_no_problem(name: str):
    assert shape_problem(SHAPES[name]) is None


@pytest.mark.parametrize(("hidden", "heads"), [(32, 1), (64, 1), (127, 1), (128, 2), (768, 12), (1024, 16)])
def test_the_head_has_a_head_for_every_64_of_width(hidden: int, heads: int):
    assert HeadShape(hidden, 1, 2).heads == heads
