"""Rotary position embeddings as transformers computes them for ModernBERT (float32 tables, rotate-half form)."""

from __future__ import annotations

import torch

_BLOCK = 512


class Rope:
    """cos and sin by position, (positions, head_dim) float32 each.

    The tables grow with the longest sequence seen: a file may claim any sequence limit, and only use may cost memory.
    """

    def __init__(self, theta: float, head_dim: int) -> None:
        self._inverse = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))  # (head_dim/2,)
        self._tables = self._compute(_BLOCK)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """(..., T, head_dim) -> the same shape, position t in row t."""
        tokens, width = x.shape[-2:]
        cos, sin = self._tables
        if tokens > len(cos):
            # Replaced as one object, so that threads that grow it at once at worst compute it twice.
            cos, sin = self._tables = self._compute(max(tokens, 2 * len(cos)))
        first, second = x[..., : width // 2], x[..., width // 2 :]
        turned = torch.cat([-second, first], dim=-1)
        return x * cos[:tokens] + turned * sin[:tokens]

    def _compute(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        # Block by block: torch splits a long tensor between threads, and the elements at a seam can take another code
        # path with another last digit.
        blocks = []
        for start in range(0, length, _BLOCK):
            angles = torch.arange(start, start + _BLOCK, dtype=torch.float32)[:, None] * self._inverse
            blocks.append((angles.cos(), angles.sin()))
        cos, sin = (torch.cat(part) for part in zip(*blocks, strict=True))
        return torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1)
