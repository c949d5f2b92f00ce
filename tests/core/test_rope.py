"""core.rope: tables that grow with use give the values of tables made at once."""

from __future__ import annotations

import pytest
from torch import arange, cat, equal, float32, randn  # noqa: TID253 - a tensor test


def formula(x, theta: float):
    """transformers' rotate-half RoPE, written out."""
    tokens, width = x.shape[-2:]
    inverse = 1.0 / (theta ** (arange(0, width, 2, dtype=float32) / width))
    angles = cat([arange(tokens, dtype=float32)[:, None] * inverse] * 2, dim=-1)
    turned = cat([-x[..., width // 2 :], x[..., : width // 2]], dim=-1)
    return x * angles.cos() + turned * angles.sin()


@pytest.mark.parametrize("lengths", [(1, 700, 3), (512, 513, 5000), (2000,)], ids=str)
def test_every_length_is_rotated_by_the_formula(lengths):
    from layactl.core.rope import Rope

    rope = Rope(160000.0, 16)
    for length in lengths:
        x = randn(2, length, 16)
        assert equal(rope.rotate(x), formula(x, 160000.0))


def test_a_claimed_limit_costs_nothing_until_it_is_used():
    from layactl.core.rope import Rope

    assert sum(table.numel() for table in Rope(10000.0, 64)._tables) < 2**17
