"""Sequences -> raw outputs: the forward pass, one sequence at a time (plan `sequential`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from layactl.core.arithmetic import Kernels
from layactl.core.encoder import Encoder
from layactl.core.model_shape import ModelShape
from layactl.core.weights import FloatArray, Weights
from layactl.layouts.interface import Layout, RawOutput, TokenSequence


class SequentialPass:
    """Runs each sequence on its own, so that no question can influence another.

    plan, kernels, precision: what answers report in `runtime`.
    """

    plan = "sequential"

    def __init__(self, weights: Weights, shape: ModelShape, layout: Layout, kernels: Kernels) -> None:
        self.kernels = kernels.name
        self.precision = kernels.precision
        self._encode = Encoder(weights, shape.encoder, kernels)
        self._head = layout.build_head(weights, shape, kernels)

    def run(self, sequences: list[TokenSequence], stop: Callable[[], None]) -> list[RawOutput]:
        """Outputs in the order of the sequences. `stop` is called before each and may raise to end the run."""
        outputs = []
        with torch.inference_mode():
            for sequence in sequences:
                stop()
                outputs += self._head(self._encode([sequence.ids]), [sequence])
        return outputs

    def trace(self, sequence: TokenSequence) -> dict[str, FloatArray]:
        """The residual stream of one sequence, node by node in the order of computation, with its outputs.

        (T, d) float32 each, then "logits" (K,) and, with an act head, "act_logits": the bits that `run` computes.
        """
        nodes: dict[str, FloatArray] = {}

        def keep(node: str, hidden: torch.Tensor) -> None:
            nodes[node] = hidden.numpy().copy()

        with torch.inference_mode():
            (output,) = self._head(self._encode([sequence.ids], keep), [sequence], keep)
        nodes["logits"] = np.array(output.logits, dtype=np.float32)
        if output.act_logits is not None:
            nodes["act_logits"] = np.array(output.act_logits, dtype=np.float32)
        return nodes
