"""GGUF -> keys and tensors: a strict reader over the mapped file.

Every count, length and offset is checked against the file's size before it is used, and nothing is copied: arrays (a
vocabulary of 256,000, 580,000 merges) are stepped over when the header is walked and decoded when asked for.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from layactl.core.weights import FloatArray, bfloat16_to_float32, float16_to_float32
from layactl.errors import GgufError
from layactl.gguf_file import names

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_MAX_COUNT = 2**26
_MAX_KEY_BYTES = 2**16

_UINT8, _INT8, _UINT16, _INT16, _UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT64, _INT64, _FLOAT64 = range(13)
_SCALARS = {
    _UINT8: struct.Struct("<B"),
    _INT8: struct.Struct("<b"),
    _UINT16: struct.Struct("<H"),
    _INT16: struct.Struct("<h"),
    _UINT32: struct.Struct("<I"),
    _INT32: struct.Struct("<i"),
    _FLOAT32: struct.Struct("<f"),
    _BOOL: struct.Struct("<?"),
    _UINT64: struct.Struct("<Q"),
    _INT64: struct.Struct("<q"),
    _FLOAT64: struct.Struct("<d"),
}
_INTEGERS = {_UINT8, _INT8, _UINT16, _INT16, _UINT32, _INT32, _UINT64, _INT64}
_FLOATS = {_FLOAT32, _FLOAT64}
_NUMPY = {code: np.dtype(packer.format) for code, packer in _SCALARS.items()}
_U32, _U64 = _SCALARS[_UINT32], _SCALARS[_UINT64]


@dataclass(frozen=True)
class TensorType:
    """A ggml type this reader understands: `values` values are stored in `nbytes` bytes, read as `dtype`."""

    name: str
    values: int
    nbytes: int
    dtype: np.dtype[Any]


TENSOR_TYPES = {
    0: TensorType("F32", 1, 4, np.dtype("<f4")),
    1: TensorType("F16", 1, 2, np.dtype("<f2")),
    8: TensorType("Q8_0", 32, 34, np.dtype("u1")),
    30: TensorType("BF16", 1, 2, np.dtype("<u2")),
}


@dataclass(frozen=True)
class GgufValue:
    """One key's value. kind: GGUF type code; element: the element type of an array; span: its bytes in the file,
    key name included.
    """

    kind: int
    value: Any
    element: int | None = None
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class GgufTensor:
    """shape: numpy order; offset: from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type_code: int
    offset: int
    nbytes: int

    @property
    def type_name(self) -> str:
        return TENSOR_TYPES[self.type_code].name


class StringArray(Sequence[str]):
    """A string array left in the file; iterate it once, or `decode()` it."""

    def __init__(self, file: GgufFile, key: str, start: int, count: int) -> None:
        self._file, self._key, self._start, self._count = file, key, start, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return self._file.strings_at(self._start, self._count, self._key)

    def __getitem__(self, index: Any) -> Any:
        return self.decode()[index]

    def decode(self) -> list[str]:
        return list(self)


