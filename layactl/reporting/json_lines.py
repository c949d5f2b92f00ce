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


def read_lines(path: Path, limit: int) -> Iterator[tuple[str, bytes]]:
    """(what errors say about the line, its bytes) of every line of a regular file. Only LF ends a line.

    Raises InputError, naming a line of more than `limit` bytes.
    """
    check_regular(path)
    try:
        with path.open("rb") as handle:
            for number, line in enumerate(iter(lambda: handle.readline(limit + 1), b""), start=1):
                where = f"{path}, line {number}"
                if len(line) > limit:
                    raise InputError(f"the line is larger than {limit} bytes", where=where)
                yield where, line
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def read_records(path: Path) -> Iterator[JsonObject]:
    """The object of every line, which the last one may end without LF.

    Raises InputError naming the line: not JSON (NaN and Infinity are none), no object, blank, over 4 MiB.
    """
    for where, line in read_lines(path, _MAX_LINE_BYTES):
        yield JsonObject(_object(line, where), where, InputError)


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
