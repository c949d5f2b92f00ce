"""Hidden states -> option logits and act logits (reference `common.DecisionModel.forward`).

Pre-norm transformer layers without RoPE or window, ReLU in their MLP, LayerNorm eps 1e-5 whatever the encoder uses.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from layactl.core.encoder import Observe, unobserved
from layactl.core.model_shape import HeadShape
from layactl.core.tensor_table import HEAD_LAYER, TYPE_EMBEDDINGS
from layactl.core.weights import Linear, MakeLinear, Weights
from layactl.layouts.interface import RawOutput, TokenSequence

_EPS = 1e-5


class LayaHead:
    """Callable: hidden states (T, d) float32 and their sequence -> RawOutput.

    observe: shown the nodes "type_embedding" (the states with it added) and "head.N" after layer N.
    """

    def __init__(self, weights: Weights, shape: HeadShape, make_linear: MakeLinear) -> None:
        self._type_embeddings = torch.from_numpy(weights[TYPE_EMBEDDINGS])  # (types, d)
        self._layers = [
            _HeadLayer(weights, HEAD_LAYER.format(n=n), shape.heads, make_linear) for n in range(shape.layers)
        ]
        self._scorer_norm = _norm(weights, "scorer.0")
        self._scorer_hidden = _dense(weights, "scorer.1", make_linear)
        self._scorer_out = _dense(weights, "scorer.3", make_linear)
        self._act = None
        if shape.act_classes:
            self._act = _dense(weights, "act_head.0", make_linear), _dense(weights, "act_head.2", make_linear)

    def __call__(self, hidden: torch.Tensor, sequence: TokenSequence, observe: Observe = unobserved) -> RawOutput:
        hidden = hidden + self._type_embeddings[sequence.type_id]
        observe("type_embedding", hidden)
        for n, layer in enumerate(self._layers):
            hidden = layer(hidden)
            observe(f"head.{n}", hidden)
        marked = _layer_norm(hidden[sequence.markers], self._scorer_norm)  # (K, d)
        logits = self._scorer_out(F.gelu(self._scorer_hidden(marked))).squeeze(-1)  # (K,)
        act_logits = None
        if self._act is not None:
            first, second = self._act
            features = torch.cat([hidden[0], _act_features(logits)]).unsqueeze(0)  # (1, d + 4)
            act_logits = second(F.gelu(first(features))).squeeze(0).tolist()
        return RawOutput(logits=logits.tolist(), act_logits=act_logits)


class _HeadLayer:
    def __init__(self, weights: Weights, prefix: str, heads: int, make_linear: MakeLinear) -> None:
        self._heads = heads
        self._norm1 = _norm(weights, prefix + "norm1")
        in_proj = prefix + "self_attn.in_proj"
        self._qkv = make_linear(weights[in_proj + "_weight"], weights[in_proj + "_bias"])
        self._out = _dense(weights, prefix + "self_attn.out_proj", make_linear)
        self._norm2 = _norm(weights, prefix + "norm2")
        self._up = _dense(weights, prefix + "linear1", make_linear)
        self._down = _dense(weights, prefix + "linear2", make_linear)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        tokens, width = hidden.shape
        qkv = self._qkv(_layer_norm(hidden, self._norm1))  # (T, 3d)
        query, key, value = qkv.view(tokens, 3, self._heads, -1).permute(1, 2, 0, 3).unsqueeze(1)  # 3 x (1, H, T, d/H)
        attended = F.scaled_dot_product_attention(query, key, value)
        hidden = hidden + self._out(attended.squeeze(0).transpose(0, 1).reshape(tokens, width))
        return hidden + self._down(F.relu(self._up(_layer_norm(hidden, self._norm2))))


def _act_features(logits: torch.Tensor) -> torch.Tensor:
    """[p1, p1 - p2, H / ln max(K, 2), max(K, 2) / 255] of the raw logits at temperature 1; p2 = 0 for one option."""
    probabilities = torch.softmax(logits, -1)
    count = max(len(logits), 2)
    entropy = -(probabilities * torch.log(probabilities.clamp_min(1e-9))).sum() / math.log(count)
    top = torch.topk(F.pad(probabilities, (0, 1)), 2).values
    return torch.stack([top[0], top[0] - top[1], entropy, torch.tensor(count / 255.0)])


def _dense(weights: Weights, name: str, make_linear: MakeLinear) -> Linear:
    return make_linear(weights[name + ".weight"], weights[name + ".bias"])


def _norm(weights: Weights, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(weights[name + ".weight"]), torch.from_numpy(weights[name + ".bias"])


def _layer_norm(hidden: torch.Tensor, norm: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    weight, bias = norm
    return F.layer_norm(hidden, weight.shape, weight, bias, _EPS)
