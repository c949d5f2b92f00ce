"""Which type each tensor is stored in, and how its values get there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from layactl.core.weights import FloatArray
from layactl.gguf_file.llama_cpp_names import TYPE_EMBEDDINGS

_TYPES = gguf.GGMLQuantizationType
_F32, _F16 = _TYPES.F32, _TYPES.F16
_ALWAYS_F32 = ("_norm.weight", TYPE_EMBEDDINGS)


@dataclass(frozen=True)
class Recipe:
    """kind: type of the 2-D weights; keep_wide: tensors (by prefix) stored in F16 whatever `kind` is."""

    name: str
    kind: gguf.GGMLQuantizationType
    file_type: gguf.LlamaFileType
    keep_wide: tuple[str, ...] = ()

    def type_of(self, name: str, shape: tuple[int, ...]) -> gguf.GGMLQuantizationType:
        """1-D tensors, norms and everything that is no `.weight` stay F32; rows that do not fill blocks stay F16."""
        if len(shape) == 1 or name.endswith(_ALWAYS_F32) or not name.endswith(".weight"):
            return _F32
        if name.startswith(self.keep_wide):
            return _F16
        return self.kind if shape[-1] % gguf.GGML_QUANT_SIZES[self.kind][0] == 0 else _F16

    @property
    def quantizes(self) -> bool:
        return gguf.GGML_QUANT_SIZES[self.kind][0] > 1


_ALL = (
    Recipe("f32", _F32, gguf.LlamaFileType.ALL_F32),
    Recipe("f16", _F16, gguf.LlamaFileType.MOSTLY_F16),
    Recipe("bf16", _TYPES.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    Recipe("q8_0", _TYPES.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    # The recipe whose accuracy is published (specification, "Converting without Python"): what a single token or a
    # single option hangs on stays wide.
    Recipe(
        "q8_0-mixed",
        _TYPES.Q8_0,
        gguf.LlamaFileType.MOSTLY_Q8_0,
        ("token_embd.", "type_emb.", "scorer.", "cls.", "act_head."),
    ),
)
RECIPES = {recipe.name: recipe for recipe in _ALL}
OUTTYPES = ("f32", "f16", "bf16", "q8_0")
QUANTIZE_RECIPES = ("q8_0-mixed", "q8_0")


def encode(values: FloatArray, kind: gguf.GGMLQuantizationType) -> npt.NDArray[Any]:
    """float32 rows -> stored rows: numpy's rounding for F16, gguf's quantizers for the rest."""
    if kind == _F32:
        return values
    if kind == _F16:
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    with np.errstate(invalid="ignore"):
        return np.asarray(gguf.quants.quantize(values, kind))


def decode(stored: npt.NDArray[Any], kind: gguf.GGMLQuantizationType) -> FloatArray:
    """What a reader gets back from stored rows, float32."""
    return np.asarray(gguf.quants.dequantize(stored, kind), dtype=np.float32)
