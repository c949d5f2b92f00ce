"""Edited copies of GGUF files, for tests: keys and tensors replaced, added or left out (read and written by gguf)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGUFValueType as Kind


@dataclass(frozen=True)
class Value:
    """A key's value. element: the element type of an array."""

    value: Any
    kind: Kind
    element: Kind | None = None


def u32(value: int) -> Value:
    return Value(value, Kind.UINT32)


def f32(value: float) -> Value:
    return Value(value, Kind.FLOAT32)


def text(value: str | bytes) -> Value:
    return Value(value, Kind.STRING)


def array(values: list[Any], element: Kind) -> Value:
    return Value(values, Kind.ARRAY, element)


@cache
def _read(path: Path) -> tuple[dict[str, Value], dict[str, tuple[np.ndarray, Any]]]:
    """Every key of a file with its type, and every tensor with its type. A source is read once: it must not change."""
    reader = gguf.GGUFReader(path)
    values = {}
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            element = field.types[-1] if field.types[0] == Kind.ARRAY else None
            values[key] = Value(field.contents(), field.types[0], element)
    return values, {tensor.name: (np.array(tensor.data), tensor.tensor_type) for tensor in reader.tensors}


def read_values(path: Path) -> dict[str, Value]:
    """Every key of a file, with its type."""
    return _read(path)[0]


def read_tensor(path: Path, name: str) -> np.ndarray:
    """One tensor as it is stored, in numpy order."""
    return _read(path)[1][name][0]


def edited(
    source: Path,
    target: Path,
    *,
    keys: Mapping[str, Value | None] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
) -> Path:
    """Copy `source` to `target` with keys and tensors replaced or added, or left out where they are None."""
    known, stored = _read(source)
    values = known | dict(keys or {})
    architecture = values.pop("general.architecture")
    writer = gguf.GGUFWriter(target, "")  # an empty name is not written
    for key, value in {"general.architecture": architecture, **values}.items():
        if value is not None:
            writer.add_key_value(key, value.value, value.kind, value.element)
    replaced = {name: None if new is None else (new, None) for name, new in (tensors or {}).items()}
    for name, tensor in (stored | replaced).items():
        if tensor is not None:
            writer.add_tensor(name, tensor[0], raw_dtype=tensor[1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


# -- files byte by byte, for what no writer would write --------------------------------------------------------------


def packed_text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def packed_key(key: str | bytes, kind: int, value: bytes) -> bytes:
    return packed_text(key) + struct.pack("<I", kind) + value


def packed_tensor(name: str | bytes, dims: Iterable[int], kind: int = 0, offset: int = 0) -> bytes:
    """dims: as a file has them, the fastest first."""
    lengths = list(dims)
    return packed_text(name) + struct.pack(f"<I{len(lengths)}QIQ", len(lengths), *lengths, kind, offset)


def raw_gguf(
    keys: Iterable[bytes] = (),
    tensors: Iterable[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: Callable[[int, int], tuple[int, int]] = lambda tensor_count, key_count: (tensor_count, key_count),
) -> bytes:
    """A whole file. counts: (true number of tensors, of keys) -> the numbers the header claims."""
    key_list, tensor_list = list(keys), list(tensors)
    header = magic + struct.pack("<IQQ", version, *counts(len(tensor_list), len(key_list)))
    header += b"".join(key_list) + b"".join(tensor_list)
    return header + bytes(-len(header) % 32) + data
