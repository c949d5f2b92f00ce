"""SHA-256 of ranges of open files, computed beside whatever the interpreter is doing.

Building a tokenizer holds the interpreter for seconds, and a thread that hashes slice by slice waits for it at every
slice. A child process does not: it inherits the open files and reads them at positions, as the parent would.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

_SLICE_BYTES = 4 * 2**20


@dataclass(frozen=True)
class FileRange:
    """nbytes of the open file `descriptor` from `offset` on."""

    descriptor: int
    offset: int
    nbytes: int


# Read by a Python that imports nothing of ours: lines of "descriptor offset nbytes" in, hex digests out.
_CHILD = f"""
import hashlib, os, sys
for line in sys.stdin.readlines():
    descriptor, start, left = map(int, line.split())
    digest = hashlib.sha256()
    while left:
        data = os.pread(descriptor, min(left, {_SLICE_BYTES}), start)
        if not data:
            sys.exit(1)
        digest.update(data)
        start, left = start + len(data), left - len(data)
    print(digest.hexdigest())
"""


class RangeDigests:
    """The digests of some ranges, being computed from the moment this is made."""

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        self._ranges = ranges
        self._child: subprocess.Popen[str] | None = None
        # An interpreter inside another program may have no executable of its own.
        with suppress(OSError):
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=sorted({part.descriptor for part in ranges}),
                text=True,
            )
            assert self._child.stdin is not None
            with self._child.stdin as orders:
                orders.writelines(f"{part.descriptor} {part.offset} {part.nbytes}\n" for part in ranges)

    def result(self) -> list[str]:
        """Hex digests in the order of the ranges. Raises OSError when a range cannot be read."""
        if self._child is not None:
            with self._child:
                assert self._child.stdout is not None
                lines = self._child.stdout.read().split()
            if self._child.returncode == 0 and len(lines) == len(self._ranges):
                return lines
        return [_digest(part) for part in self._ranges]

    def cancel(self) -> None:
        """Stop computing: nobody will ask for the result."""
        if self._child is not None:
            with self._child:
                self._child.kill()


def _digest(part: FileRange) -> str:
    digest = hashlib.sha256()
    start, left = part.offset, part.nbytes
    while left:
        data = os.pread(part.descriptor, min(left, _SLICE_BYTES), start)
        if not data:
            raise OSError("the file ended while it was read")
        digest.update(data)
        start, left = start + len(data), left - len(data)
    return digest.hexdigest()
