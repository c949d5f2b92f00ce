"""Tensors on their way into a file: re-encoded a few rows at a time, noting what the new type could not hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from layactl.convert.recipe import Recipe, decode, encode
from layactl.core.weights import FloatArray
from layactl.errors import LayactlError
from layactl.gguf_file.writer import SLICE_BYTES, TensorPlan


@dataclass
class Fidelity:
    """What the types of a recipe could not hold. inexact: {tensor: largest error}; nonfinite: tensors with NaN or
    infinity in them.
    """

    recipe: Recipe
    inexact: dict[str, float] = field(default_factory=dict)
    nonfinite: list[str] = field(default_factory=list)

    def notes(self, tensors: int) -> Iterator[str]:
        if self.inexact and not self.recipe.quantizes:
            worst = max(self.inexact, key=lambda name: self.inexact[name])
            yield (
                f"{self.recipe.name} cannot hold {len(self.inexact)} of {tensors} tensors exactly "
                f"(largest error {self.inexact[worst]:.3g}, in {worst}); --outtype f32 keeps every weight"
            )
        if self.nonfinite:
            yield f"{self.nonfinite[0]} holds values that are not finite"


@dataclass(frozen=True)
class StoredRows:
    """A tensor as some file stores it. rows: rows start..stop in that type."""

    kind: gguf.GGMLQuantizationType
    rows: Callable[[int, int], npt.NDArray[Any]]


# The exponent bits, all set in infinities and NaN only.
_EXPONENTS: dict[gguf.GGMLQuantizationType, np.uint32 | np.uint16] = {
    gguf.GGMLQuantizationType.F32: np.uint32(0x7F800000),
    gguf.GGMLQuantizationType.F16: np.uint16(0x7C00),
    gguf.GGMLQuantizationType.BF16: np.uint16(0x7F80),
}


def _all_finite(stored: npt.NDArray[Any], kind: gguf.GGMLQuantizationType) -> bool:
    exponent = _EXPONENTS[kind]
    return bool(((stored.view(exponent.dtype) & exponent) != exponent).all())


def plan_tensor(
    name: str,
    shape: tuple[int, ...],
    floats: Callable[[int, int], FloatArray],
    fidelity: Fidelity,
    refuse: Callable[[str, str | None], LayactlError],
    as_is: StoredRows | None = None,
) -> TensorPlan:
    """The plan that writes a tensor in the type its recipe gives it.

    floats: rows start..stop as float32; as_is: its rows as they are stored, for a tensor that is in that type already;
    refuse: makes the error (message, hint) for values the type has no room for.
    """
    kind = fidelity.recipe.type_of(name, shape)

    def slices() -> Iterator[npt.NDArray[Any]]:
        step = max(1, SLICE_BYTES // max(1, 4 * math.prod(shape[1:])))
        for start in range(0, shape[0], step):
            stop = min(start + step, shape[0])
            if as_is is not None and as_is.kind == kind:
                stored = as_is.rows(start, stop)
                _check_finite(_all_finite(stored, kind))
                yield stored
                continue
            exact = floats(start, stop)
            finite = np.isfinite(exact)
            _check_finite(bool(finite.all()))
            stored = encode(exact, kind)
            if stored is not exact:
                _compare(exact[finite], decode(stored, kind)[finite])
            yield stored

    def _check_finite(finite: bool) -> None:
        if finite or name in fidelity.nonfinite:
            return
        if fidelity.recipe.quantizes:
            raise refuse(f"tensor {name} holds values that are not finite", None)
        fidelity.nonfinite.append(name)

    def _compare(exact: FloatArray, back: FloatArray) -> None:
        largest = float(np.abs(back - exact).max(initial=0.0))
        if not math.isfinite(largest):
            raise refuse(f"tensor {name} holds values beyond the range of {kind.name.lower()}", "use --outtype f32")
        if largest:
            fidelity.inexact[name] = max(largest, fidelity.inexact.get(name, 0.0))

    return TensorPlan(name, shape, kind, slices)
