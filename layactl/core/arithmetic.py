"""What a kernel is: how the blocks of the forward pass are computed, whatever the model's shape and layout.

The encoder and the heads say which blocks there are and in which order; a kernel says how each is computed. They take
float32 tensors and return what is added to float32 ones; what a kernel rounds in between is its `precision`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from layactl.core.weights import FloatArray

if TYPE_CHECKING:
    from torch import Tensor

    from layactl.core.rope import Rope

# (T, in) -> (T, out), float32; never changes its input.
Linear: TypeAlias = "Callable[[Tensor], Tensor]"


@dataclass(frozen=True)
class AttentionWeights:
    """qkv: (3d, d), rows of query, key and value, head by head in each; out: (d, d); biases (3d,), (d,) or None."""

    qkv: FloatArray
    qkv_bias: FloatArray | None
    out: FloatArray
    out_bias: FloatArray | None


class Attention(Protocol):
    """Self-attention from its input to its output projection, each sequence within itself."""

    def __call__(self, x: Tensor, lengths: Sequence[int], rows: Sequence[int] | None = None) -> Tensor:
        """x: (T, d) normed states of sequences of these lengths, one after the other; rows: the rows of x whose output
        is wanted, in order (None: all). Returns (T or len(rows), d).
        """
        ...


class Kernels(Protocol):
    """One way to compute.

    name: as --kernels knows it; precision: "f32", "bf16" or "int8", of the products' operands; device: of torch, where
    all tensors are; whole_sequences: even where few rows are read, all are computed, as the reference does;
    packed_bytes, loaded_bytes: weights held so far in a form of its own, and as plain arrays.
    """

    name: str
    precision: str
    device: str
    whole_sequences: bool
    packed_bytes: int
    loaded_bytes: int

    def tensor(self, array: FloatArray) -> Tensor:
        """The array on the device; it may share its memory."""
        ...

    def row_bits(self, rows: int) -> bytes | None:
        """What a row of a product of so many rows comes to; where two counts give the same, a row has the same bits
        under both. None: it depends on the row's place, or nothing is known.
        """
        ...

    def make_linear(self, weight: FloatArray, bias: FloatArray | None) -> Linear:
        """weight (out, in), bias (out,): x W^T + b."""
        ...

    def make_attention(
        self, weights: AttentionWeights, heads: int, rope: Rope | None = None, half_window: int | None = None
    ) -> Attention:
        """softmax(q k^T / sqrt(d / heads)) v. rope: turns q and k by position; half_window: a token attends to those at
        most so far from it (None: to the whole sequence).
        """
        ...

    def make_gated_mlp(self, up: FloatArray, down: FloatArray) -> Linear:
        """GeGLU: gelu(x A^T) * (x B^T), times down^T. up: (2f, d), A above B; down: (d, f); gelu with erf."""
        ...
