"""The records of a JSONL file, each with its line number: nothing is skipped, nothing is guessed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from layactl.core import strict_json
from layactl.core.json_fields import JsonObject
from layactl.durable import check_regular
from layactl.errors import InputError, RequestError

_MAX_LINE_BYTES = 4 * 2**20


def read_records(path: Path) -> Iterator[tuple[int, JsonObject]]:
    """(line number, object) of every line. Only LF ends a line, and the last one needs none.

    Raises InputError naming the line: not JSON (NaN and Infinity are none), no object, blank, over 4 MiB.
    """
    check_regular(path)
    try:
        with path.open("rb") as handle:
            for number, line in enumerate(iter(lambda: handle.readline(_MAX_LINE_BYTES + 1), b""), start=1):
                where = f"{path}, line {number}"
                if len(line) > _MAX_LINE_BYTES:
                    raise InputError(f"the line is larger than {_MAX_LINE_BYTES} bytes", where=where)
                yield number, JsonObject(_object(line, where), where, InputError)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _object(line: bytes, where: str) -> dict[str, Any]:
    if not line.strip():
        raise InputError("the line is blank", where=where)
    try:
        value = strict_json.loads_strict(line)
    except RequestError as error:
        torn = not line.endswith(b"\n")
        raise InputError(
            f"the last line is torn: {error.message}" if torn else error.message,
            where=where,
            hint="a run that was stopped goes on with --resume" if torn else None,
        ) from None
    if not isinstance(value, dict):
        raise InputError("is not a JSON object", where=where)
    return value
