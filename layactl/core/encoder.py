"""Token ids -> hidden states: the ModernBERT encoder (transformers `ModernBertModel`).

Pre-norm layers without biases; fused query/key/value projection; GeGLU with the exact (erf) GELU; every
`global_every`-th layer attends to the whole sequence, the others to a window of local_attention tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeAlias

import torch
import torch.nn.functional as F

from layactl.core.arithmetic import AttentionWeights, Kernels
from layactl.core.model_shape import EncoderShape
from layactl.core.rope import Rope
from layactl.core.tensor_table import ENCODER_LAYER, TOKEN_EMBEDDINGS
from layactl.core.weights import Weights

# Shown (node name, (T, d) float32) at every step of the residual stream; keeps no tensor beyond the call.
Observe: TypeAlias = Callable[[str, torch.Tensor], None]


def unobserved(node: str, hidden: torch.Tensor) -> None:
    """The default `observe`: nobody looks."""


class Encoder:
    """Callable: token ids of one sequence or several -> hidden states (T, d) float32, one sequence after the other.

    observe: shown the nodes "embeddings" (normed), "encoder.N" after layer N, and "encoder.final_norm".
    """

    def __init__(self, weights: Weights, shape: EncoderShape, kernels: Kernels) -> None:
        self._weights = weights
        self._eps = shape.norm_eps
        self._tensor = kernels.tensor
        self._embedding_norm = kernels.tensor(weights["encoder.embeddings.norm.weight"])
        self._final_norm = kernels.tensor(weights["encoder.final_norm.weight"])
        global_rope, local_rope = (Rope(theta, shape.head_dim) for theta in (shape.global_theta, shape.local_theta))
        self._layers = [
            _EncoderLayer(weights, shape, n, kernels, global_rope if shape.is_global(n) else local_rope)
            for n in range(shape.layers)
        ]

    def __call__(self, sequences: Sequence[Sequence[int]], observe: Observe = unobserved) -> torch.Tensor:
        lengths = [len(ids) for ids in sequences]
        # A copy of the rows, so the layers may add to it in place.
        hidden = self._tensor(self._weights.rows(TOKEN_EMBEDDINGS, list(chain.from_iterable(sequences))))  # (T, d)
        hidden = _layer_norm(hidden, self._embedding_norm, self._eps)
        observe("embeddings", hidden)
        for n, layer in enumerate(self._layers):
            hidden = layer(hidden, lengths)
            observe(f"encoder.{n}", hidden)
        hidden = _layer_norm(hidden, self._final_norm, self._eps)
        observe("encoder.final_norm", hidden)
        return hidden


class _EncoderLayer:
    """The residual stream (T, d) -> the same after one layer, in place."""

    def __init__(self, weights: Weights, shape: EncoderShape, n: int, kernels: Kernels, rope: Rope) -> None:
        prefix = ENCODER_LAYER.format(n=n)
        self._eps = shape.norm_eps
        self._attn_norm = None if n == 0 else kernels.tensor(weights[prefix + "attn_norm.weight"])
        self._attention = kernels.make_attention(
            AttentionWeights(weights[prefix + "attn.Wqkv.weight"], None, weights[prefix + "attn.Wo.weight"], None),
            shape.heads,
            rope,
            None if shape.is_global(n) else shape.local_attention // 2,
        )
        self._mlp_norm = kernels.tensor(weights[prefix + "mlp_norm.weight"])
        self._mlp = kernels.make_gated_mlp(weights[prefix + "mlp.Wi.weight"], weights[prefix + "mlp.Wo.weight"])

    def __call__(self, hidden: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        normed = hidden if self._attn_norm is None else _layer_norm(hidden, self._attn_norm, self._eps)
        hidden += self._attention(normed, lengths)
        hidden += self._mlp(_layer_norm(hidden, self._mlp_norm, self._eps))
        return hidden


def _layer_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(hidden, weight.shape, weight, None, eps)
