"""A GGUF with some keys and tensors changed; everything else is copied byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy.typing as npt

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
    tensors: list[TensorPlan],
    progress: Callable[[int], None] = lambda nbytes: None,
) -> None:
    """Write `path` from `source`: keys keep their order; a change of None removes a key, new keys come last."""
    kept = {key: encode_key(key, value) for key, value in changes.items() if value is not None}
    keys = [
        kept.pop(key) if key in kept else source.key_bytes(key)
        for key in source.keys
        if key not in changes or key in kept
    ] + list(kept.values())
    with path.open("wb") as out:
        out.write(gguf.GGUF_MAGIC.to_bytes(4, "little"))
        out.write(struct.pack("<IQQ", gguf.GGUF_VERSION, len(tensors), len(keys)))
        out.writelines(keys)
        offset = 0
        for tensor in tensors:
            dims = tuple(reversed(tensor.shape))
            out.write(_string(tensor.name))
            out.write(struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.kind, offset))
            offset += -(-tensor.nbytes // source.alignment) * source.alignment
        write_tensor_data(out, tensors, source.alignment, progress)
