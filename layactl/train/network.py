"""The model as torch trains it: parameters under the checkpoint's names, batches padded to their longest sequence.

The forward pass is that of `core.encoder` and `layouts.laya.head` with gradients, dropout and padding, in whatever
float type the parameters have (reference `common.DecisionModel`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layactl.core.model_shape import EncoderShape, HeadShape, ModelShape
from layactl.core.rope import Rope
from layactl.core.tensor_table import ACT_FEATURES, ACT_HIDDEN

_HEAD_EPS = 1e-5
# What the reference writes into the logits of options that are not there.
NO_OPTION = -1e4


@dataclass(frozen=True)
class Batch:
    """Sequences of one forward pass, padded at the end.

    ids: (N, L) int64; present: (N, L) bool, False on padding; markers: (N, K) int64, positions in the sequence, 0 where
    there is no option; options: (N, K) bool; type_ids: (N,) int64; targets: (N, K) float32, 0 where there is no option.
    """

    ids: Tensor
    present: Tensor
    markers: Tensor
    options: Tensor
    type_ids: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.ids)


class DecisionNetwork(nn.Module):
    """Encoder, type embedding, head layers, marker scorer and act head, uninitialised.

    dropout: of the head layers while training, as the reference has it; the encoder has none.
    """

    def __init__(self, shape: ModelShape, dropout: float) -> None:
        super().__init__()
        width = shape.head.hidden
        self.shape = shape
        self.encoder = EncoderNetwork(shape.encoder)
        self.type_emb = nn.Embedding(shape.head.question_types, width)
        if shape.head.layers:
            self.head = _HeadLayers(shape.head, dropout)
        self.scorer = nn.Sequential(
            nn.LayerNorm(width, _HEAD_EPS), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )
        if shape.head.act_classes:
            self.act_head = nn.Sequential(
                nn.Linear(width + ACT_FEATURES, ACT_HIDDEN), nn.GELU(), nn.Linear(ACT_HIDDEN, shape.head.act_classes)
            )

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Logits (N, K), NO_OPTION where there is no option, and act logits (N, classes), None without an act head."""
        return self.decide(self.encoder(batch.ids, batch.present), batch)

    def decide(self, hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Everything after the encoder. hidden: (N, L, d), the encoder's states."""
        hidden = hidden + self.type_emb(batch.type_ids)[:, None]
        if self.shape.head.layers:
            hidden = self.head(hidden, batch.present)
        at = batch.markers[:, :, None].expand(-1, -1, hidden.size(-1))
        logits = self.scorer(torch.gather(hidden, 1, at)).squeeze(-1)  # (N, K)
        logits = logits.masked_fill(~batch.options, NO_OPTION)
        if not self.shape.head.act_classes:
            return logits, None
        features = act_features(logits.detach(), batch.options)
        return logits, self.act_head(torch.cat([hidden[:, 0], features], dim=-1))


class EncoderNetwork(nn.Module):
    """ModernBERT: token ids (N, L) -> hidden states (N, L, d); rows of padding mean nothing."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = nn.ModuleDict(
            {
                "tok_embeddings": nn.Embedding(shape.vocab_size, shape.hidden),
                "norm": _norm(shape),
            }
        )
        self.layers = nn.ModuleList(_EncoderLayer(shape, n) for n in range(shape.layers))
        self.final_norm = _norm(shape)
        self._ropes = {
            is_global: Rope(theta, shape.head_dim)
            for is_global, theta in ((True, shape.global_theta), (False, shape.local_theta))
        }

    def forward(self, ids: Tensor, present: Tensor) -> Tensor:
        hidden: Tensor = self.embeddings["norm"](self.embeddings["tok_embeddings"](ids))
        everywhere = present[:, None, None, :]  # (N, 1, 1, L): keys that are there
        position = torch.arange(ids.size(1), device=ids.device)
        near = (position[:, None] - position[None, :]).abs() <= self.shape.local_attention // 2
        # A row of padding may see itself: a row that sees nothing would be NaN.
        nearby = (everywhere & near) | torch.eye(ids.size(1), dtype=torch.bool, device=ids.device)
        for n, layer in enumerate(self.layers):
            is_global = self.shape.is_global(n)
            hidden = layer(hidden, everywhere if is_global else nearby, self._ropes[is_global])
        out: Tensor = self.final_norm(hidden)
        return out


class _EncoderLayer(nn.Module):
    def __init__(self, shape: EncoderShape, n: int) -> None:
        super().__init__()
        # Layer 0 follows the embedding norm directly and has no norm of its own.
        self.attn_norm = nn.Identity() if n == 0 else _norm(shape)
        self.attn = _EncoderAttention(shape)
        self.mlp_norm = _norm(shape)
        self.mlp = _GatedMlp(shape)

    def forward(self, hidden: Tensor, visible: Tensor, rope: Rope) -> Tensor:
        hidden = hidden + self.attn(self.attn_norm(hidden), visible, rope)
        out: Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return out


class _EncoderAttention(nn.Module):
    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.Wqkv = nn.Linear(shape.hidden, 3 * shape.hidden, bias=False)
        self.Wo = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor, visible: Tensor, rope: Rope) -> Tensor:
        qkv = _heads(self.Wqkv(x), self.heads)
        (query, key), value = rope.rotate(qkv[:2]), qkv[2]
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        out: Tensor = self.Wo(attended.transpose(1, 2).flatten(2))
        return out


class _GatedMlp(nn.Module):
    """GeGLU: the first half of Wi is activated, the second is the gate."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.Wi = nn.Linear(shape.hidden, 2 * shape.ffn, bias=False)
        self.Wo = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.Wi(x).chunk(2, dim=-1)
        out: Tensor = self.Wo(F.gelu(inner) * gate)
        return out


class _HeadLayers(nn.Module):
    def __init__(self, shape: HeadShape, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_HeadLayer(shape, dropout) for _ in range(shape.layers))

    def forward(self, hidden: Tensor, present: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden, present[:, None, None, :])
        return hidden


class _HeadLayer(nn.Module):
    """torch.nn.TransformerEncoderLayer with norm_first, dropout in the four places where that has it."""

    def __init__(self, shape: HeadShape, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.hidden, _HEAD_EPS)
        self.self_attn = _HeadAttention(shape, dropout)
        self.norm2 = nn.LayerNorm(shape.hidden, _HEAD_EPS)
        self.linear1 = nn.Linear(shape.hidden, 4 * shape.hidden)
        self.linear2 = nn.Linear(4 * shape.hidden, shape.hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        hidden = hidden + self.dropout(self.self_attn(self.norm1(hidden), visible))
        inner = self.dropout(F.relu(self.linear1(self.norm2(hidden))))
        out: Tensor = hidden + self.dropout(self.linear2(inner))
        return out


class _HeadAttention(nn.Module):
    """Multi-head attention under the parameter names of torch.nn.MultiheadAttention."""

    def __init__(self, shape: HeadShape, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * shape.hidden, shape.hidden))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * shape.hidden))
        self.out_proj = nn.Linear(shape.hidden, shape.hidden)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        query, key, value = _heads(F.linear(x, self.in_proj_weight, self.in_proj_bias), self.heads)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout)
        out: Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return out


def act_features(logits: Tensor, options: Tensor) -> Tensor:
    """(N, 4): [p1, p1 - p2, H / ln max(K, 2), max(K, 2) / 255] of the raw logits (N, K); p2 = 0 for one option."""
    probabilities = torch.softmax(logits, -1)
    count = options.sum(-1).clamp(min=2).to(logits.dtype)
    entropy = -(probabilities * torch.log(probabilities.clamp_min(1e-9))).sum(-1) / torch.log(count)
    top = torch.topk(F.pad(probabilities, (0, 1)), 2, dim=-1).values
    return torch.stack([top[:, 0], top[:, 0] - top[:, 1], entropy, count / 255.0], dim=-1)


def _norm(shape: EncoderShape) -> nn.LayerNorm:
    return nn.LayerNorm(shape.hidden, shape.norm_eps, bias=False)


def _heads(qkv: Tensor, heads: int) -> Tensor:
    """(N, L, 3d) -> queries, keys and values, (3, N, H, L, d/H)."""
    return torch.unflatten(qkv, -1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
