"""A GGUF with some keys and tensors changed; everything else is copied byte for byte."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import gguf
import numpy.typing as npt

from layactl.errors import GgufError
from layactl.gguf_file.reader import GgufFile
from layactl.gguf_file.writer import SLICE_BYTES, TensorPlan, write_tensor_data

_UINT32, _STRING = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.STRING


def encode_key(key: str, value: str | int) -> bytes:
    """One key of a header: a string, or a u32."""
    name = _string(key)
    if isinstance(value, str):
        return name + struct.pack("<I", _STRING) + _string(value)
    return name + struct.pack("<II", _UINT32, value)


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def copied(file: GgufFile, name: str) -> TensorPlan:
    """The plan that copies a tensor as it is stored."""
    tensor = file.tensors[name]

    def slices() -> Iterator[npt.NDArray[Any]]:
        stored = file.stored(name)
        rows = max(1, SLICE_BYTES // max(1, stored[:1].nbytes))
        for start in range(0, len(stored), rows):
            yield stored[start : start + rows]

    return TensorPlan(name, tensor.shape, gguf.GGMLQuantizationType(tensor.type_code), slices)


def rewrite_gguf(
    source: GgufFile,
    path: Path,
    changes: Mapping[str, str | int | None],
    tensors: list[TensorPlan] | None = None,
    progress: Callable[[int], None] = lambda nbytes: None,
) -> None:
    """Write `path` from `source`: keys keep their order; a change of None removes a key, new keys come last.

    tensors: None keeps the tensor table and the data section as they are.
    """
    encoded = {key: encode_key(key, value) for key, value in changes.items() if value is not None}
    keys = [
        encoded.pop(key) if key in encoded else source.key_bytes(key)
        for key in source.keys
        if key in encoded or key not in changes
    ]
    keys += encoded.values()
    with path.open("wb") as out:
        out.write(gguf.GGUF_MAGIC.to_bytes(4, "little"))
        out.write(
            struct.pack("<IQQ", gguf.GGUF_VERSION, len(source.tensors if tensors is None else tensors), len(keys))
        )
        out.writelines(keys)
        if tensors is None:
            out.write(source.table_bytes())
            out.write(bytes(-out.tell() % source.alignment))
            out.flush()
            _copy_rest(source.path, source.data_start, out.fileno(), out.tell())
        else:
            _write_table(out, tensors, source.alignment)
            write_tensor_data(out, tensors, source.alignment, progress)


def _write_table(out: IO[bytes], tensors: list[TensorPlan], alignment: int) -> None:
    offset = 0
    for tensor in tensors:
        dims = tuple(reversed(tensor.shape))
        out.write(_string(tensor.name))
        out.write(struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.kind, offset))
        offset += -(-tensor.nbytes // alignment) * alignment


def _copy_rest(path: Path, start: int, descriptor: int, position: int) -> None:
    """Everything of a file from `start` on, to `position` of another."""
    with path.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        while start < size:
            try:
                count = os.copy_file_range(handle.fileno(), descriptor, size - start, start, position)
            except (OSError, AttributeError):  # across file systems, or no such call on this platform
                count = 0
            if not count:
                count = os.pwrite(descriptor, os.pread(handle.fileno(), SLICE_BYTES, start), position)
            if not count:
                raise GgufError("became shorter while it was read", where=str(path))
            start, position = start + count, position + count
