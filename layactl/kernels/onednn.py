"""oneDNN products with weights packed once, GELU and gate within them, windows in bands, last rows only."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from layactl.core.arithmetic import Attention, AttentionWeights, Linear
from layactl.core.rope import Rope, pairs_side_by_side
from layactl.core.weights import FloatArray
from layactl.kernels.attention import attend, attend_rows
from layactl.kernels.row_bits import row_bits

# For how many rows the packed form is laid out: any multiple of a register block does, 1 is slow for all others.
_ROWS_HINT = 256


class OneDnnKernels:
    """Implements `core.arithmetic.Kernels` in float32: the products' operands are not rounded."""

    name = "onednn"
    precision = "f32"
    whole_sequences = False
    device = "cpu"
    _operand = torch.float32

    def __init__(self) -> None:
        self.packed_bytes = self.loaded_bytes = 0
        # One function of rows of each size, with the width that it takes, and what their rows come to.
        self._of_rows: dict[tuple[object, ...], tuple[int, Linear]] = {}
        self._row_bits: dict[tuple[int, int], bytes | None] = {}

    def tensor(self, array: FloatArray) -> torch.Tensor:
        return torch.from_numpy(array)

    def row_bits(self, rows: int) -> bytes | None:
        key = rows, torch.get_num_threads()
        if key not in self._row_bits:
            self._row_bits[key] = row_bits(self._of_rows.values(), rows, self._operand)
        return self._row_bits[key]

    def make_linear(self, weight: FloatArray, bias: FloatArray | None) -> Linear:
        product = self._product(weight, bias)
        return lambda x: product(x.to(self._operand)).float()

    def _product(self, weight: FloatArray, bias: FloatArray | None) -> Linear:
        """(T, in) -> (T, out), both in the operands' type."""
        packed, bias_tensor = self._pack(weight), self._held(bias)
        return self._of_row(
            (*weight.shape, bias is None),
            weight.shape[1],
            lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias_tensor, "none", [], ""),
        )

    def _pack(self, weight: FloatArray) -> torch.Tensor:
        self.packed_bytes += weight.size * self._operand.itemsize
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(
            torch.from_numpy(weight).to(self._operand), _ROWS_HINT
        )
        return packed

    def _held(self, bias: FloatArray | None) -> torch.Tensor | None:
        if bias is None:
            return None
        held = torch.from_numpy(bias).to(self._operand)
        self.loaded_bytes += held.nbytes
        return held

    def _of_row(self, kind: tuple[object, ...], width: int, function: Linear) -> Linear:
        self._of_rows.setdefault(kind, (width, function))
        return function

    def make_attention(
        self, weights: AttentionWeights, heads: int, rope: Rope | None = None, half_window: int | None = None
    ) -> Attention:
        qkv_weight = weights.qkv if rope is None else _with_pairs_side_by_side(weights.qkv, heads)
        project = self._product(qkv_weight, weights.qkv_bias)
        out = self._product(weights.out, weights.out_bias)

        def run(x: torch.Tensor, lengths: Sequence[int], rows: Sequence[int] | None = None) -> torch.Tensor:
            tokens, width = x.shape
            qkv = project(x.to(self._operand)).view(tokens, 3, heads, width // heads)
            parts, start = [], 0
            for part in torch.split(qkv, list(lengths)):
                query_key, value = part[:, :2], part[:, 2]
                if rope is not None:
                    # In place where they are float32 already.
                    query_key = rope.rotate_pairs_(query_key.float())
                if rows is None:
                    parts.append(attend(query_key, value, half_window))
                else:
                    end = start + len(part)
                    parts.append(attend_rows(query_key, value, [row - start for row in rows if start <= row < end]))
                    start = end
            return out(parts[0] if len(parts) == 1 else torch.cat(parts))

        return run

    def make_gated_mlp(self, up: FloatArray, down: FloatArray) -> Linear:
        half, width = len(up) // 2, up.shape[1]
        inner, gate = self._pack(up[:half]), self._pack(up[half:])

        def expand(x: torch.Tensor) -> torch.Tensor:
            # GELU and the gate's product work on the float32 sums, before these are rounded and written.
            activated = torch.ops.mkldnn._linear_pointwise(x, inner, None, "gelu", [], "none")
            gated: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, activated, gate, None, "mul")
            return gated

        self._of_row(("gated", half, width), width, expand)
        contract = self._product(down, None)
        return lambda x: contract(expand(x.to(self._operand)))


class OneDnnBf16Kernels(OneDnnKernels):
    """Operands of the products in bfloat16, their sums in float32; residual stream, norms and softmax in float32."""

    name = "onednn-bf16"
    precision = "bf16"
    _operand = torch.bfloat16


def _with_pairs_side_by_side(qkv: FloatArray, heads: int) -> FloatArray:
    """The rows of query and key in the order that `Rope.rotate_pairs_` wants, (3d, d)."""
    width = qkv.shape[1]
    by_head = qkv.reshape(3, heads, -1, width).copy()
    by_head[:2] = by_head[:2, :, pairs_side_by_side(by_head.shape[2])]
    return by_head.reshape(-1, width)
