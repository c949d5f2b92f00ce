"""Sequences -> raw outputs: the forward pass, one sequence at a time (plan `sequential`)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from layactl.core.encoder import Encoder
from layactl.core.model_shape import ModelShape
from layactl.core.weights import Weights
from layactl.kernels.interface import Kernels
from layactl.layouts.interface import Layout, RawOutput, TokenSequence


class SequentialPass:
    """Runs each sequence on its own, so that no question can influence another.

    plan, kernels, precision: what answers report in `runtime`.
    """

    plan = "sequential"

    def __init__(self, weights: Weights, shape: ModelShape, layout: Layout, kernels: Kernels) -> None:
        self.kernels = kernels.name
        self.precision = kernels.precision
        self._encode = Encoder(weights, shape.encoder, kernels.make_linear)
        self._head = layout.build_head(weights, shape, kernels.make_linear)

    def run(self, sequences: list[TokenSequence], stop: Callable[[], None]) -> list[RawOutput]:
        """Outputs in the order of the sequences. `stop` is called before each and may raise to end the run."""
        outputs = []
        with torch.inference_mode():
            for sequence in sequences:
                stop()
                outputs.append(self._head(self._encode(sequence.ids), sequence))
        return outputs
