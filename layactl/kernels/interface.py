"""What a kernel is."""

from __future__ import annotations

from typing import Protocol

from layactl.core.weights import FloatArray, Linear


class Kernels(Protocol):
    """One way to multiply by weights. precision: "f32", "bf16" or "int8", of the products' operands."""

    name: str
    precision: str

    def make_linear(self, weight: FloatArray, bias: FloatArray | None) -> Linear:
        """weight (out, in), bias (out,) -> function (T, in) -> (T, out), float32 in and out."""
        ...
