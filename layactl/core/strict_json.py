"""Strict JSON: bytes <-> values, by the rules of the specification (Training and calibration tools, `loads_strict`).

What Python's own parser lets through and a probability must not depend on is refused: NaN and Infinity, integers
outside int64/uint64, floats that overflow, unpaired surrogates, more than 128 levels. The first failure in document
order decides. A repeated key keeps its first position and its last value; one leading UTF-8 BOM is skipped.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

from layactl.errors import RequestError

MAX_DEPTH = 128
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1

# A string (with its escapes), or a bracket. Skipping whole strings keeps brackets inside text out of the count.
# Possessive, so that nothing is kept to go back to: otherwise a string costs 115 bytes a character.
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
# High surrogate with its low one, low one alone, or any other escape (so that an escaped backslash is stepped over).
_SURROGATE_ESCAPE = re.compile(
    r"\\(?:u(d[89ab][0-9a-f]{2})(?:\\u(d[c-f][0-9a-f]{2}))?|u(d[c-f][0-9a-f]{2})|.)", re.DOTALL | re.IGNORECASE
)


def _number_error(message: str) -> NoReturn:
    raise RequestError("UNSUPPORTED_NUMBER", message)


def _parse_int(text: str) -> int:
    # 20 digits hold every uint64; the length test also keeps a megabyte of digits away from int().
    if len(text) <= 20:
        value = int(text)
        if _INT_MIN <= value <= _INT_MAX:
            return value
    _number_error(f"integer outside int64 and uint64: {_shorten(text)}")


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        _number_error(f"number overflows a double: {_shorten(text)}")
    return value


def _parse_constant(text: str) -> NoReturn:
    _number_error(f"{text} is not a JSON number")


def _shorten(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


_DECODER = json.JSONDecoder(parse_int=_parse_int, parse_float=_parse_float, parse_constant=_parse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False)


def loads_strict(data: bytes | str) -> Any:
    """Parse one JSON document.

    >>> loads_strict(b'{"a": [1, 2.5, "x"]}')
    {'a': [1, 2.5, 'x']}

    Raises RequestError: MALFORMED_JSON or UNSUPPORTED_NUMBER, whichever comes first in the document.
    """
    text, bad_text = _decode(data)
    flaws = [flaw for flaw in (bad_text, _too_deep(text), _lone_surrogate(text)) if flaw is not None]
    if not flaws:
        return _parse(text)
    position, message = min(flaws)
    sound = text[:position]
    try:
        _DECODER.decode(sound)
    except json.JSONDecodeError as error:
        # Cutting the text makes an error of its own at the cut; one before it came first in the document.
        if error.pos < len(sound.rstrip()) and not error.msg.startswith("Unterminated string"):
            _refuse(error)
    _malformed(message, position)


def _decode(data: bytes | str) -> tuple[str, tuple[int, str] | None]:
    """The text up to the first thing that is not Unicode text, and that flaw."""
    try:
        if isinstance(data, str):
            data.encode("utf-8")
            return data.removeprefix("\ufeff"), None
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8"), None
    except UnicodeEncodeError as error:
        text = error.object[: error.start].removeprefix("\ufeff")
        return text, (len(text), "unpaired surrogate")
    except UnicodeDecodeError as error:
        text = error.object[: error.start].decode("utf-8")
        return text, (len(text), f"not UTF-8, {error.reason}")


def _parse(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        _refuse(error)


def _refuse(error: json.JSONDecodeError) -> NoReturn:
    # The one spelling of a number that is none which Python's parser does not know.
    if error.doc.startswith("-NaN", error.pos):
        _parse_constant("-NaN")
    _malformed(error.msg, error.pos)


def _malformed(message: str, position: int) -> NoReturn:
    message = (message[:1].lower() + message[1:]).removesuffix(" at")
    raise RequestError("MALFORMED_JSON", f"not valid JSON: {message} at character {position}")


def _too_deep(text: str) -> tuple[int, str] | None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return None
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        token = text[match.start()]
        if token in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return match.start(), f"more than {MAX_DEPTH} nested levels"
        elif token in "]}":
            depth -= 1
    return None


def check_text(text: str) -> None:
    """What a parser of the standard library would let through, for documents that may hold NaN and the like.

    Raises RequestError MALFORMED_JSON for more than 128 levels and for unpaired surrogate escapes.
    """
    if flaws := [flaw for flaw in (_too_deep(text), _lone_surrogate(text)) if flaw is not None]:
        position, message = min(flaws)
        _malformed(message, position)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` for documents in which no key may be repeated. Raises RequestError MALFORMED_JSON."""
    found = dict(pairs)
    if len(found) != len(pairs):
        repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise RequestError("MALFORMED_JSON", f"the key {repeated!r:.80} is there twice")
    return found


def _lone_surrogate(text: str) -> tuple[int, str] | None:
    if "\\u" not in text:
        return None
    for match in _SURROGATE_ESCAPE.finditer(text):
        high, low, lone_low = match.groups()
        if lone_low or (high and not low):
            return match.start(), "unpaired surrogate escape"
    return None


def dumps(value: Any) -> str:
    """`json.dumps(value, ensure_ascii=False)`: separators ", " and ": ", floats by their repr, insertion order."""
    return _ENCODER.encode(value)


def json_key(label: Any) -> str:
    """A choice label as `json.dumps` writes a dict key: 3 -> "3", True -> "true", 2.5 -> "2.5"."""
    if isinstance(label, str):
        return label
    if label is True or label is False:
        return "true" if label else "false"
    if isinstance(label, float):
        return float.__repr__(label)
    return int.__repr__(label)


def check_value(value: Any, param: str, *, level: int = 2) -> None:
    """Hold a value handed in from Python to the rules a parsed document already meets.

    level: the nesting level the value would stand at in a document; 2 is a field of a request body.
    Raises RequestError naming `param`: UNSUPPORTED_NUMBER, MALFORMED_JSON (surrogates, depth) or INVALID_REQUEST
    (a type JSON does not have).
    """
    for item, depth in _walk(value, level):
        if depth > MAX_DEPTH:
            raise RequestError("MALFORMED_JSON", f"more than {MAX_DEPTH} nested levels", param=param)
        if isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError:
                raise RequestError("MALFORMED_JSON", "text holds an unpaired surrogate", param=param) from None
        elif isinstance(item, float):
            if not math.isfinite(item):
                raise RequestError("UNSUPPORTED_NUMBER", f"{item} is not a JSON number", param=param)
        elif isinstance(item, int):
            if not _INT_MIN <= item <= _INT_MAX:
                raise RequestError("UNSUPPORTED_NUMBER", "integer outside int64 and uint64", param=param)
        elif isinstance(item, dict) and any(isinstance(key, tuple) for key in item):
            raise RequestError("INVALID_REQUEST", "a tuple is no JSON key", param=param)
        elif item is not None and not isinstance(item, (dict, list, tuple)):
            raise RequestError("INVALID_REQUEST", f"{type(item).__name__} is not a JSON value", param=param)


def _walk(value: Any, depth: int) -> Iterator[tuple[Any, int]]:
    stack = [(value, depth)]
    while stack:
        item, level = stack.pop()
        container = isinstance(item, (dict, list, tuple))
        yield item, level if container else 1
        if level > MAX_DEPTH or not container:
            continue
        if isinstance(item, dict):
            stack.extend((key, 1) for key in item)
            item = item.values()
        stack.extend((child, level + 1) for child in item)
