"""JSON files of a checkpoint, and typed access to their fields with errors that name file and field."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from layactl.errors import CheckpointError

MAX_JSON_BYTES = 8 * 2**20
MAX_JSON_DEPTH = 127


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
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


@dataclass(frozen=True)
class JsonObject:
    """An object inside a JSON file. field: dotted path to it, "" at the top."""

    path: Path
    values: dict[str, Any]
    field: str = ""

    def error(self, key: str, message: str) -> CheckpointError:
        return CheckpointError(f"{self.dotted(key)} {message}", where=str(self.path))

    def dotted(self, key: str) -> str:
        return f"{self.field}.{key}" if self.field else key

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"must be an integer, not {value!r:.60}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        return self.as_number(key, self._required(key, default))

    def as_number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(key, f"must be a finite number, not {value!r:.60}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._required(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"must be a string, not {value!r:.60}")
        return value

    def items(self, key: str) -> list[Any]:
        value = self._required(key, None)
        if not isinstance(value, list):
            raise self.error(key, "must be a list")
        return value

    def object(self, key: str, default: dict[str, Any] | None = None) -> JsonObject:
        value = self._required(key, default)
        if not isinstance(value, dict):
            raise self.error(key, "must be an object")
        return JsonObject(self.path, value, self.dotted(key))

    def _required(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise self.error(key, "is missing")
            return default
        return value


def parse_json_object(path: Path, data: bytes) -> JsonObject:
    """Raises CheckpointError for anything that is not one JSON object (NaN and invalid UTF-8 included)."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CheckpointError(f"{path.name} is not valid JSON: {error}", where=str(path)) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path.name} must hold a JSON object", where=str(path))
    _check_depth(path, value)
    return JsonObject(path, value)


def _check_depth(path: Path, value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
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
