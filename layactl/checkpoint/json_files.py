"""JSON files of a checkpoint, read and parsed strictly."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from layactl.core import strict_json
from layactl.core.json_fields import JsonObject
from layactl.durable import read_limited
from layactl.errors import CheckpointError, RequestError

MAX_JSON_BYTES = 8 * 2**20
MAX_JSON_DEPTH = 127


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a regular file. Raises CheckpointError."""
    return read_limited(path, limit, CheckpointError)


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
    try:
        json.loads(data, object_pairs_hook=strict_json.unique_keys)
    except RequestError as error:
        raise CheckpointError(error.message, where=str(path)) from None
