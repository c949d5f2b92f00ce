"""gguf_file.reader against gguf's own reader, and on files no writer would write."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGUFValueType as Kind
from gguf_edit import Value, array, edited, packed_key, packed_tensor, packed_text, raw_gguf

from layactl.errors import GgufError
from layactl.gguf_file.reader import GgufFile, StringArray


def plain(value: Any) -> Any:
    """A key's value as Python values, string arrays decoded."""
    if isinstance(value, StringArray):
        return value.decode()
    return value.tolist() if isinstance(value, np.ndarray) else value


def assert_same(path: Path) -> None:
    ours, oracle = GgufFile(path), gguf.GGUFReader(path)
    fields = {key: field for key, field in oracle.fields.items() if not key.startswith("GGUF.")}
    assert list(ours.keys) == list(fields)
    for key, field in fields.items():
        assert ours.keys[key].kind == field.types[0]
        if field.types[0] == Kind.ARRAY:
            assert ours.keys[key].element == field.types[-1]
        # By their spelling, since NaN equals nothing.
        assert repr(plain(ours.keys[key].value)) == repr(field.contents())
    assert list(ours.tensors) == [tensor.name for tensor in oracle.tensors]
    for tensor in oracle.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(int(length) for length in reversed(tensor.shape))
        assert (mine.type_code, mine.type_name) == (int(tensor.tensor_type), tensor.tensor_type.name)
        assert (mine.offset, mine.nbytes) == (int(tensor.data_offset), int(tensor.n_bytes))
        assert ours.stored(tensor.name).tobytes() == tensor.data.tobytes()


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_every_key_and_tensor_is_what_ggufs_reader_reads(family: str, outtype: str, gguf_for: Callable[..., Path]):
    assert_same(gguf_for(family, outtype))


NUMBERS = {
    Kind.UINT8: [0, 255],
    Kind.INT8: [-128, 127],
    Kind.UINT16: [0, 65_535],
    Kind.INT16: [-32_768, 32_767],
    Kind.UINT32: [0, 2**32 - 1],
    Kind.INT32: [-(2**31), 2**31 - 1],
    Kind.UINT64: [0, 2**64 - 1],
    Kind.INT64: [-(2**63), 2**63 - 1],
    Kind.FLOAT32: [-0.0, 1.5, 3.4028234663852886e38, float("inf"), float("nan")],
    Kind.FLOAT64: [5e-324, -1.7976931348623157e308],
    Kind.BOOL: [False, True],
    Kind.STRING: ["", "caf\u00e9 \U0001f600 \x00 \u2028"],
}


