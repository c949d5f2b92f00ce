"""How the forward pass gets at weights, whatever file they come from and whatever kernel multiplies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float32]


class Weights(Protocol):
    """Tensors by their checkpoint names (core.tensor_table)."""

    def __getitem__(self, name: str) -> FloatArray:
        """The whole tensor as a new float32 array the caller owns."""
        ...

    def rows(self, name: str, ids: Sequence[int]) -> FloatArray:
        """Rows of a 2-D tensor, (len(ids), columns) float32, reading only those rows."""
        ...


def bfloat16_to_float32(bits: npt.NDArray[np.uint16]) -> FloatArray:
    """Exact: a bfloat16 is the upper half of a float32."""
    wide: npt.NDArray[Any] = bits.astype(np.uint32) << 16
    return wide.view(np.float32)


def float16_to_float32(values: npt.NDArray[np.float16]) -> FloatArray:
    """Exact. By torch, which converts vectors on all threads; numpy goes value by value, three times as slowly."""
    import torch
    from torch.utils.dlpack import from_dlpack

    try:
        stored = from_dlpack(values)
    except (BufferError, TypeError):  # an older numpy or torch, between which read-only arrays cannot be handed over
        return values.astype(np.float32)
    wide = np.empty(values.shape, dtype=np.float32)
    torch.from_numpy(wide).copy_(stored)
    return wide
