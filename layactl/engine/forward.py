"""Sequences -> raw outputs: the forward pass, by one of two plans.

sequential: none can influence another, bitwise: each on its own, or together where that shows to change nothing
(`groups`). packed: the sequences of a request one behind the other through the linear layers, attention within each;
groups of at most 2,048 tokens (specification, Plans).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from layactl.core.arithmetic import Kernels
from layactl.core.decision_spec import SEQUENTIAL
from layactl.core.encoder import Encoder
from layactl.core.model_shape import ModelShape
from layactl.core.weights import FloatArray, Weights
from layactl.engine.groups import Group, alone_or_shared, packed
from layactl.layouts.interface import Layout, RawOutput, TokenSequence

PACKED_TOKENS = 2048


class ForwardPass:
    """A model's weights, ready to compute. plan, kernels, precision, device: what answers report in `runtime`."""

    def __init__(
        self, weights: Weights, shape: ModelShape, layout: Layout, kernels: Kernels, plan: str = SEQUENTIAL
    ) -> None:
        self.plan = plan
        self.kernels = kernels.name
        self.precision = kernels.precision
        self.device = kernels.device
        self._encode = Encoder(weights, shape.encoder, kernels)
        self._head = layout.build_head(weights, shape, kernels)
        self._kernels = kernels

    def weight_bytes(self) -> dict[str, int]:
        """Bytes of the products' weights: "packed" in the kernels' own form, "loaded" as plain arrays."""
        return {"packed": self._kernels.packed_bytes, "loaded": self._kernels.loaded_bytes}

    def run(
        self, sequences: Sequence[TokenSequence], stop: Callable[[], None], plan: str | None = None
    ) -> list[RawOutput]:
        """Outputs in the order of the sequences. `stop` is called before each group and may raise to end the run.

        plan: instead of the model's own.
        """
        outputs: dict[int, RawOutput] = {}
        with torch.inference_mode():
            for group in self._groups(sequences, plan or self.plan):
                stop()
                chosen = group.sequences(sequences)
                found = self._head(self._encode([sequence.ids for sequence in chosen]), chosen)
                outputs.update(zip(group.indices, found, strict=False))
        return [outputs[n] for n in range(len(sequences))]

    def _groups(self, sequences: Sequence[TokenSequence], plan: str) -> Iterator[Group]:
        if plan == SEQUENTIAL:
            return alone_or_shared(sequences, self._kernels.row_bits)
        return packed(sequences, PACKED_TOKENS)

    def trace(self, sequence: TokenSequence) -> dict[str, FloatArray]:
        """The residual stream of one sequence, node by node in the order of computation, with its outputs.

        (T, d) float32 each, then "logits" (K,) and, with an act head, "act_logits": the bits that `run` computes.
        """
        nodes: dict[str, FloatArray] = {}

        def keep(node: str, hidden: torch.Tensor) -> None:
            nodes[node] = hidden.cpu().numpy().copy()

        with torch.inference_mode():
            (output,) = self._head(self._encode([sequence.ids], keep), [sequence], keep)
        nodes["logits"] = np.array(output.logits, dtype=np.float32)
        if output.act_logits is not None:
            nodes["act_logits"] = np.array(output.act_logits, dtype=np.float32)
        return nodes
