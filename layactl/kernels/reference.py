"""Plain torch float32: the arithmetic every other kernel is measured against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from layactl.core.arithmetic import Attention, AttentionWeights, Linear
from layactl.core.rope import Rope
from layactl.core.weights import FloatArray


class ReferenceKernels:
    """Implements `core.arithmetic.Kernels` as transformers and torch.nn compute it."""

    name = "reference"
    precision = "f32"
    whole_sequences = True

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.packed_bytes = self.loaded_bytes = 0

    def tensor(self, array: FloatArray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def row_bits(self, rows: int) -> bytes | None:
        return None

    def make_linear(self, weight: FloatArray, bias: FloatArray | None) -> Linear:
        self.loaded_bytes += weight.nbytes + (0 if bias is None else bias.nbytes)
        weight_tensor = self.tensor(weight)
        bias_tensor = None if bias is None else self.tensor(bias)
        return lambda x: F.linear(x, weight_tensor, bias_tensor)

    def make_attention(
        self, weights: AttentionWeights, heads: int, rope: Rope | None = None, half_window: int | None = None
    ) -> Attention:
        project = self.make_linear(weights.qkv, weights.qkv_bias)
        out = self.make_linear(weights.out, weights.out_bias)

        def attend(x: torch.Tensor, lengths: Sequence[int], rows: Sequence[int] | None = None) -> torch.Tensor:
            tokens, width = x.shape
            qkv = project(x).view(tokens, 3, heads, width // heads)
            attended = torch.cat(
                [_attend(part, rope, half_window) for part in torch.split(qkv, list(lengths))]
            )  # (T, d)
            return out(attended) if rows is None else out(attended)[rows]

        return attend

    def make_gated_mlp(self, up: FloatArray, down: FloatArray) -> Linear:
        expand, contract = self.make_linear(up, None), self.make_linear(down, None)

        def mlp(x: torch.Tensor) -> torch.Tensor:
            inner, gate = expand(x).chunk(2, dim=-1)  # (T, f) each
            return contract(F.gelu(inner) * gate)

        return mlp


def _attend(qkv: torch.Tensor, rope: Rope | None, half_window: int | None) -> torch.Tensor:
    """One sequence's (T, 3, H, d/H) -> (T, d)."""
    query, key, value = qkv.permute(1, 2, 0, 3).unsqueeze(1)  # 3 x (1, H, T, d/H)
    if rope is not None:
        query, key = rope.rotate(query), rope.rotate(key)
    mask = None if half_window is None else window_mask(len(qkv), half_window)
    if mask is not None:
        mask = mask.to(qkv.device)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return attended.squeeze(0).transpose(0, 1).reshape(len(qkv), -1)


def window_mask(tokens: int, half_window: int) -> torch.Tensor | None:
    """(T, T) bool, True where key j is visible to query i; None where every key is."""
    if tokens - 1 <= half_window:
        return None
    position = torch.arange(tokens)
    return (position[:, None] - position[None, :]).abs() <= half_window
