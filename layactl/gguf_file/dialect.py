"""A GGUF -> a model, in whichever of the two dialects it is written."""

from __future__ import annotations

from layactl.gguf_file import laya_dialect, llama_cpp_dialect, names
from layactl.gguf_file.foreign import foreign_error
from layactl.gguf_file.model_file import ModelFile
from layactl.gguf_file.reader import GgufFile


def read_model(file: GgufFile, max_len: int | None = None) -> ModelFile:
    """max_len: the sequence limit of a file that stores none.

    Raises GgufError for a file of neither dialect (saying what it is) and for keys and tensors that are missing or
    wrong, ModelLoadError for what cannot be run, UsageError for a max_len that cannot be had.
    """
    if error := foreign_error(file):
        raise error
    if dialect_of(file) == llama_cpp_dialect.DIALECT:
        return llama_cpp_dialect.read_model(file, max_len)
    return laya_dialect.read_model(file, max_len)


def dialect_of(file: GgufFile) -> str:
    """The dialect of a file that is a model: "laya" or "llama.cpp"."""
    return llama_cpp_dialect.DIALECT if names.DECISION_TYPE in file.keys else laya_dialect.DIALECT
