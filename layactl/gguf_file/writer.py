"""Keys and tensors -> a GGUF file, tensors streamed a slice at a time (gguf's writer, its order enforced there)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import gguf
import numpy as np
import numpy.typing as npt

# gguf logs its plan at INFO; a library that prints is not wanted here.
logging.getLogger("gguf.gguf_writer").setLevel(logging.ERROR)

SLICE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class TensorPlan:
    """One tensor to write. slices: yields its stored values in order, each a block of whole rows of type `kind`."""

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    slices: Callable[[], Iterator[npt.NDArray[Any]]]

    @property
    def nbytes(self) -> int:
        values, nbytes = gguf.GGML_QUANT_SIZES[self.kind]
        return math.prod(self.shape) // values * nbytes


def write_gguf(
    path: Path,
    architecture: str,
    add_keys: Callable[[gguf.GGUFWriter], None],
    tensors: list[TensorPlan],
    progress: Callable[[int], None],
) -> None:
    """Write a whole file. progress: called with the bytes of tensor data written since the last call."""
    writer = gguf.GGUFWriter(path, architecture)
    try:
        add_keys(writer)
        for tensor in tensors:
            # The numpy type counts only where no ggml type is given.
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        write_tensor_data(writer.fout[0], tensors, writer.data_alignment, progress)
    finally:
        writer.close()


def write_tensor_data(
    out: IO[bytes], tensors: list[TensorPlan], alignment: int, progress: Callable[[int], None]
) -> None:
    """The data section, from the end of the tensor table on: each tensor padded to the alignment."""
    _pad(out, alignment)
    for tensor in tensors:
        written = 0
        for block in tensor.slices():
            out.write(np.ascontiguousarray(block).data)
            written += block.nbytes
            progress(block.nbytes)
        if written != tensor.nbytes:
            raise ValueError(f"{tensor.name}: {written} bytes written, not {tensor.nbytes}")
        _pad(out, alignment)


def _pad(out: IO[bytes], alignment: int) -> None:
    out.write(bytes(-out.tell() % alignment))
