"""Does a kernel compute here what it says? Asked with small products before any weight is given to it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from layactl.core.arithmetic import Kernels, Linear
from layactl.core.weights import FloatArray
from layactl.errors import first_line

# Largest error of a product, relative to the largest exact value, by what its operands are rounded to.
_TOLERANCE = {"f32": 2e-6, "bf16": 2e-2}
# Rows and widths that fill no register block evenly, and a depth that a reduction may be split over.
_SHAPES = ((1, 96, 80), (33, 96, 80), (70, 1152, 64))


def flaw(kernels: Kernels) -> str | None:
    """Why these kernels cannot be trusted on this machine, None where nothing speaks against them."""
    try:
        errors = [error(kernels, *shape) for error in (_linear_error, _mlp_error) for shape in _SHAPES]
    except (RuntimeError, AttributeError, NotImplementedError) as problem:
        return f"torch cannot run them here: {first_line(problem):.120}"
    # Not `max`, which loses a NaN behind a number.
    if wrong := [error for error in errors if not error <= _TOLERANCE[kernels.precision]]:
        return f"their products are off by {wrong[0]:.1g} here, which is not {kernels.precision}"
    return None


def _linear_error(kernels: Kernels, rows: int, width: int, outputs: int) -> float:
    x, weight, bias = _numbers((rows, width), (outputs, width), (outputs,))
    exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias
    return _error(kernels, kernels.make_linear(weight.copy(), bias.copy()), x, exact)


def _mlp_error(kernels: Kernels, rows: int, width: int, outputs: int) -> float:
    x, up, down = _numbers((rows, width), (2 * outputs, width), (width, outputs))
    up /= np.float32(math.sqrt(width))
    inner, gate = np.split(x.astype(np.float64) @ up.astype(np.float64).T, 2, axis=1)
    gelu = 0.5 * inner * (1.0 + np.vectorize(math.erf)(inner / math.sqrt(2.0)))
    return _error(kernels, kernels.make_gated_mlp(up.copy(), down.copy()), x, (gelu * gate) @ down.T.astype(np.float64))


def _numbers(*shapes: tuple[int, ...]) -> list[FloatArray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


def _error(kernels: Kernels, function: Linear, x: FloatArray, exact: npt.NDArray[np.float64]) -> float:
    """Largest |found - exact| over the largest |exact|, the exact one in double."""
    with torch.inference_mode():
        found = function(kernels.tensor(x)).cpu().double().numpy()
    return float(np.abs(found - exact).max() / np.abs(exact).max())
