"""Hidden states -> option logits and act logits (reference `common.DecisionModel.forward`).

Pre-norm transformer layers without RoPE or window, ReLU in their MLP, LayerNorm eps 1e-5 whatever the encoder uses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F

from layactl.core.arithmetic import AttentionWeights, Kernels, Linear
from layactl.core.encoder import Observe, unobserved
from layactl.core.model_shape import HeadShape
from layactl.core.tensor_table import HEAD_LAYER, TYPE_EMBEDDINGS
from layactl.core.weights import Weights
from layactl.layouts.interface import RawOutput, TokenSequence

_EPS = 1e-5


class LayaHead:
    """Callable: hidden states (T, d) float32, which it may change, and their sequences -> a RawOutput each.

    observe: shown the nodes "type_embedding" (the states with it added) and "head.N" after layer N; of the last layer
    possibly only the rows that are read, position 0 and the markers of each sequence.
    """

    def __init__(self, weights: Weights, shape: HeadShape, kernels: Kernels) -> None:
        self._whole = kernels.whole_sequences
        self._type_embeddings = kernels.tensor(weights[TYPE_EMBEDDINGS])  # (types, d)
        self._layers = [_HeadLayer(weights, HEAD_LAYER.format(n=n), shape.heads, kernels) for n in range(shape.layers)]
        self._scorer_norm = _norm(weights, "scorer.0", kernels)
        self._scorer_hidden = _dense(weights, "scorer.1", kernels)
        self._scorer_out = _dense(weights, "scorer.3", kernels)
        self._act = None
        if shape.act_classes:
            self._act = _dense(weights, "act_head.0", kernels), _dense(weights, "act_head.2", kernels)

    def __call__(
        self, hidden: torch.Tensor, sequences: Sequence[TokenSequence], observe: Observe = unobserved
    ) -> list[RawOutput]:
        lengths = [len(sequence.ids) for sequence in sequences]
        starts = accumulate(lengths, initial=0)
        read = [[start + n for n in (0, *sequence.markers)] for start, sequence in zip(starts, sequences, strict=False)]
        for part, sequence in zip(torch.split(hidden, lengths), sequences, strict=True):
            part += self._type_embeddings[sequence.type_id]
        observe("type_embedding", hidden)
        rows = [row for part in read for row in part]
        compact = False
        for n, layer in enumerate(self._layers):
            compact = n == len(self._layers) - 1 and not self._whole
            hidden = layer(hidden, lengths, rows if compact else None)
            observe(f"head.{n}", hidden)
        if not compact:
            hidden = hidden[rows]
        return [self._output(part) for part in torch.split(hidden, [len(part) for part in read])]

    def _output(self, read: torch.Tensor) -> RawOutput:
        """read: (1 + K, d), the states of position 0 and of the K markers."""
        marked = _layer_norm(read[1:], self._scorer_norm)  # (K, d)
        logits = self._scorer_out(F.gelu(self._scorer_hidden(marked))).squeeze(-1)  # (K,)
        act_logits = None
        if self._act is not None:
            first, second = self._act
            features = torch.cat([read[0], _act_features(logits)]).unsqueeze(0)  # (1, d + 4)
            act_logits = second(F.gelu(first(features))).squeeze(0).tolist()
        return RawOutput(logits=logits.tolist(), act_logits=act_logits)


class _HeadLayer:
    """(T, d) -> the same after one layer, or with `rows` only those rows of it."""

    def __init__(self, weights: Weights, prefix: str, heads: int, kernels: Kernels) -> None:
        self._norm1 = _norm(weights, prefix + "norm1", kernels)
        projection, out = prefix + "self_attn.in_proj", prefix + "self_attn.out_proj"
        self._attention = kernels.make_attention(
            AttentionWeights(
                weights[projection + "_weight"],
                weights[projection + "_bias"],
                weights[out + ".weight"],
                weights[out + ".bias"],
            ),
            heads,
        )
        self._norm2 = _norm(weights, prefix + "norm2", kernels)
        self._up = _dense(weights, prefix + "linear1", kernels)
        self._down = _dense(weights, prefix + "linear2", kernels)

    def __call__(self, hidden: torch.Tensor, lengths: Sequence[int], rows: Sequence[int] | None) -> torch.Tensor:
        attended = self._attention(_layer_norm(hidden, self._norm1), lengths, rows)
        hidden = (hidden if rows is None else hidden[rows]) + attended
        return hidden + self._down(self._up(_layer_norm(hidden, self._norm2)).relu_())


def _act_features(logits: torch.Tensor) -> torch.Tensor:
    """[p1, p1 - p2, H / ln max(K, 2), max(K, 2) / 255] of the raw logits at temperature 1; p2 = 0 for one option."""
    probabilities = torch.softmax(logits, -1)
    count = max(len(logits), 2)
    entropy = -(probabilities * torch.log(probabilities.clamp_min(1e-9))).sum() / math.log(count)
    top = torch.topk(F.pad(probabilities, (0, 1)), 2).values
    return torch.stack([top[0], top[0] - top[1], entropy, logits.new_tensor(count / 255.0)])


def _dense(weights: Weights, name: str, kernels: Kernels) -> Linear:
    return kernels.make_linear(weights[name + ".weight"], weights[name + ".bias"])


def _norm(weights: Weights, name: str, kernels: Kernels) -> tuple[torch.Tensor, torch.Tensor]:
    return kernels.tensor(weights[name + ".weight"]), kernels.tensor(weights[name + ".bias"])


def _layer_norm(hidden: torch.Tensor, norm: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    weight, bias = norm
    return F.layer_norm(hidden, weight.shape, weight, bias, _EPS)
