"""Edits of checkpoint folders, for tests: JSON files changed in place, weights re-stored, split or damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

AGENT, ENCODER = "rl_agent_config.json", "encoder/config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Stored:
    """One tensor as a safetensors file holds it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON object file in place."""
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def set_fields(path: Path, **fields: Any) -> None:
    """Set top-level fields of a JSON object file; None takes the field out."""

    def change(value: dict[str, Any]) -> None:
        for key, new in fields.items():
            if new is None:
                value.pop(key, None)
            else:
                value[key] = new

    edit_json(path, change)


def read_stored(path: Path) -> dict[str, Stored]:
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            found[name] = Stored(entry["dtype"], tuple(entry["shape"]), data[start + begin : start + end])
    return found


def safetensors_bytes(header: Mapping[str, Any] | bytes, data: bytes = b"") -> bytes:
    """A file of any header, sound or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def stored_bytes(tensors: Mapping[str, Stored]) -> bytes:
    header, data = {}, b""
    for name, tensor in tensors.items():
        offsets = [len(data), len(data) + len(tensor.data)]
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        data += tensor.data
    return safetensors_bytes(header, data)


def write_stored(path: Path, tensors: Mapping[str, Stored]) -> None:
    path.write_bytes(stored_bytes(tensors))


def as_floats(tensor: Stored) -> np.ndarray:
    if tensor.dtype == "BF16":
        wide = np.frombuffer(tensor.data, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(tensor.shape)
    return (
        np.frombuffer(tensor.data, {"F16": "<f2", "F32": "<f4"}[tensor.dtype]).astype(np.float32).reshape(tensor.shape)
    )


def restored(tensor: Stored, dtype: str) -> Stored:
    """The tensor in another type; BF16 truncates."""
    floats = np.ascontiguousarray(as_floats(tensor))
    if dtype == "BF16":
        return Stored(dtype, tensor.shape, (floats.view(np.uint32) >> 16).astype("<u2").tobytes())
    return Stored(dtype, tensor.shape, floats.astype({"F16": "<f2", "F32": "<f4"}[dtype]).tobytes())


def edit_weights(root: Path, change: Callable[[dict[str, Stored]], object]) -> None:
    tensors = read_stored(root / WEIGHTS)
    change(tensors)
    write_stored(root / WEIGHTS, tensors)


def split_weights(root: Path, shards: int, order: Callable[[Iterable[str]], list[str]] = sorted) -> list[Path]:
    """Replace model.safetensors by shards and an index; returns the shards."""
    tensors = read_stored(root / WEIGHTS)
    (root / WEIGHTS).unlink()
    names = order(tensors)
    weight_map, paths = {}, []
    for n in range(shards):
        path = root / f"model-{n + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[n::shards]
        write_stored(path, {name: tensors[name] for name in mine})
        weight_map |= dict.fromkeys(mine, path.name)
        paths.append(path)
    index = {"metadata": {"total_size": sum(len(t.data) for t in tensors.values())}, "weight_map": weight_map}
    (root / INDEX).write_text(json.dumps(index), encoding="utf-8")
    return paths
