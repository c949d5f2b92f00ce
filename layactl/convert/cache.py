"""Converted checkpoints, kept as CACHE/KEY/NAME.gguf.

An entry is used only when nobody else could have put it there (our own regular file in our own folder, not writable by
others) and its header and tensor table are whole; otherwise it is refused or converted again.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from layactl.convert.content_key import content_key
from layactl.convert.convert import convert
from layactl.durable import replacing
from layactl.errors import CheckpointError, GgufError, OutputError
from layactl.gguf_file.reader import GgufFile

_KEY = re.compile(r"[0-9a-f]{32}")
_STALE_SECONDS = 600


@dataclass(frozen=True)
class CachedModel:
    """A cached conversion. convert_ms: 0 on a hit; notes: what a conversion had to say."""

    file: GgufFile
    key: str
    cache_dir: Path
    outtype: str
    hit: bool
    convert_ms: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class CacheEntry:
    """One key folder. used: when it was last asked for, seconds since the epoch."""

    folder: Path
    name: str
    nbytes: int
    used: float


def default_cache_dir() -> Path:
    """$LAYACTL_CACHE, else `layactl/gguf` in the platform's cache folder."""
    if chosen := os.environ.get("LAYACTL_CACHE"):
        return Path(chosen)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "layactl" / "gguf"


def cached_conversion(
    root: Path, outtype: str, cache_dir: Path | None, progress: Callable[[int, int], None]
) -> CachedModel:
    """The GGUF of a checkpoint folder: from the cache, or converted into it.

    Processes that start at once on one folder each convert, and the last rename wins with the same bytes.
    Raises CheckpointError (also when the folder changes under the conversion) and OutputError.
    """
    cache = cache_dir if cache_dir is not None else default_cache_dir()
    if cache.resolve().is_relative_to(root.resolve()):
        raise OutputError("the cache lies inside the checkpoint folder", where=str(cache))
    key = content_key(root, outtype)
    folder = cache / key
    entry = folder / f"{root.resolve().name}.gguf"
    if _is_ours(folder, stat.S_ISDIR) and _is_ours(entry, stat.S_ISREG):
        with suppress(GgufError):
            file = GgufFile(entry)
            with suppress(OSError):
                os.utime(folder)
            return CachedModel(file, key, cache, outtype, hit=True, convert_ms=0.0, notes=())
    started = time.monotonic()
    _make_folder(folder)
    _remove_stale(folder)
    try:
        with replacing(entry) as temporary:
            conversion = convert(root, temporary, outtype=outtype, progress=progress)
            if content_key(root, outtype) != key:
                raise CheckpointError("the checkpoint changed while it was converted", where=str(root))
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # only when nothing is in it
        raise
    return CachedModel(
        GgufFile(entry), key, cache, outtype, False, (time.monotonic() - started) * 1000.0, tuple(conversion.notes())
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"the cache folder cannot be made: {error.strerror}", where=str(folder)) from None
    _is_ours(folder, stat.S_ISDIR)


def _is_ours(path: Path, kind: Callable[[int], bool]) -> bool:
    """Whether a path is there; OutputError when somebody else could have made it or could change it."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise OutputError(f"the cache cannot be read: {error.strerror}", where=str(path)) from None
    problem = None
    if stat.S_ISLNK(status.st_mode):
        problem = "is a symbolic link"
    elif not kind(status.st_mode):
        problem = "is not what a cache holds there"
    elif hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        problem = "belongs to another user"
    elif status.st_mode & stat.S_IWOTH:
        problem = "can be written by anybody"
    if problem:
        raise OutputError(
            f"the cache entry {problem}", where=str(path), hint="choose another --cache-dir, or remove it"
        )
    return True


def _remove_stale(folder: Path) -> None:
    """Temporary files of conversions that were killed."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > _STALE_SECONDS:
                path.unlink()


def list_entries(cache: Path) -> list[CacheEntry]:
    """Entries, most recently used first. Anything that is not a key folder of ours is left out."""
    entries = []
    for folder in sorted(cache.iterdir()) if cache.is_dir() else ():
        if not _KEY.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
            continue
        files = [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
        names = [path.stem for path in files if path.suffix == ".gguf"]
        nbytes = sum(path.stat().st_size for path in files)
        entries.append(CacheEntry(folder, names[0] if names else "", nbytes, folder.stat().st_mtime))
    return sorted(entries, key=lambda entry: -entry.used)


def choose_prunable(entries: list[CacheEntry], older_than: float | None, max_bytes: int | None) -> list[CacheEntry]:
    """Entries not used for `older_than` seconds, and the least recently used beyond `max_bytes` in all."""
    now, kept, chosen = time.time(), 0, []
    for entry in entries:
        too_old = older_than is not None and now - entry.used > older_than
        if too_old or (max_bytes is not None and kept + entry.nbytes > max_bytes):
            chosen.append(entry)
        else:
            kept += entry.nbytes
    return chosen


def remove_entry(entry: CacheEntry) -> None:
    """Remove one key folder: its GGUF and temporaries, and nothing a cache would not hold there."""
    try:
        for path in entry.folder.iterdir():
            if path.suffix in (".gguf", ".tmp"):
                path.unlink()
        entry.folder.rmdir()
    except OSError as error:
        raise OutputError(f"cannot be removed: {error.strerror}", where=str(entry.folder)) from None
