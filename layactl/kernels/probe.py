"""Does a kernel compute here what it says? Asked with small products before any weight is given to it."""

from __future__ import annotations

import numpy as np
import torch

from layactl.core.arithmetic import Kernels

# Largest error of a product, relative to the largest exact value, by what its operands are rounded to.
_TOLERANCE = {"f32": 2e-6, "bf16": 2e-2, "int8": 5e-2}
# Rows and widths that fill no register block evenly, and a depth that a reduction may be split over.
_SHAPES = ((1, 96, 80), (33, 96, 80), (70, 1152, 64))


def flaw(kernels: Kernels) -> str | None:
    """Why these kernels cannot be trusted on this machine, None where nothing speaks against them."""
    try:
        error = max(_error(kernels, *shape) for shape in _SHAPES)
    except (RuntimeError, AttributeError, NotImplementedError) as problem:
        return f"torch cannot run them here: {str(problem).splitlines()[0]:.120}"
    if not error <= _TOLERANCE[kernels.precision]:
        return f"their products are off by {error:.1g} here, which is not {kernels.precision}"
    return None


def _error(kernels: Kernels, rows: int, width: int, outputs: int) -> float:
    """Largest |product - exact| over the largest |exact|, the exact one in double."""
    generator = np.random.default_rng(0)
    x, weight, bias = (
        generator.standard_normal(shape).astype(np.float32) for shape in ((rows, width), (outputs, width), outputs)
    )
    with torch.inference_mode():
        found = kernels.make_linear(weight.copy(), bias.copy())(kernels.tensor(x)).cpu().double().numpy()
    exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias
    return float(np.abs(found - exact).max() / np.abs(exact).max())
