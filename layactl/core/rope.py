"""Rotary position embeddings as transformers computes them for ModernBERT (float32 tables, rotate-half form)."""

from __future__ import annotations

import torch

_BLOCK = 512


class Rope:
    """Turns queries and keys by position, from tables of cos and sin, float32.

    The tables grow with the longest sequence seen: a file may claim any sequence limit, and only use may cost memory.
    """

    def __init__(self, theta: float, head_dim: int) -> None:
        self._inverse = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))  # (head_dim/2,)
        self._tables = self._compute(_BLOCK)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """(..., T, head_dim) -> the same shape, position t in row t."""
        tokens, width = x.shape[-2:]
        # The tables stay with the CPU, whose sines and cosines are the reference's on every device.
        cos, sin = (table[:tokens].to(x.device) for table in self._for(tokens)[:2])
        first, second = x[..., : width // 2], x[..., width // 2 :]
        turned = torch.cat([-second, first], dim=-1)
        return x * cos + turned * sin

    def rotate_pairs_(self, x: torch.Tensor) -> torch.Tensor:
        """(T, ..., head_dim), the two components of each pair side by side, turned in place: one complex product.

        A pair is (n, n + head_dim / 2) of the rotate-half form; see `pairs_side_by_side`.
        """
        turns = self._for(len(x))[2][: len(x)]  # (T, head_dim/2)
        pairs = torch.view_as_complex(torch.unflatten(x, -1, (-1, 2)))
        pairs.mul_(turns.view(len(x), *([1] * (x.dim() - 2)), -1))
        return x

    def _for(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tables = self._tables
        if tokens > len(tables[0]):
            # Replaced as one object, so that threads that grow it at once at worst compute it twice.
            tables = self._tables = self._compute(max(tokens, 2 * len(tables[0])))
        return tables

    def _compute(self, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """cos and sin, (length, head_dim), and cos + i sin, (length, head_dim/2)."""
        # Block by block: torch splits a long tensor between threads, and the elements at a seam can take another code
        # path with another last digit.
        blocks = []
        for start in range(0, length, _BLOCK):
            angles = torch.arange(start, start + _BLOCK, dtype=torch.float32)[:, None] * self._inverse
            blocks.append((angles.cos(), angles.sin()))
        cos, sin = (torch.cat(part) for part in zip(*blocks, strict=True))
        return torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1), torch.complex(cos, sin)


def pairs_side_by_side(head_dim: int) -> list[int]:
    """The order of a head's components that `rotate_pairs_` wants: 0, head_dim/2, 1, head_dim/2 + 1, ...

    Applied to queries and keys alike it leaves their products as they are.
    """
    half = head_dim // 2
    return [n + part for n in range(half) for part in (0, half)]
