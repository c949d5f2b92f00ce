"""Keys and tensors -> a GGUF file, tensors streamed a slice at a time (gguf's writer, its order enforced there)."""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import gguf
import numpy as np
import numpy.typing as npt

# gguf logs its plan at INFO; a library that prints is not wanted here.
logging.getLogger("gguf.gguf_writer").setLevel(logging.ERROR)

SLICE_BYTES = 4 * 2**20


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


class _Writer(gguf.GGUFWriter):
    """gguf's writer, with arrays packed as a whole: value by value, a vocabulary of 256,000 and its merges take more
    than two seconds.
    """

    def _pack_val(self, val: Any, vtype: Any, add_vtype: bool, sub_type: Any = None) -> bytes:
        if vtype == gguf.GGUFValueType.ARRAY and sub_type is None and isinstance(val, list) and val:
            kind, pack = _PACKERS.get(type(val[0]), (None, None))
            if pack is not None:
                head = struct.pack("<I", vtype) if add_vtype else b""
                return head + struct.pack("<IQ", kind, len(val)) + pack(val)
        return bytes(super()._pack_val(val, vtype, add_vtype, sub_type))


def _pack_strings(values: list[str]) -> bytes:
    texts = [text.encode("utf-8") for text in values]
    lengths = map(struct.Struct("<Q").pack, map(len, texts))
    return b"".join(chain.from_iterable(zip(lengths, texts, strict=True)))


# What gguf makes of each Python type (GGUFValueType.get_type).
_PACKERS: dict[type, tuple[gguf.GGUFValueType, Callable[[list[Any]], bytes]]] = {
    str: (gguf.GGUFValueType.STRING, _pack_strings),
    int: (gguf.GGUFValueType.INT32, lambda values: struct.pack(f"<{len(values)}i", *values)),
    float: (gguf.GGUFValueType.FLOAT32, lambda values: struct.pack(f"<{len(values)}f", *values)),
}


def write_gguf(
    path: Path,
    architecture: str,
    add_keys: Callable[[gguf.GGUFWriter], None],
    tensors: list[TensorPlan],
    progress: Callable[[int], None],
) -> None:
    """Write a whole file. progress: called with the bytes of tensor data written since the last call."""
    writer = _Writer(path, architecture)
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
