"""Token ids -> hidden states: the ModernBERT encoder (transformers `ModernBertModel`), one sequence a call.

Pre-norm layers without biases; fused query/key/value projection; GeGLU with the exact (erf) GELU; every
`global_every`-th layer attends to the whole sequence, the others to a window of local_attention tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F

from layactl.core.model_shape import EncoderShape
from layactl.core.rope import Rope
from layactl.core.tensor_table import ENCODER_LAYER, TOKEN_EMBEDDINGS
from layactl.core.weights import MakeLinear, Weights

# Shown (node name, (T, d) float32) at every step of the residual stream; keeps no tensor beyond the call.
Observe: TypeAlias = Callable[[str, torch.Tensor], None]


def unobserved(node: str, hidden: torch.Tensor) -> None:
    """The default `observe`: nobody looks."""


class Encoder:
    """Callable: token ids -> hidden states (T, d) float32.

    observe: shown the nodes "embeddings" (normed), "encoder.N" after layer N, and "encoder.final_norm".
    """

    def __init__(self, weights: Weights, shape: EncoderShape, make_linear: MakeLinear) -> None:
        self._weights = weights
        self._shape = shape
        self._half_window = shape.local_attention // 2
        self._embedding_norm = torch.from_numpy(weights["encoder.embeddings.norm.weight"])
        self._final_norm = torch.from_numpy(weights["encoder.final_norm.weight"])
        self._global_rope = Rope(shape.global_theta, shape.head_dim)
        self._local_rope = Rope(shape.local_theta, shape.head_dim)
        self._layers = [_EncoderLayer(weights, shape, n, make_linear) for n in range(shape.layers)]

    def __call__(self, ids: Sequence[int], observe: Observe = unobserved) -> torch.Tensor:
        hidden = torch.from_numpy(self._weights.rows(TOKEN_EMBEDDINGS, ids))  # (T, d)
        hidden = _layer_norm(hidden, self._embedding_norm, self._shape.norm_eps)
        observe("embeddings", hidden)
        window = _window_mask(len(ids), self._half_window)
        for n, layer in enumerate(self._layers):
            if self._shape.is_global(n):
                hidden = layer(hidden, self._global_rope, None)
            else:
                hidden = layer(hidden, self._local_rope, window)
            observe(f"encoder.{n}", hidden)
        hidden = _layer_norm(hidden, self._final_norm, self._shape.norm_eps)
        observe("encoder.final_norm", hidden)
        return hidden


class _EncoderLayer:
    def __init__(self, weights: Weights, shape: EncoderShape, n: int, make_linear: MakeLinear) -> None:
        prefix = ENCODER_LAYER.format(n=n)
        self._heads, self._head_dim, self._eps = shape.heads, shape.head_dim, shape.norm_eps
        self._attn_norm = None if n == 0 else torch.from_numpy(weights[prefix + "attn_norm.weight"])
        self._qkv = make_linear(weights[prefix + "attn.Wqkv.weight"], None)
        self._attn_out = make_linear(weights[prefix + "attn.Wo.weight"], None)
        self._mlp_norm = torch.from_numpy(weights[prefix + "mlp_norm.weight"])
        self._up = make_linear(weights[prefix + "mlp.Wi.weight"], None)
        self._down = make_linear(weights[prefix + "mlp.Wo.weight"], None)

    def __call__(self, hidden: torch.Tensor, rope: Rope, mask: torch.Tensor | None) -> torch.Tensor:
        tokens, width = hidden.shape
        normed = hidden if self._attn_norm is None else _layer_norm(hidden, self._attn_norm, self._eps)
        qkv = self._qkv(normed).view(tokens, 3, self._heads, self._head_dim)  # (T, 3, H, d/H)
        query, key, value = qkv.permute(1, 2, 0, 3).unsqueeze(1)  # 3 x (1, H, T, d/H)
        attended = F.scaled_dot_product_attention(rope.rotate(query), rope.rotate(key), value, attn_mask=mask)
        hidden = hidden + self._attn_out(attended.squeeze(0).transpose(0, 1).reshape(tokens, width))
        inner, gate = self._up(_layer_norm(hidden, self._mlp_norm, self._eps)).chunk(2, dim=-1)  # (T, f) each
        return hidden + self._down(F.gelu(inner) * gate)


def _window_mask(tokens: int, half_window: int) -> torch.Tensor | None:
    """(T, T) bool, True where key j is visible to query i; None where every key is."""
    if tokens - 1 <= half_window:
        return None
    position = torch.arange(tokens)
    return (position[:, None] - position[None, :]).abs() <= half_window


def _layer_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(hidden, weight.shape, weight, None, eps)
