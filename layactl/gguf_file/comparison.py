"""The first thing in which two GGUF files differ."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import numpy as np

from layactl.gguf_file.reader import GgufFile, StringArray

_CHUNK = 2**24


def first_difference(a: GgufFile, b: GgufFile) -> str | None:
    """Keys, then the tensor table, then tensor data, then any other byte. None: identical files."""
    return _keys(a, b) or _table(a, b) or _data(a, b) or _bytes(a.path, b.path)


def _keys(a: GgufFile, b: GgufFile) -> str | None:
    for mine, theirs in zip_longest(a.keys, b.keys):
        if mine != theirs:
            return f"key {mine or theirs}: " + (
                f"the other file has {theirs} in its place" if mine and theirs else "only one file has it"
            )
        if a.key_bytes(mine) != b.key_bytes(mine):
            return f"key {mine}: {_brief(a, mine)} against {_brief(b, mine)}"
    return None


def _brief(file: GgufFile, key: str) -> str:
    value = file.keys[key].value
    return f"{len(value)} values" if isinstance(value, (np.ndarray, StringArray)) else f"{value!r:.80}"


def _table(a: GgufFile, b: GgufFile) -> str | None:
    for mine, theirs in zip_longest(a.tensors.values(), b.tensors.values()):
        if mine is None or theirs is None or mine.name != theirs.name:
            name = (mine or theirs).name
            return f"tensor {name}: " + (
                f"the other file has {theirs.name} in its place" if mine and theirs else "only one file has it"
            )
        if (mine.shape, mine.type_code) != (theirs.shape, theirs.type_code):
            return f"tensor {mine.name}: {mine.type_name} {mine.shape} against {theirs.type_name} {theirs.shape}"
    return None


def _data(a: GgufFile, b: GgufFile) -> str | None:
    for name in a.tensors:
        mine, theirs = (file.stored(name).reshape(-1).view(np.uint8) for file in (a, b))
        for start in range(0, len(mine), _CHUNK):
            unequal = mine[start : start + _CHUNK] != theirs[start : start + _CHUNK]
            if unequal.any():
                return f"tensor {name}: data differs from byte {start + int(unequal.argmax())} on"
    return None


def _bytes(a: Path, b: Path) -> str | None:
    with a.open("rb") as mine, b.open("rb") as theirs:
        position = 0
        while True:
            left, right = mine.read(_CHUNK), theirs.read(_CHUNK)
            if left != right:
                where = next((i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), None)
                offset = position + (min(len(left), len(right)) if where is None else where)
                return f"byte {offset}: padding, offsets or length differ"
            if not left:
                return None
            position += len(left)
