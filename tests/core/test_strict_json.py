"""core.strict_json: which documents are JSON here, and that what is written equals the standard library's spelling."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from layactl.core import strict_json
from layactl.errors import RequestError

UINT64_MAX, INT64_MIN = 2**64 - 1, -(2**63)
BOM = b"\xef\xbb\xbf"


def deep(levels: int, opening: str = "[", closing: str = "]") -> str:
    return opening * levels + closing * levels


ACCEPTED = {
    "object": (b'{"a": [1, 2.5, null, true, false, "x"]}', {"a": [1, 2.5, None, True, False, "x"]}),
    "any JSON space around it": (b" \t\r\n[1]\n", [1]),
    "scalar document": (b"3", 3),
    "largest uint64": (b"18446744073709551615", UINT64_MAX),
    "smallest int64": (b"-9223372036854775808", INT64_MIN),
    "largest double": (b"1.7976931348623157e308", 1.7976931348623157e308),
    "float that underflows": (b"1e-999", 0.0),
    "integer-valued float beyond uint64": (b"1e20", 1e20),
    "one leading BOM": (BOM + b'"x"', "x"),
    "BOM inside a string": (b'"\xef\xbb\xbfx"', "\ufeffx"),
    "surrogate pair": (b'"\\ud83d\\ude00"', "\U0001f600"),
    "surrogate pair in capitals": (b'"\\uD83D\\uDE00"', "\U0001f600"),
    "escaped backslash before u": (b'"\\\\ud800"', "\\ud800"),
    "escaped NUL": (b'"\\u0000"', "\x00"),
    "noncharacter": (b'"\xef\xbf\xbf"', "\uffff"),
    "128 levels of arrays": (deep(128).encode(), None),
    "brackets inside a string are no levels": (b'"' + b"[" * 500 + b'"', "[" * 500),
    "brackets after an escaped quote are no levels": (b'"\\"' + b"[" * 500 + b'"', '"' + "[" * 500),
    "200 arrays side by side": (("[" + ",".join(["[]"] * 200) + "]").encode(), [[]] * 200),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str):
    document, value = ACCEPTED[name]
    parsed = strict_json.loads_strict(document)
    assert parsed == json.loads(document.removeprefix(BOM))
    if value is not None:
        assert parsed == value
    assert strict_json.loads_strict(document.decode()) == parsed


REFUSED = {
    "empty": (b"", "MALFORMED_JSON", "character 0"),
    "blank": (b" \n", "MALFORMED_JSON", "expecting value"),
    "two documents": (b"1 2", "MALFORMED_JSON", "extra data"),
    "trailing comma": (b"[1,]", "MALFORMED_JSON", "not valid JSON"),
    "missing comma": (b"[1 2]", "MALFORMED_JSON", "delimiter at character 3"),
    "single quotes": (b"{'a': 1}", "MALFORMED_JSON", "character 1"),
    "comment": (b"[1] // one", "MALFORMED_JSON", "extra data"),
    "leading zero": (b"01", "MALFORMED_JSON", "extra data"),
    "plus sign": (b"+1", "MALFORMED_JSON", "expecting value"),
    "bare point": (b"1.", "MALFORMED_JSON", "extra data"),
    "line break in a string": (b'"a\nb"', "MALFORMED_JSON", "control character"),
    "no-break space between tokens": ("[1,\u00a02]".encode(), "MALFORMED_JSON", "character 3"),
    "unterminated string": (b'"abc', "MALFORMED_JSON", "unterminated"),
    "bad escape": (b'"\\x41"', "MALFORMED_JSON", "escape"),
    "short escape": (b'"\\u12"', "MALFORMED_JSON", "escape"),
    "two BOMs": (BOM + BOM + b"1", "MALFORMED_JSON", "character 0"),
    "UTF-16": ('"x"'.encode("utf-16"), "MALFORMED_JSON", "not UTF-8"),
    "overlong UTF-8": (b'"\xc0\x80"', "MALFORMED_JSON", "not UTF-8"),
    "surrogate as UTF-8": (b'"\xed\xa0\x80"', "MALFORMED_JSON", "not UTF-8"),
    "cut UTF-8": (b'"\xe2\x82', "MALFORMED_JSON", "character 1"),
    "high surrogate alone": (b'["\\ud800"]', "MALFORMED_JSON", "surrogate escape at character 2"),
    "low surrogate alone": (b'"\\udc00"', "MALFORMED_JSON", "surrogate"),
    "surrogates in the wrong order": (b'"\\ude00\\ud83d"', "MALFORMED_JSON", "surrogate"),
    "two high surrogates": (b'"\\ud83d\\ud83d\\ude00"', "MALFORMED_JSON", "surrogate"),
    "surrogate in a key": (b'{"\\ud800": 1}', "MALFORMED_JSON", "surrogate"),
    "surrogate after an escaped backslash": (b'"\\\\\\ud800"', "MALFORMED_JSON", "character 3"),
    "129 levels of arrays": (deep(129).encode(), "MALFORMED_JSON", "128 nested levels at character 128"),
    "129 levels of objects": (deep(129, '{"a":', "}").encode(), "MALFORMED_JSON", "128 nested levels"),
    "100,000 levels": (b"[" * 100_000, "MALFORMED_JSON", "128 nested levels"),
    "NaN": (b"[NaN]", "UNSUPPORTED_NUMBER", "NaN"),
    "-NaN": (b"[-NaN]", "UNSUPPORTED_NUMBER", "-NaN"),
    "Infinity": (b"Infinity", "UNSUPPORTED_NUMBER", "Infinity"),
    "-Infinity": (b'{"a": -Infinity}', "UNSUPPORTED_NUMBER", "-Infinity"),
    "float overflow": (b"1e309", "UNSUPPORTED_NUMBER", "1e309"),
    "negative float overflow": (b"-1e309", "UNSUPPORTED_NUMBER", "-1e309"),
    "integer over uint64": (b"18446744073709551616", "UNSUPPORTED_NUMBER", "18446744073709551616"),
    "integer under int64": (b"-9223372036854775809", "UNSUPPORTED_NUMBER", "-9223372036854775809"),
    "a megabyte of digits": (b"9" * 2**20, "UNSUPPORTED_NUMBER", "9..."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    document, reason, fragment = REFUSED[name]
    with pytest.raises(RequestError) as refusal:
        strict_json.loads_strict(document)
    assert (refusal.value.reason, refusal.value.code) == (reason, 400)
    assert fragment in refusal.value.message
    assert len(refusal.value.message) < 200


def test_text_with_an_unpaired_surrogate_is_refused():
    with pytest.raises(RequestError, match="unpaired surrogate at character 1") as refusal:
        strict_json.loads_strict('"\ud800"')
    assert refusal.value.reason == "MALFORMED_JSON"


def test_a_leading_bom_is_not_counted_in_positions():
    for document in (BOM + b"[1 2]", BOM.decode() + "[1 2]"):
        with pytest.raises(RequestError, match="character 3"):
            strict_json.loads_strict(document)


@pytest.mark.parametrize("piece", ["a", "\\n"])
def test_the_depth_of_a_large_document_costs_no_memory(piece: str):
    """Measured in a process of its own: what an expression keeps is not seen by tracemalloc."""
    program = (
        "import resource; from layactl.core.strict_json import check_text\n"
        f"text = '\"' + {piece!r} * (8_000_000 // {len(piece)}) + '\"' + '[]' * 200\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = used(); check_text(text); print(used() - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 32 * 2**20


@pytest.mark.parametrize("document", ['"a', '"a\\', '"a\\"', '"\\\\"', '"' + "\\" * 7, ""])
def test_brackets_after_any_string_are_counted_as_they_stand(document: str):
    """Held to a count by hand: a string that does not end swallows what follows."""
    text = document + "[" * (strict_json.MAX_DEPTH + 1)
    inside = escaped = False
    depth = 0
    for character in text:
        if inside:
            inside, escaped = escaped or character != '"', not escaped and character == "\\"
        elif character == '"':
            inside = True
        else:
            depth += character == "["
    if depth > strict_json.MAX_DEPTH:
        with pytest.raises(RequestError, match="nested levels"):
            strict_json.check_text(text)
    else:
        strict_json.check_text(text)


def test_a_key_that_is_there_twice_is_named():
    with pytest.raises(RequestError, match="the key 'a' is there twice"):
        json.loads('[{"b": 1, "a": 2, "a": 3}]', object_pairs_hook=strict_json.unique_keys)
    assert json.loads('{"a": {"a": 1}}', object_pairs_hook=strict_json.unique_keys) == {"a": {"a": 1}}


# One flaw each, complete in itself, so that any two can stand in one array.
FLAWS = {
    "nan": (b"NaN", "UNSUPPORTED_NUMBER"),
    "overflow": (b"1e400", "UNSUPPORTED_NUMBER"),
    "huge integer": (b"-18446744073709551616", "UNSUPPORTED_NUMBER"),
    "bad utf-8": (b'"a\xffb"', "MALFORMED_JSON"),
    "high surrogate": (b'"a\\ud800b"', "MALFORMED_JSON"),
    "low surrogate": (b'"a\\udc00b"', "MALFORMED_JSON"),
    "too deep": (deep(200).encode(), "MALFORMED_JSON"),
    "bad word": (b"nul", "MALFORMED_JSON"),
    "control character": (b'"\x01"', "MALFORMED_JSON"),
    "trailing comma": (b"[1,]", "MALFORMED_JSON"),
}


@pytest.mark.parametrize("second", FLAWS)
@pytest.mark.parametrize("first", FLAWS)
def test_of_two_flaws_the_first_in_document_order_decides(first: str, second: str):
    (early, reason), (late, _) = FLAWS[first], FLAWS[second]
    with pytest.raises(RequestError) as alone:
        strict_json.loads_strict(b'[0, "\xc3\xa9", ' + early + b"]")
    with pytest.raises(RequestError) as both:
        strict_json.loads_strict(b'[0, "\xc3\xa9", ' + early + b", " + late + b"]")
    assert both.value.reason == alone.value.reason == reason
    assert both.value.message == alone.value.message


def test_a_repeated_key_keeps_its_first_position_and_its_last_value():
    parsed = strict_json.loads_strict(b'{"a": 1, "b": 2, "a": {"c": 3}}')
    assert list(parsed.items()) == [("a", {"c": 3}), ("b", 2)]


# -- against the standard library ------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.one_of(
    st.integers(INT64_MIN, UINT64_MAX),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.1, 1e16, 1e-5, 1e22, 5e-324, -0.0, 1.7976931348623157e308, 123456789.123]),
)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_dumps_equals_the_standard_library(value: Any):
    assert strict_json.dumps(value) == json.dumps(value, ensure_ascii=False)


@given(JSON_VALUES)
def test_what_is_written_reads_back_the_same(value: Any):
    text = strict_json.dumps(value)
    # repr tells 1 from 1.0 and True, and 0.0 from -0.0.
    assert repr(strict_json.loads_strict(text.encode())) == repr(value)
    assert repr(strict_json.loads_strict(json.dumps(value, indent=1))) == repr(value)


@given(JSON_VALUES, st.data())
@example({"a": 1}, None)
def test_a_damaged_document_is_read_as_the_standard_library_reads_it_or_refused(value: Any, data: Any):
    document = bytearray(json.dumps(value, ensure_ascii=False).encode())
    if data is not None:
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(document)))
            piece = data.draw(
                st.sampled_from([b"", b'"', b"[", b"}", b"\\", b"\\u", b"d8", b"9", b"e9", b"\xff", b","])
            )
            document[at : at + data.draw(st.integers(0, 2))] = piece
    try:
        expected = json.loads(document.decode())
    except ValueError:
        with pytest.raises(RequestError):
            strict_json.loads_strict(bytes(document))
        return
    with contextlib.suppress(RequestError):  # stricter is right, different is not
        assert repr(strict_json.loads_strict(bytes(document))) == repr(expected)


LABELS = st.one_of(TEXT, st.booleans(), NUMBERS)


@given(LABELS)
@example(True)
@example(1.0)
@example("true")
def test_an_answer_key_is_spelled_as_json_spells_a_dict_key(label: Any):
    assert [strict_json.json_key(label)] == list(json.loads(json.dumps({label: None})))


# -- values handed in from Python ------------------------------------------------------------------------------------


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = ["x"]
    value.append(value)
    return value


PYTHON_VALUES = {
    "all JSON types": {"a": [None, True, 1, 2.5, "x", {"b": []}], "t": (1, 2)},
    "127 levels, 128 with the body around them": nested(127),
    "int keys": {1: "a"},
    "limits of integers": [INT64_MIN, UINT64_MAX],
    "many values at one level": [[]] * 1000,
}
PYTHON_FLAWS = {
    "nan": ([1, float("nan")], "UNSUPPORTED_NUMBER"),
    "infinity": ({"a": float("-inf")}, "UNSUPPORTED_NUMBER"),
    "nan as a key": ({float("nan"): 1}, "UNSUPPORTED_NUMBER"),
    "integer over uint64": (2**64, "UNSUPPORTED_NUMBER"),
    "integer under int64": ([[INT64_MIN - 1]], "UNSUPPORTED_NUMBER"),
    "surrogate": (["\ud800"], "MALFORMED_JSON"),
    "surrogate in a key": ({"\udfff": 1}, "MALFORMED_JSON"),
    "128 levels, 129 with the body around them": (nested(128), "MALFORMED_JSON"),
    "a list within itself": (endless(), "MALFORMED_JSON"),
    "bytes": (b"x", "INVALID_REQUEST"),
    "set": ({"a": {1, 2}}, "INVALID_REQUEST"),
    "complex": (1j, "INVALID_REQUEST"),
    "object": ([object()], "INVALID_REQUEST"),
    "tuple as a key": ({(1, 2): 3}, "INVALID_REQUEST"),
    "frozen set as a key": ({frozenset(): 3}, "INVALID_REQUEST"),
}


@pytest.mark.parametrize("name", PYTHON_VALUES)
def test_a_python_value_that_is_json_passes(name: str):
    strict_json.check_value(PYTHON_VALUES[name], "state")
    assert json.loads(strict_json.dumps(PYTHON_VALUES[name])) is not None


@pytest.mark.parametrize("name", PYTHON_FLAWS)
def test_a_python_value_that_is_no_json_is_refused(name: str):
    value, reason = PYTHON_FLAWS[name]
    with pytest.raises(RequestError) as refusal:
        strict_json.check_value(value, "state")
    assert (refusal.value.reason, refusal.value.param) == (reason, "state")


@given(JSON_VALUES)
def test_every_parsed_value_passes_the_check_of_python_values(value: Any):
    strict_json.check_value(strict_json.loads_strict(strict_json.dumps(value)), "state")


def test_messages_hold_no_line_break():
    for document, _, _ in REFUSED.values():
        with pytest.raises(RequestError) as refusal:
            strict_json.loads_strict(document)
        assert not re.search(r"[\r\n]", refusal.value.message)
