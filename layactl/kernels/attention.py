"""Attention that costs what it needs: a window as bands of rows, each against the keys that it can see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F

# Rows of a band. All are multiplied with BAND + 2 * half_window keys, so a much larger band wastes work, and of smaller
# ones there are more to start.
BAND = 32
# Fewer queries are filled up to so many: MKL multiplies one to three rows in another order with one thread than with
# several (seen on a Zen 4; never with four or more).
MIN_QUERIES = 8
# Most requests of a process are of few lengths; a mask of 1,024 tokens is 0.7 MB.
_KEPT_MASKS = 16


def attend(query_key: torch.Tensor, value: torch.Tensor, half_window: int | None) -> torch.Tensor:
    """One sequence's queries and keys (T, 2, H, d/H), turned already, and values (T, H, d/H) -> (T, d) in the values'
    type, in which the products are made.
    """
    tokens = len(value)
    if half_window is None or tokens <= BAND + 2 * half_window:
        query, key = query_key.to(value.dtype).permute(1, 2, 0, 3).unsqueeze(1)  # 2 x (1, H, T, d/H)
        mask = None if half_window is None else _whole_mask(tokens, half_window, value.dtype)
        attended = _attended(query, key, value.transpose(0, 1).unsqueeze(0), mask)
        return attended.squeeze(0).transpose(0, 1).reshape(tokens, -1)
    return _attend_in_bands(query_key, value, half_window, _band_mask(tokens, half_window, value.dtype))


def attend_rows(query_key: torch.Tensor, value: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """The rows of `attend` without a window: (len(rows), d)."""
    filled = [*rows, *([0] * (MIN_QUERIES - len(rows)))]
    query = query_key[:, 0][filled].to(value.dtype).transpose(0, 1).unsqueeze(0)  # (1, H, R, d/H)
    key = query_key[:, 1].to(value.dtype).transpose(0, 1).unsqueeze(0)  # (1, H, T, d/H)
    attended = _attended(query, key, value.transpose(0, 1).unsqueeze(0), None)
    return attended.squeeze(0).transpose(0, 1).reshape(len(filled), -1)[: len(rows)]


def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """torch's attention over (B, H, T, d/H), the same bits with any number of threads."""
    batch, heads = query.shape[:2]
    if batch * heads == 1:
        # One head alone is one task for torch, which then lets all threads into each of its products and their sums.
        query, key, value = (part.expand(2, -1, -1, -1) for part in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)[:batch]


def _attend_in_bands(
    query_key: torch.Tensor, value: torch.Tensor, half_window: int, mask: torch.Tensor
) -> torch.Tensor:
    """Bands of BAND rows are the batch of one attention call; their keys and values are overlapping views."""
    tokens, heads, width = value.shape
    bands = -(-tokens // BAND)
    keys = BAND + 2 * half_window
    length = bands * BAND + 2 * half_window
    # Room on both sides, so that every band sees as many keys; the mask hides what is none.
    padded = value.new_empty((3, heads, length, width))
    padded[:, :, :half_window] = 0
    padded[:, :, half_window + tokens :] = 0
    padded[:2, :, half_window : half_window + tokens] = query_key.permute(1, 2, 0, 3)
    padded[2, :, half_window : half_window + tokens] = value.transpose(0, 1)
    query = padded[0, :, half_window : half_window + bands * BAND].view(heads, bands, BAND, width).transpose(0, 1)
    strides = (BAND * width, length * width, width, 1)
    key, values = (
        padded.as_strided((bands, heads, keys, width), strides, part * heads * length * width) for part in (1, 2)
    )
    attended = _attended(query, key, values, mask)  # (bands, H, BAND, d/H)
    return attended.transpose(1, 2).reshape(bands * BAND, heads * width)[:tokens]


@lru_cache(maxsize=_KEPT_MASKS)
def _whole_mask(tokens: int, half_window: int, dtype: torch.dtype) -> torch.Tensor | None:
    """(T, T), 0 or -inf; None where every token sees every other."""
    if tokens - 1 <= half_window:
        return None
    position = torch.arange(tokens)
    return _additive((position[:, None] - position[None, :]).abs() <= half_window, dtype)


@lru_cache(maxsize=_KEPT_MASKS)
def _band_mask(tokens: int, half_window: int, dtype: torch.dtype) -> torch.Tensor:
    """(bands, 1, BAND, BAND + 2 half_window), 0 or -inf."""
    bands = -(-tokens // BAND)
    query = torch.arange(bands * BAND).view(bands, BAND, 1)
    first = (torch.arange(bands) * BAND - half_window)[:, None, None]
    key = first + torch.arange(BAND + 2 * half_window)
    visible = ((query - key).abs() <= half_window) & (key >= 0) & (key < tokens)
    # A row behind the end is thrown away, but a row that sees nothing would be NaN.
    return _additive((visible | (query >= tokens)).unsqueeze(1), dtype)


def _additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -math.inf)
