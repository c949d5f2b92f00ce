"""The access log: one JSON line a reply, appended whole, to a file or to standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from layactl.core import strict_json
from layactl.errors import OutputError


def access_log(target: str | None, tell: Callable[[str], None]) -> Callable[[dict[str, Any]], None]:
    """target: a file, "-" for standard output, None for no log. Neither bodies nor keys are ever in it.

    tell: told once when it can no longer be written.

    Raises OutputError where the file cannot be appended to.
    """
    if target is None:
        return lambda entry: None
    if target == "-":
        descriptor = sys.stdout.fileno()
    else:
        try:
            descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise OutputError(f"cannot be written: {error.strerror}", where=target) from None

    told = False

    def write(entry: dict[str, Any]) -> None:
        nonlocal told
        record = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}
        line = strict_json.dumps(record).encode("utf-8", "backslashreplace") + b"\n"
        try:
            # One write, so that lines of several threads or processes never mix.
            written = os.write(descriptor, line)
            while written < len(line):
                written += os.write(descriptor, line[written:])
        except OSError as error:
            # A full disk must not stop the answers.
            if not told:
                told = True
                tell(f"the access log cannot be written: {error.strerror}")

    return write
