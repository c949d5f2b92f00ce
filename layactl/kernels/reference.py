"""Plain torch float32: the arithmetic every other kernel is measured against."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from layactl.core.weights import FloatArray, Linear


class ReferenceKernels:
    """Implements `kernels.interface.Kernels` with `torch.nn.functional.linear`."""

    name = "reference"
    precision = "f32"

    def make_linear(self, weight: FloatArray, bias: FloatArray | None) -> Linear:
        weight_tensor = torch.from_numpy(weight)
        bias_tensor = None if bias is None else torch.from_numpy(bias)
        return lambda x: F.linear(x, weight_tensor, bias_tensor)
