"""A safetensors file, mapped: names, types, shapes and bytes, each checked before it is used.

The safetensors package cannot hand out BF16 without torch or copy-free slices of a tensor; its header is one JSON
object (format specification: 8 bytes of length, the header, the data), and the tests compare the two readers.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from layactl.checkpoint.json_files import JsonObject, parse_json_object, unique_keys
from layactl.core.weights import FloatArray, bfloat16_to_float32
from layactl.errors import CheckpointError

_MAX_HEADER_BYTES = 16 * 2**20
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file. values: a read-only view, (rows, columns) or 1-D; BF16 as its uint16 bits."""

    name: str
    dtype: str
    values: npt.NDArray[Any]
    path: Path

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def floats(self, start: int, stop: int) -> FloatArray:
        """Rows start..stop as a new float32 array (exact for all three types)."""
        rows = self.values[start:stop]
        return bfloat16_to_float32(rows) if self.dtype == "BF16" else rows.astype(np.float32)


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Map a file. Raises CheckpointError naming the file, and the tensor where there is one."""
    try:
        with path.open("rb") as handle:
            data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing", where=str(path)) from None
    except ValueError:
        raise CheckpointError(f"{path.name} is empty", where=str(path)) from None
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}", where=str(path)) from None
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, _MAX_HEADER_BYTES):
        raise CheckpointError(f"{path.name} is truncated or not a safetensors file", where=str(path))
    header = parse_json_object(path, data[8 : 8 + length])
    unique_keys(path, data[8 : 8 + length])
    start = 8 + length
    tensors: dict[str, StoredTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name in header.values:
        if name == "__metadata__":
            continue
        entry = header.object(name)
        begin, end, dtype, shape = _entry(entry, len(data) - start)
        spans.append((begin, end, name))
        flat = np.frombuffer(
            data, dtype=_DTYPES[dtype], count=(end - begin) // _DTYPES[dtype].itemsize, offset=start + begin
        )
        tensors[name] = StoredTensor(name, dtype, flat.reshape(shape), path)
    _check_spans(spans, len(data) - start, path)
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