@pytest.mark.parametrize("kind", NUMBERS, ids=lambda kind: kind.name)
def test_every_value_type_alone_and_in_an_array(kind: Kind, gguf_for: Callable[..., Path], tmp_path: Path):
    keys = {f"test.{n}": Value(value, kind) for n, value in enumerate(NUMBERS[kind])}
    keys["test.array"] = array(NUMBERS[kind] * 3, kind)
    assert_same(edited(gguf_for(), tmp_path / "x.gguf", keys=keys))


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_an_alignment_of_its_own(alignment: int, tmp_path: Path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "laya")
    writer.add_custom_alignment(alignment)
    for n in range(3):
        writer.add_tensor(f"t{n}", np.arange(5 + n, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_same(tmp_path / "x.gguf")


def test_floats_and_rows_of_every_stored_type(family: str, gguf_for: Callable[..., Path]):
    name = "token_embd.weight"
    exact = GgufFile(gguf_for(family, "f32")).floats(name)
    assert exact.dtype == np.float32
    rows = [7, 0, 7, len(exact) - 1]
    for outtype, tolerance in (("f32", 0.0), ("f16", 0.0), ("bf16", 2**-8), ("q8_0", 2**-6)):
        file = GgufFile(gguf_for(family, outtype))
        np.testing.assert_allclose(file.floats(name), exact, rtol=tolerance, atol=tolerance * np.abs(exact).max())
        assert np.array_equal(file.floats(name, rows), file.floats(name)[rows])
        assert file.floats(name).flags.writeable


# -- what a damaged file says ----------------------------------------------------------------------------------------

ONE = struct.pack("<I", 1)
U64 = struct.Struct("<Q").pack


def array_of(element: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", element, count) + values


DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "one byte": (b"G", "not a GGUF file"),
    "other magic": (raw_gguf(magic=b"GGML"), "not a GGUF file"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648"),
    "version 1": (raw_gguf(version=1), "version 1 is not supported"),
    "version 4": (raw_gguf(version=4), "version 4 is not supported"),
    "magic only": (b"GGUF", "ends in the middle"),
    "header cut": (raw_gguf()[:20], "ends in the middle"),
    "absurd number of keys": (raw_gguf(counts=lambda t, k: (0, 2**63)), "claims"),
    "absurd number of tensors": (raw_gguf(counts=lambda t, k: (2**63, 0)), "claims"),
    "more keys than there are": (raw_gguf(counts=lambda t, k: (0, 3)), "ends in the middle"),
    "more tensors than there are": (raw_gguf(counts=lambda t, k: (9, 0)), "ends in the middle"),
    "key twice": (raw_gguf([packed_key("a", 4, ONE), packed_key("a", 4, ONE)]), "a: key is there twice"),
    "key of 2^63 bytes": (raw_gguf([U64(2**63) + b"abc"]), "a key: a string of"),
    "key of 70,000 bytes": (raw_gguf([packed_key("k" * 70_000, 4, ONE)]), "a key: a string of 70000"),
    "key not UTF-8": (raw_gguf([packed_key(b"\xff", 4, ONE)]), "a key: text is not UTF-8"),
    "unknown value type": (raw_gguf([packed_key("a", 13, ONE)]), "a: unknown value type 13"),
    "string past the end": (raw_gguf([packed_key("a", 8, U64(2**40))]), "a: a string of"),
    "string not UTF-8": (raw_gguf([packed_key("a", 8, packed_text(b"\xc3"))]), "a: text is not UTF-8"),
    "array of arrays": (raw_gguf([packed_key("a", 9, array_of(9, 1))]), "a: unknown array element type 9"),
    "array of an unknown type": (raw_gguf([packed_key("a", 9, array_of(77, 1))]), "element type 77"),
    "array past the end": (raw_gguf([packed_key("a", 9, array_of(4, 2**62))]), "a: array of"),
    "array a little past the end": (raw_gguf([packed_key("a", 9, array_of(4, 9))]), "a: array of 9 values"),
    "strings past the end": (raw_gguf([packed_key("a", 9, array_of(8, 2**62))]), "a: array of"),
    "string array that overruns": (
        raw_gguf([packed_key("a", 9, array_of(8, 2, packed_text("x") + U64(2**40)))]),
        "a: string array runs past the end",
    ),
    "alignment 0": (raw_gguf([packed_key("general.alignment", 4, struct.pack("<I", 0))]), "general.alignment"),
    "alignment 48": (raw_gguf([packed_key("general.alignment", 4, struct.pack("<I", 48))]), "general.alignment"),
    "alignment 2^31": (raw_gguf([packed_key("general.alignment", 4, struct.pack("<I", 2**31))]), "general.alignment"),
    "alignment as text": (raw_gguf([packed_key("general.alignment", 8, packed_text("32"))]), "general.alignment"),
    "tensor twice": (raw_gguf([], [packed_tensor("t", [8]), packed_tensor("t", [8], offset=32)], bytes(64)), "twice"),
    "tensor of no dimensions": (raw_gguf([], [packed_tensor("t", [])], bytes(64)), "t: has 0 dimensions"),
    "tensor of five dimensions": (raw_gguf([], [packed_tensor("t", [1] * 5)], bytes(64)), "t: has 5 dimensions"),
    "tensor of an unknown type": (raw_gguf([], [packed_tensor("t", [8], 12)], bytes(64)), "t: tensor type 12"),
    "tensor off the alignment": (raw_gguf([], [packed_tensor("t", [8], offset=4)], bytes(64)), "t: tensor offset 4"),
    "tensor past the end": (raw_gguf([], [packed_tensor("t", [17])], bytes(64)), "t: tensor data runs past the end"),
    "tensor of 2^128 values": (raw_gguf([], [packed_tensor("t", [2**63] * 2)], bytes(64)), "past the end"),
    "tensor at 2^63": (raw_gguf([], [packed_tensor("t", [8], offset=2**63)], bytes(64)), "past the end"),
    "tensors that overlap": (
        raw_gguf([], [packed_tensor("a", [16]), packed_tensor("b", [8], offset=32)], bytes(64)),
        "b: tensor data overlaps",
    ),
    "quantized rows that are no whole blocks": (raw_gguf([], [packed_tensor("t", [33], 8)], bytes(64)), "whole blocks"),
    "tensor name not UTF-8": (raw_gguf([], [packed_tensor(b"\xff", [8])], bytes(64)), "a tensor name"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_says_what_is_wrong_with_it(name: str, tmp_path: Path):
    data, fragment = DAMAGED[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufError) as error:
        GgufFile(path)
    assert fragment in error.value.message
    assert error.value.where == str(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path):
    with pytest.raises(GgufError, match="no such file"):
        GgufFile(tmp_path / "none.gguf")
    with pytest.raises(GgufError, match="is a directory"):
        GgufFile(tmp_path)


def test_a_file_without_keys_and_tensors_is_a_gguf_all_the_same(tmp_path: Path):
    path = tmp_path / "x.gguf"
    path.write_bytes(raw_gguf())
    file = GgufFile(path)
    assert (file.keys, file.tensors) == ({}, {})


def test_version_2_reads_like_version_3(tmp_path: Path):
    path = tmp_path / "x.gguf"
    path.write_bytes(raw_gguf([packed_key("a", 4, ONE)], version=2))
    assert GgufFile(path).integer("a") == 1


def test_a_large_number_array_is_left_in_the_file(tmp_path: Path):
    # A sparse file: 200 MB of array that take no disk. As a Python list they would take 1.6 GB.
    count = 200 * 2**20
    path = tmp_path / "x.gguf"
    with path.open("wb") as out:
        out.write(raw_gguf([packed_key("a", 9, array_of(0, count))]))
        out.truncate(count + 4096)
    tracemalloc.start()
    try:
        file = GgufFile(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.keys["a"].kind == Kind.ARRAY
    assert peak < 2**20


# -- typed access ----------------------------------------------------------------------------------------------------


@pytest.fixture
def typed(tmp_path: Path) -> GgufFile:
    keys = [
        packed_key("u", 4, struct.pack("<I", 7)),
        packed_key("i", 5, struct.pack("<i", -7)),
        packed_key("f", 6, struct.pack("<f", 1.76)),
        packed_key("d", 12, struct.pack("<d", 1.76)),
        packed_key("b", 7, b"\x01"),
        packed_key("s", 8, packed_text("x")),
        packed_key("us", 9, array_of(4, 2, struct.pack("<II", 1, 2))),
        packed_key("fs", 9, array_of(6, 2, struct.pack("<ff", 0.1, 1.76))),
        packed_key("ss", 9, array_of(8, 2, packed_text("x") + packed_text(""))),
        packed_key("none", 9, array_of(4, 0)),
    ]
    path = tmp_path / "typed.gguf"
    path.write_bytes(raw_gguf(keys))
    return GgufFile(path)


ACCESS = {
    "integer": (lambda f: f.integer("u"), 7),
    "integer by default": (lambda f: f.integer("absent", 5), 5),
    "integer default 0": (lambda f: f.integer("absent", 0), 0),
    "float32 as its shortest decimal": (lambda f: f.number("f"), 1.76),
    "float64": (lambda f: f.number("d"), 1.76),
    "text": (lambda f: f.text("s"), "x"),
    "text by default": (lambda f: f.text("absent", ""), ""),
    "integers": (lambda f: f.integers("us"), [1, 2]),
    "numbers": (lambda f: f.numbers("fs"), [0.1, 1.76]),
    "texts": (lambda f: f.texts("ss"), ["x", ""]),
    "empty array": (lambda f: f.integers("none"), []),
}
WRONG = {
    "missing integer": (lambda f: f.integer("absent"), "absent: key is missing"),
    "missing text": (lambda f: f.text("absent"), "absent: key is missing"),
    "missing array": (lambda f: f.texts("absent"), "absent: key is missing"),
    "negative integer": (lambda f: f.integer("i"), "i: is not a non-negative integer"),
    "float for an integer": (lambda f: f.integer("f"), "f: is not a non-negative integer"),
    "bool for an integer": (lambda f: f.integer("b"), "b: is not a non-negative integer"),
    "text for an integer": (lambda f: f.integer("s"), "s: is not a non-negative integer"),
    "array for an integer": (lambda f: f.integer("us"), "us: is not a non-negative integer"),
    "wrong type beats the default": (lambda f: f.integer("s", 5), "s: is not a non-negative integer"),
    "integer for a float": (lambda f: f.number("u"), "u: is not a float"),
    "integer for a text": (lambda f: f.text("u"), "u: is not a string"),
    "text for an array": (lambda f: f.texts("s"), "s: is not an array of strings"),
    "integers for texts": (lambda f: f.texts("us"), "us: is not an array of strings"),
    "texts for integers": (lambda f: f.integers("ss"), "ss: is not an array of integers"),
    "floats for integers": (lambda f: f.integers("fs"), "fs: is not an array of integers"),
    "integers for floats": (lambda f: f.numbers("us"), "us: is not an array of floats"),
}


@pytest.mark.parametrize("name", ACCESS)
def test_typed_access(name: str, typed: GgufFile):
    get, value = ACCESS[name]
    assert get(typed) == value
    assert type(get(typed)) is type(value)
    if isinstance(value, list):
        assert [type(item) for item in get(typed)] == [type(item) for item in value]


@pytest.mark.parametrize("name", WRONG)
def test_a_key_of_another_type_is_named(name: str, typed: GgufFile):
    get, message = WRONG[name]
    with pytest.raises(GgufError) as error:
        get(typed)
    assert error.value.message == message


def test_text_that_is_not_utf8_is_found_when_it_is_read(tmp_path: Path):
    path = tmp_path / "x.gguf"
    path.write_bytes(raw_gguf([packed_key("a", 9, array_of(8, 2, packed_text("x") + packed_text(b"\xff")))]))
    file = GgufFile(path)
    with pytest.raises(GgufError, match="a: text is not UTF-8"):
        file.texts("a")
