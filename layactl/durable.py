"""Files written whole or not at all (temporary name, sync, rename), and read only where a file is regular."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from layactl.errors import InputError, LayactlError, OutputError

# The temporary name must fit where the name itself fits (255 bytes, of up to 4 a character).
_NAME_IN_TEMPORARY = 50


def readable_name(name: str | Path) -> str:
    """A file name as JSON and GGUF can hold it, whatever bytes it is made of."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def check_regular(path: Path, error: type[LayactlError] = InputError) -> None:
    """Raises `error` for what is there but no regular file: opening a pipe would wait for ever."""
    if path.exists() and not path.is_file():
        raise error(f"{path.name} is not a regular file", where=str(path))


def read_limited(path: Path, limit: int, error: type[LayactlError] = InputError) -> bytes:
    """The bytes of a regular file. Raises `error` where there is none, it cannot be read or is larger than `limit`."""
    check_regular(path, error)
    try:
        with path.open("rb") as handle:
            data = handle.read(limit + 1)
    except FileNotFoundError:
        raise error(f"{path.name} is missing", where=str(path)) from None
    except OSError as problem:
        raise error(f"{path.name} cannot be read: {problem.strerror}", where=str(path)) from None
    if len(data) > limit:
        raise error(f"{path.name} is larger than {limit} bytes", where=str(path))
    return data


def check_target(path: Path) -> None:
    """A path a result may be written to: new, or an existing regular file. Raises OutputError."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise OutputError("its folder does not exist", where=str(path)) from None
        return
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", where=str(path)) from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise OutputError(f"cannot be replaced: it is {kind}", where=str(path))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new, empty file beside `path`; when the block ends well it is synced and takes the name.

    When the block raises, the new file is gone and `path` is as it was. Raises OutputError where the file system says
    no (no such folder, no permission, disk full).
    """
    check_target(path)
    temporary = path.with_name(f".{path.name[:_NAME_IN_TEMPORARY]}.{secrets.token_hex(6)}.tmp")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            yield temporary
            sync(temporary)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync(path.parent)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", where=str(path)) from error


def sync(path: Path) -> None:
    """fsync a file or a folder (a folder sync makes a rename durable; not every file system offers it)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(descriptor)
