"""Every tensor of a model: its name in a checkpoint, its name in a GGUF, its shape.

The checkpoint's names are the ones the rest of the code uses. Shapes are numpy order, (rows, columns) of the PyTorch
weight; a GGUF stores the dimensions reversed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from layactl.core.model_shape import ModelShape

TOKEN_EMBEDDINGS = "encoder.embeddings.tok_embeddings.weight"
TYPE_EMBEDDINGS = "type_emb.weight"
ENCODER_LAYER = "encoder.layers.{n}."
HEAD_LAYER = "head.layers.{n}."
ACT_HIDDEN = 256
ACT_FEATURES = 4

# (checkpoint name, GGUF name, shape). V vocabulary, d width, f encoder MLP, q question types, c act classes.
_EMBEDDINGS = (
    (TOKEN_EMBEDDINGS, "token_embd.weight", ("V", "d")),
    ("encoder.embeddings.norm.weight", "token_embd_norm.weight", ("d",)),
)
_ENCODER_LAYER = (
    ("attn_norm.weight", "attn_norm.weight", ("d",)),
    ("attn.Wqkv.weight", "attn_qkv.weight", ("3d", "d")),
    ("attn.Wo.weight", "attn_output.weight", ("d", "d")),
    ("mlp_norm.weight", "ffn_norm.weight", ("d",)),
    ("mlp.Wi.weight", "ffn_up.weight", ("2f", "d")),
    ("mlp.Wo.weight", "ffn_down.weight", ("d", "f")),
)
_AFTER_ENCODER = (
    ("encoder.final_norm.weight", "output_norm.weight", ("d",)),
    (TYPE_EMBEDDINGS, "type_emb.weight", ("q", "d")),
)
_HEAD_LAYER = (
    ("norm1.weight", "attn_norm.weight", ("d",)),
    ("norm1.bias", "attn_norm.bias", ("d",)),
    ("self_attn.in_proj_weight", "attn_qkv.weight", ("3d", "d")),
    ("self_attn.in_proj_bias", "attn_qkv.bias", ("3d",)),
    ("self_attn.out_proj.weight", "attn_output.weight", ("d", "d")),
    ("self_attn.out_proj.bias", "attn_output.bias", ("d",)),
    ("norm2.weight", "ffn_norm.weight", ("d",)),
    ("norm2.bias", "ffn_norm.bias", ("d",)),
    ("linear1.weight", "ffn_up.weight", ("4d", "d")),
    ("linear1.bias", "ffn_up.bias", ("4d",)),
    ("linear2.weight", "ffn_down.weight", ("d", "4d")),
    ("linear2.bias", "ffn_down.bias", ("d",)),
)
_SCORER = (
    ("scorer.0.weight", "scorer.0.weight", ("d",)),
    ("scorer.0.bias", "scorer.0.bias", ("d",)),
    ("scorer.1.weight", "scorer.1.weight", ("d", "d")),
    ("scorer.1.bias", "scorer.1.bias", ("d",)),
    ("scorer.3.weight", "scorer.3.weight", ("1", "d")),
    ("scorer.3.bias", "scorer.3.bias", ("1",)),
)
_ACT_HEAD = (
    ("act_head.0.weight", "act_head.0.weight", ("act", "d+4")),
    ("act_head.0.bias", "act_head.0.bias", ("act",)),
    ("act_head.2.weight", "act_head.2.weight", ("c", "act")),
    ("act_head.2.bias", "act_head.2.bias", ("c",)),
)

# In a checkpoint but never read: the temperatures that count are those of rl_agent_config.json.
UNUSED_TENSORS = {"temperature": (3,)}


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a given model: checkpoint name, GGUF name, shape."""

    checkpoint: str
    gguf: str
    shape: tuple[int, ...]


def tensor_specs(shape: ModelShape) -> Iterator[TensorSpec]:
    """All tensors of a model, in file order; lazily, since a damaged file may claim any number of layers."""
    d = shape.encoder.hidden
    sizes = {
        "V": shape.encoder.vocab_size,
        "d": d,
        "3d": 3 * d,
        "4d": 4 * d,
        "f": shape.encoder.ffn,
        "2f": 2 * shape.encoder.ffn,
        "q": shape.head.question_types,
        "c": shape.head.act_classes,
        "act": ACT_HIDDEN,
        "d+4": d + ACT_FEATURES,
        "1": 1,
    }

    def rows(
        table: tuple[tuple[str, str, tuple[str, ...]], ...], checkpoint_prefix: str = "", gguf_prefix: str = ""
    ) -> Iterator[TensorSpec]:
        for name, gguf, dims in table:
            yield TensorSpec(checkpoint_prefix + name, gguf_prefix + gguf, tuple(sizes[dim] for dim in dims))

    yield from rows(_EMBEDDINGS)
    for n in range(shape.encoder.layers):
        # Layer 0 follows the embedding norm directly and has no norm of its own.
        table = _ENCODER_LAYER[1:] if n == 0 else _ENCODER_LAYER
        yield from rows(table, ENCODER_LAYER.format(n=n), f"blk.{n}.")
    yield from rows(_AFTER_ENCODER)
    for n in range(shape.head.layers):
        yield from rows(_HEAD_LAYER, HEAD_LAYER.format(n=n), f"head.{n}.")
    yield from rows(_SCORER)
    if shape.head.act_classes:
        yield from rows(_ACT_HEAD)
