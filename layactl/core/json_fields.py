"""Typed access to the fields of a JSON object, with errors that name where it stands and which field it was."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from layactl.errors import LayactlError


@dataclass(frozen=True)
class JsonObject:
    """An object inside a JSON document.

    where: what errors say about the document; error_type: which error; field: dotted path to it, "" at the top.
    """

    values: dict[str, Any]
    where: str
    error_type: type[LayactlError]
    field: str = ""

    def error(self, key: str, message: str) -> LayactlError:
        return self.error_type(f"{self.dotted(key):.120} {message}", where=self.where)

    def dotted(self, key: str) -> str:
        return f"{self.field}.{key}" if self.field else key

    def inside(self, values: dict[str, Any], key: str) -> JsonObject:
        """Another object of the same document, at `key` below this one."""
        return JsonObject(values, self.where, self.error_type, self.dotted(key))

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
        return self.inside(value, key)

    def _required(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise self.error(key, "is missing")
            return default
        return value
