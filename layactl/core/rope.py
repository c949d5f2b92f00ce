"""Rotary position embeddings as transformers computes them for ModernBERT (float32 tables, rotate-half form)."""

from __future__ import annotations

import torch


class Rope:
    """cos and sin for positions 0..length-1, each (length, head_dim) float32."""

    def __init__(self, theta: float, head_dim: int, length: int) -> None:
        inverse = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))  # (head_dim / 2,)
        angles = torch.arange(length, dtype=torch.float32)[:, None] * inverse
        angles = torch.cat([angles, angles], dim=-1)
        self._cos, self._sin = angles.cos(), angles.sin()

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """(..., T, head_dim) -> the same shape, position t in row t."""
        tokens, width = x.shape[-2:]
        first, second = x[..., : width // 2], x[..., width // 2 :]
        turned = torch.cat([-second, first], dim=-1)
        return x * self._cos[:tokens] + turned * self._sin[:tokens]
