"""A safetensors file: names, types, shapes and bytes, each checked before it is used.

The safetensors package cannot hand out BF16 without torch, nor a few rows of a tensor; its header is one JSON object
(format specification: 8 bytes of length, the header, the data), and the tests compare the two readers. Tensors are read
slice by slice rather than mapped, so that a conversion never has more than a slice of them in memory.
"""

from __future__ import annotations

import math
import os
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from layactl.checkpoint.digest import FileRange
from layactl.checkpoint.json_files import parse_json_object, unique_keys
from layactl.core.json_fields import JsonObject
from layactl.core.weights import FloatArray, bfloat16_to_float32
from layactl.durable import check_regular
from layactl.errors import CheckpointError

_MAX_HEADER_BYTES = 16 * 2**20
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


class _OpenFile:
    """A file read at positions; closed with the object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        check_regular(path, CheckpointError)
        try:
            self._handle = path.open("rb", buffering=0)
            weakref.finalize(self, self._handle.close)
            self.size = os.fstat(self._handle.fileno()).st_size
        except FileNotFoundError:
            raise CheckpointError(f"{path.name} is missing", where=str(path)) from None
        except OSError as error:
            raise CheckpointError(f"{path.name} cannot be read: {error.strerror}", where=str(path)) from None

    @property
    def descriptor(self) -> int:
        return self._handle.fileno()

    def read(self, start: int, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        try:
            while view:
                count = os.preadv(self.descriptor, [view], start)
                if not count:
                    raise CheckpointError(f"{self.path.name} ended while it was read", where=str(self.path))
                start, view = start + count, view[count:]
        except OSError as error:
            raise CheckpointError(f"{self.path.name} cannot be read: {error.strerror}", where=str(self.path)) from None
        return data


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file, left there. shape: (rows, columns) or 1-D."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: _OpenFile
    offset: int

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def stored(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows start..stop as they are stored; BF16 as uint16 bits."""
        dtype = _DTYPES[self.dtype]
        row = math.prod(self.shape[1:]) * dtype.itemsize
        data = self.file.read(self.offset + start * row, (stop - start) * row)
        return np.frombuffer(data, dtype=dtype).reshape((stop - start, *self.shape[1:]))

    def floats(self, start: int, stop: int) -> FloatArray:
        """Rows start..stop as a new float32 array (exact for all three types)."""
        rows = self.stored(start, stop)
        return bfloat16_to_float32(rows) if self.dtype == "BF16" else rows.astype(np.float32, copy=False)

    @property
    def range(self) -> FileRange:
        return FileRange(self.file.descriptor, self.offset, self.size * _DTYPES[self.dtype].itemsize)


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Open a file and check its header. Raises CheckpointError naming the file, and the tensor where there is one."""
    file = _OpenFile(path)
    length = int.from_bytes(file.read(0, 8), "little") if file.size >= 8 else -1
    if not 0 <= length <= min(file.size - 8, _MAX_HEADER_BYTES):
        raise CheckpointError(f"{path.name} is truncated or not a safetensors file", where=str(path))
    data = bytes(file.read(8, length))
    header = parse_json_object(path, data)
    unique_keys(path, data)
    start = 8 + length
    tensors: dict[str, StoredTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name in header.values:
        if name == "__metadata__":
            continue
        begin, end, dtype, shape = _entry(header.object(name), file.size - start)
        spans.append((begin, end, name))
        tensors[name] = StoredTensor(name, dtype, shape, file, start + begin)
    _check_spans(spans, file.size - start, path)
    return tensors


def _entry(entry: JsonObject, size: int) -> tuple[int, int, str, tuple[int, ...]]:
    dtype = entry.text("dtype")
    if dtype not in _DTYPES:
        raise entry.error("dtype", f"is {dtype!r:.40}; only F16, BF16 and F32 weights are understood")
    shape = entry.items("shape")
    offsets = entry.items("data_offsets")
    if len(offsets) != 2 or not all(map(_is_size, [*shape, *offsets])) or len(shape) > 4:
        raise entry.error("shape", "or data_offsets are not sizes")
    begin, end = offsets
    nbytes = _DTYPES[dtype].itemsize
    for dimension in shape:
        nbytes *= dimension
    if not begin <= end <= size or end - begin != nbytes:
        raise entry.error("data_offsets", f"{offsets} do not hold {nbytes} bytes within {size}")
    return begin, end, dtype, tuple(shape)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_spans(spans: list[tuple[int, int, str]], size: int, path: Path) -> None:
    """As the format demands, the tensors tile the data: no hole, no overlap."""
    position = 0
    for begin, end, name in sorted(spans):
        if begin != position:
            raise CheckpointError(f"{name}: data overlaps or leaves a hole before it", where=str(path))
        position = end
    if position != size:
        raise CheckpointError(f"{path.name}: {size - position} bytes after the last tensor", where=str(path))
