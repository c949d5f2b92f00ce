"""The cache key of a checkpoint folder: what a conversion of it would read (specification, "Loading a Hugging Face
checkpoint directly").

Files up to 8 MiB count by their content, because an edit can keep size and time (a digit in a config). Larger ones
count by size, modification time in ns and symlink target: hashing the weights at every start would cost more than it
saves.
What the key cannot see is a rewrite of a large file that keeps its size and restores its time.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from layactl.errors import CheckpointError

# Raised with every change of the written bytes, and with every input that is newly refused.
CONVERTER_VERSION = 2
_CACHE_FORMAT = 1
_CONTENT_BYTES = 8 * 2**20
_MAX_ENTRIES = 20_000
_READ_FOLDERS = ("", "encoder", "tokenizer")


def content_key(root: Path, outtype: str) -> str:
    """32 hex digits. Raises CheckpointError when the folder cannot be read or is absurdly large."""
    digest = hashlib.sha256()
    digest.update(f"layactl cache {_CACHE_FORMAT}\nconverter {CONVERTER_VERSION}\nouttype {outtype}\n".encode())
    # The folder's name ends up in general.name.
    digest.update(os.fsencode(f"name {root.resolve().name}\n"))
    for entry in _entries(root):
        digest.update(entry + b"\0")
    return digest.hexdigest()[:32]


def _entries(root: Path) -> Iterator[bytes]:
    count = 0
    for folder in _READ_FOLDERS:
        try:
            names = sorted(path.name for path in (root / folder).iterdir())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointError(f"cannot be read: {error.strerror}", where=str(root / folder)) from None
        for name in names:
            if name.startswith("."):
                continue
            count += 1
            if count > _MAX_ENTRIES:
                raise CheckpointError(f"holds more than {_MAX_ENTRIES} files", where=str(root))
            relative = f"{folder}/{name}" if folder else name
            yield os.fsencode(relative) + b" " + _fingerprint(root / relative)


def _fingerprint(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            # Folders count by name, the converter never reads below them; anything else it never opens.
            return b"other"
        if status.st_size <= _CONTENT_BYTES:
            return f"{status.st_size} {hashlib.sha256(path.read_bytes()).hexdigest()}".encode()
        target = os.fsencode(path.readlink()) if path.is_symlink() else b""
        return f"{status.st_size} {status.st_mtime_ns} ".encode() + target
    except FileNotFoundError:
        return b"dangling"
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=str(path)) from None