class GgufFile:
    """An open GGUF: `keys` by name, `tensors` by name.

    Raises GgufError naming the file, and the key or tensor where there is one. The mapping closes with the object.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_file() and not path.is_dir():
            raise GgufError("is not a regular file, and a model is read at many places", where=str(path))
        try:
            with path.open("rb") as handle:
                self._map = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise GgufError("no such file", where=str(path)) from None
        except IsADirectoryError:
            raise GgufError("is a directory, not a GGUF file", where=str(path)) from None
        except ValueError:
            raise GgufError("is empty, not a GGUF file", where=str(path)) from None
        except OSError as error:
            raise GgufError(f"cannot be read: {error.strerror}", where=str(path)) from None
        self._size = len(self._map)
        self.keys: dict[str, GgufValue] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._walk()

    # -- header -------------------------------------------------------------------------------------------------

    def _walk(self) -> None:
        if self._map[:4] != _MAGIC:
            raise self.error("is not a GGUF file")
        version, position = self._unpack(_U32, 4)
        if version not in _VERSIONS:
            raise self.error(f"GGUF version {version} is not supported")
        tensor_count, position = self._unpack(_U64, position)
        key_count, position = self._unpack(_U64, position)
        if max(tensor_count, key_count) > _MAX_COUNT:
            raise self.error(f"claims {tensor_count} tensors and {key_count} keys")
        for _ in range(key_count):
            start = position
            key, position = self.string_at(position, "a key", _MAX_KEY_BYTES)
            if key in self.keys:
                raise self.error("key is there twice", key)
            kind, position = self._unpack(_U32, position)
            value, position = self._value(key, kind, position)
            self.keys[key] = replace(value, span=(start, position))
        self._table = position, self._tensor_table(tensor_count, position)

    def _value(self, key: str, kind: int, position: int) -> tuple[GgufValue, int]:
        if kind in _SCALARS:
            value, position = self._unpack(_SCALARS[kind], position)
            return GgufValue(kind, value), position
        if kind == _STRING:
            text, position = self.string_at(position, key)
            return GgufValue(kind, text), position
        if kind != _ARRAY:
            raise self.error(f"unknown value type {kind}", key)
        element, position = self._unpack(_U32, position)
        count, position = self._unpack(_U64, position)
        if element == _STRING:
            # A string takes 8 bytes of length at least, which bounds the count before anything is walked.
            if count > (self._size - position) // 8:
                raise self.error(f"array of {count} strings does not fit into the file", key)
            array = StringArray(self, key, position, count)
            return GgufValue(kind, array, element), self._skip_strings(position, count, key)
        if element not in _SCALARS:
            raise self.error(f"unknown array element type {element}", key)
        width = _SCALARS[element].size
        if count > (self._size - position) // width:
            raise self.error(f"array of {count} values does not fit into the file", key)
        values = np.frombuffer(self._map, dtype=_NUMPY[element], count=count, offset=position)
        return GgufValue(kind, values, element), position + count * width

    def _skip_strings(self, position: int, count: int, key: str) -> int:
        unpack, data, size = _U64.unpack_from, self._map, self._size
        for _ in range(count):
            if position + 8 > size:
                raise self.error("string array runs past the end of the file", key)
            position += 8 + unpack(data, position)[0]
        if position > size:
            raise self.error("string array runs past the end of the file", key)
        return position

    def _tensor_table(self, count: int, position: int) -> int:
        self.alignment = alignment = self.integer(names.ALIGNMENT, 32)
        if alignment < 8 or alignment > 2**20 or alignment & (alignment - 1):
            raise self.error(f"alignment {alignment} is not a sensible power of two", names.ALIGNMENT)
        entries: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(count):
            name, position = self.string_at(position, "a tensor name", _MAX_KEY_BYTES)
            dims, position = self._unpack(_U32, position)
            if not 1 <= dims <= _MAX_DIMS:
                raise self.error(f"has {dims} dimensions", name)
            shape = []
            for _ in range(dims):
                length, position = self._unpack(_U64, position)
                shape.append(length)
            type_code, position = self._unpack(_U32, position)
            offset, position = self._unpack(_U64, position)
            entries.append((name, tuple(reversed(shape)), type_code, offset))
        self.data_start = data_start = -(-position // alignment) * alignment
        for name, shape_, type_code, offset in entries:
            self._add_tensor(name, shape_, type_code, offset, data_start, alignment)
        self._check_overlaps()
        return position

    def _add_tensor(
        self, name: str, shape: tuple[int, ...], type_code: int, offset: int, data_start: int, alignment: int
    ) -> None:
        if name in self.tensors:
            raise self.error("tensor is there twice", name)
        if type_code not in TENSOR_TYPES:
            known = ", ".join(kind.name for kind in TENSOR_TYPES.values())
            raise self.error(f"tensor type {type_code} is not supported (only {known})", name)
        values = math.prod(shape)
        kind = TENSOR_TYPES[type_code]
        if shape[-1] % kind.values:
            raise self.error(f"{kind.name} rows of {shape[-1]} are not whole blocks of {kind.values}", name)
        nbytes = values // kind.values * kind.nbytes
        if offset % alignment:
            raise self.error(f"tensor offset {offset} is not a multiple of {alignment}", name)
        if data_start + offset + nbytes > self._size:
            raise self.error("tensor data runs past the end of the file", name)
        self.tensors[name] = GgufTensor(name, shape, type_code, data_start + offset, nbytes)

    def _check_overlaps(self) -> None:
        end = 0
        for tensor in sorted(self.tensors.values(), key=lambda t: t.offset):
            if tensor.offset < end:
                raise self.error("tensor data overlaps another tensor's", tensor.name)
            end = tensor.offset + tensor.nbytes

    def _unpack(self, packer: struct.Struct, position: int) -> tuple[Any, int]:
        end = position + packer.size
        if end > self._size:
            raise self.error("ends in the middle of its header")
        return packer.unpack_from(self._map, position)[0], end

    def string_at(self, position: int, what: str, limit: int | None = None) -> tuple[str, int]:
        """The string at a file position and the position after it."""
        length, start = self._unpack(_U64, position)
        if length > self._size - start or (limit is not None and length > limit):
            raise self.error(f"a string of {length} bytes does not fit", what)
        try:
            return self._map[start : start + length].decode("utf-8"), start + length
        except UnicodeDecodeError:
            raise self.error("text is not UTF-8", what) from None

    def strings_at(self, position: int, count: int, what: str) -> Iterator[str]:
        """So many strings one behind the other, which `_skip_strings` has found to lie within the file."""
        unpack, data = _U64.unpack_from, self._map
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(data, position)[0]
                yield data[start:position].decode()
        except UnicodeDecodeError:
            raise self.error("text is not UTF-8", what) from None

    def key_bytes(self, key: str) -> bytes:
        """A key as the file spells it: name, type and value."""
        start, end = self.keys[key].span
        return self._map[start:end]

    def table_bytes(self) -> bytes:
        """The tensor table as the file spells it."""
        return self._map[slice(*self._table)]

    # -- typed access -------------------------------------------------------------------------------------------

    def error(self, message: str, what: str | None = None) -> GgufError:
        return GgufError(f"{what:.80}: {message}" if what else message, where=str(self.path))

    def integer(self, key: str, default: int | None = None) -> int:
        """A non-negative integer key. Raises GgufError when it is missing without a default, or of another type."""
        entry = self._entry(key, default)
        if entry is None:
            assert default is not None
            return default
        if entry.kind not in _INTEGERS or entry.value < 0:
            raise self.error("is not a non-negative integer", key)
        return int(entry.value)

    def number(self, key: str) -> float:
        entry = self._entry(key, None)
        assert entry is not None
        if entry.kind not in _FLOATS:
            raise self.error("is not a float", key)
        return _shortest(entry.value, entry.kind)

    def text(self, key: str, default: str | None = None) -> str:
        entry = self._entry(key, default)
        if entry is None:
            assert default is not None
            return default
        if entry.kind != _STRING:
            raise self.error("is not a string", key)
        return str(entry.value)

    def numbers(self, key: str) -> list[float]:
        entry = self._array(key, _FLOATS, "an array of floats")
        assert entry.element is not None
        return [_shortest(value, entry.element) for value in entry.value.tolist()]

    def integers(self, key: str) -> list[int]:
        values: list[int] = self._array(key, _INTEGERS, "an array of integers").value.tolist()
        return values

    def texts(self, key: str) -> list[str]:
        strings: StringArray = self._array(key, {_STRING}, "an array of strings").value
        return strings.decode()

    def _array(self, key: str, elements: set[int], what: str) -> GgufValue:
        entry = self._entry(key, None)
        assert entry is not None
        if entry.kind != _ARRAY or entry.element not in elements:
            raise self.error(f"is not {what}", key)
        return entry

    def _entry(self, key: str, default: object) -> GgufValue | None:
        entry = self.keys.get(key)
        if entry is None and default is None:
            raise self.error("key is missing", key)
        return entry

    # -- tensors ------------------------------------------------------------------------------------------------

    def stored(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """A read-only view of a tensor's stored values, row by row; BF16 as uint16 bits, Q8_0 as bytes."""
        tensor = self.tensors[name]
        kind = TENSOR_TYPES[tensor.type_code]
        count = tensor.nbytes // kind.dtype.itemsize
        flat = np.frombuffer(self._map, dtype=kind.dtype, count=count, offset=tensor.offset)
        return flat.reshape((*tensor.shape[:-1], count // max(1, math.prod(tensor.shape[:-1]))))

    def give_back(self, name: str) -> None:
        """Let the system have the resident pages of a tensor again; they are read anew when they are next wanted."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        tensor = self.tensors[name]
        # Whole pages only: what shares a page with a neighbour stays.
        first = -(-tensor.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (tensor.offset + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, first, length)

    def floats(self, name: str, rows: Sequence[int] | None = None) -> FloatArray:
        """A tensor, or some of its rows, as a new float32 array."""
        stored = self.stored(name)
        if rows is not None:
            stored = stored[np.asarray(rows, dtype=np.int64)]
        kind = self.tensors[name].type_name
        if kind == "BF16":
            return bfloat16_to_float32(stored)
        if kind == "Q8_0":
            # Only quantized files pay for importing gguf.
            from gguf import GGMLQuantizationType
            from gguf.quants import dequantize

            return np.asarray(dequantize(stored, GGMLQuantizationType.Q8_0), dtype=np.float32)
        if kind == "F16" and rows is None:
            # Of whole tensors only: who reads those computes with them, and has imported torch for that.
            return float16_to_float32(stored)
        return stored.astype(np.float32)


def _shortest(value: float, kind: int) -> float:
    """A float32 as the double with its shortest decimal spelling, so that a configured 1.76 comes back as 1.76."""
    return float(str(np.float32(value))) if kind == _FLOAT32 else float(value)
