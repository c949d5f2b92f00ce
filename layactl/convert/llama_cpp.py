"""What turns into the `llama.cpp` dialect, and what cannot: the part that conversions from a checkpoint and from a file
of the laya dialect share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from layactl.convert.llama_cpp_keys import LlamaCppModel, add_llama_cpp_keys
from layactl.core.calibration import TEMPERATURE_MAX, TEMPERATURE_MIN
from layactl.core.model_shape import ModelShape
from layactl.core.tokenizer import EMBEDDED, TokenizerData
from layactl.errors import LayactlError
from layactl.gguf_file import names
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.llama_cpp_names import bucket_name
from layactl.gguf_file.model_file import QUESTION_TYPES
from layactl.gguf_file.reader import GgufFile
from layactl.gguf_file.writer import TensorPlan, write_gguf

Refuse = Callable[[str], LayactlError]


def check_writable(shape: ModelShape, tokenizer: TokenizerData, refuse: Refuse) -> None:
    """Refuse a model that the dialect has no place for. refuse: makes the error from its message."""
    if shape.encoder.heads != shape.head.heads:
        raise refuse(
            f"has {shape.encoder.heads} attention heads in the encoder and {shape.head.heads} in the decision head, "
            "but the llama.cpp dialect has one number for both"
        )
    if tokenizer.family == EMBEDDED:
        raise refuse("carries its tokenizer.json whole, which the llama.cpp dialect has no place for")


def write_llama_cpp(
    path: Path, model: LlamaCppModel, tensors: list[TensorPlan], progress: Callable[[int], None], refuse: Refuse
) -> None:
    """Write a whole file, and prove that its tokenizer reads back as it was."""
    write_gguf(
        path,
        names.LLAMA_CPP_ARCHITECTURE,
        lambda writer: add_llama_cpp_keys(writer, model),
        tensors,
        progress,
    )
    added = sorted(model.tokenizer.added, key=lambda token: token.id)
    if read_model(GgufFile(path)).tokenizer != replace(model.tokenizer, added=added):
        raise refuse(
            "has added tokens or a normalizer that the llama.cpp dialect, which stores no flags, would read otherwise"
        )


def llama_cpp_notes(model: LlamaCppModel, max_len: int) -> Iterator[str]:
    """What the file does not hold, and what stock llama.cpp will do with what it holds. max_len: of the source."""
    yield f"not in the file: the act head (answers have no action) and max_len (give --max-len {max_len} with the file)"
    stored = dict(zip(QUESTION_TYPES, model.temperatures, strict=True)) | dict(model.by_options)
    clamped = [
        f"{bucket_name(name)} {value:g}"
        for name, value in stored.items()
        if not TEMPERATURE_MIN <= value <= TEMPERATURE_MAX
    ]
    if clamped:
        yield (
            f"temperatures are stored raw, and stock llama.cpp applies them as they are, where the reference clamps "
            f"to [{TEMPERATURE_MIN:g}, {TEMPERATURE_MAX:g}]: {', '.join(clamped)}"
        )
    if not model.shape.head.layers:
        yield "stock llama.cpp loads no decision model without head layers; layactl does"
