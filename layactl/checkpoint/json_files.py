"""JSON files of a checkpoint, read and parsed strictly."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from layactl.core.json_fields import JsonObject
from layactl.errors import CheckpointError

MAX_JSON_BYTES = 8 * 2**20
MAX_JSON_DEPTH = 127


def check_regular(path: Path) -> None:
    """Raises CheckpointError for what is there but no regular file: opening a pipe would wait for ever."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path.name} is not a regular file", where=str(path))


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    check_regular(path)
    try:
        with path.open("rb") as handle:
            data = handle.read(limit + 1)
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing", where=str(path)) from None
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}", where=str(path)) from None
    if len(data) > limit:
        raise CheckpointError(f"{path.name} is larger than {limit} bytes", where=str(path))
    return data


def parse_json_object(path: Path, data: bytes) -> JsonObject:
    """Raises CheckpointError for anything that is not one JSON object (NaN and invalid UTF-8 included)."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CheckpointError(f"{path.name} is not valid JSON: {error}", where=str(path)) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path.name} must hold a JSON object", where=str(path))
    _check_depth(path, value)
    return JsonObject(value, str(path), CheckpointError)


def _check_depth(path: Path, value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_JSON_DEPTH):
        # Level by level and by type alone: a tokenizer.json has a million values, nearly all of them leaves.
        children = list(chain.from_iterable(item.values() if type(item) is dict else item for item in level))
        if {dict, list}.isdisjoint(map(type, children)):
            return
        level = [child for child in children if type(child) in (dict, list)]
    raise CheckpointError(f"{path.name} is nested deeper than {MAX_JSON_DEPTH} levels", where=str(path))


def unique_keys(path: Path, data: bytes) -> None:
    """Refuse a JSON document in which an object repeats a key. Raises CheckpointError naming the key."""

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise CheckpointError(f"{repeated:.80} is there twice", where=str(path))
        return found

    json.loads(data, object_pairs_hook=check)
