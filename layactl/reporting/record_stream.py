"""A JSONL output that grows by whole lines and can be continued, with a sidecar that says what it belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import orjson

from layactl.durable import check_target, read_limited, replacing, sync
from layactl.errors import InputError, OutputError, UsageError

_MAX_SIDECAR_BYTES = 16 * 2**20
_ABSENT = object()


class LineSink(Protocol):
    """Takes one line, its newline included."""

    def __call__(self, line: bytes, /) -> None: ...


def sidecar(path: Path) -> Path:
    """RUN.jsonl -> RUN.meta.json."""
    return path.with_name(path.name.removesuffix(".jsonl") + ".meta.json")


def refuse_inputs(path: Path, inputs: Mapping[str, str | Path | None]) -> None:
    """Neither an output nor its sidecar may replace what the run reads; see `refuse_input`. Raises UsageError."""
    for target in (path, sidecar(path)):
        refuse_input(target, inputs)


def refuse_input(target: Path, inputs: Mapping[str, str | Path | None]) -> None:
    """A file that is to be written may not be one that is read, nor lie in a folder that is read.

    inputs: {what it is: its path}; "-" is standard input, None what was not given. Raises UsageError.
    """
    for what, name in inputs.items():
        if name is None or name == "-" or not Path(name).exists():
            continue
        if target.exists() and target.samefile(name):
            raise UsageError(f"is {what} itself", where=str(target))
        if any(folder.exists() and folder.samefile(name) for folder in target.absolute().resolve().parents):
            raise UsageError(f"lies in {what}, which is only read", where=str(target))


@contextmanager
def record_stream(
    path: Path, meta: dict[str, Any], *, resume: bool, earlier: Callable[[dict[str, Any]], object]
) -> Iterator[LineSink]:
    """Open an output, new or continued; yields what writes a line.

    meta: all that the lines depend on, for the sidecar; --resume is refused when any of it differs, "path" values
    aside. earlier: called with each record that a continued output holds already; a torn last line is cut off.
    Raises UsageError, OutputError.
    """
    check_target(path)
    with _locked(path):
        if resume and path.exists():
            _check_meta(sidecar(path), meta)
        else:
            # The old lines go only now that everything the new run needs is known to be there.
            with replacing(path):
                pass
            with replacing(sidecar(path)) as temporary:
                temporary.write_bytes(orjson.dumps(meta, option=orjson.OPT_INDENT_2) + b"\n")
    try:
        # Unbuffered: every write hands one whole line to the system.
        with path.open("ab", buffering=0) as handle:
            _lock(handle, path)
            _continue_from(path, earlier)

            def write(line: bytes) -> None:
                view = memoryview(line)
                while view:
                    view = view[handle.write(view) :]

            yield write
        sync(path)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", where=str(path)) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the output that is there, if one is, while it is looked at and replaced."""
    if not path.exists():
        yield
        return
    with path.open("ab") as handle:
        _lock(handle, path)
        yield


def _lock(handle: IO[bytes], path: Path) -> None:
    """One run writes an output at a time; the lock goes with the process. Raises OutputError while another holds it."""
    try:
        import fcntl
    except ImportError:  # a platform without such locks
        return
    try:
        fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise OutputError("another run is writing it", where=str(path)) from None


def file_sha256(path: Path) -> str:
    """Raises InputError."""
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _check_meta(path: Path, meta: dict[str, Any]) -> None:
    try:
        recorded = orjson.loads(read_limited(path, _MAX_SIDECAR_BYTES))
    except (InputError, orjson.JSONDecodeError):
        recorded = None
    if not isinstance(recorded, dict):
        raise UsageError("the sidecar that says what this output belongs to cannot be read", where=str(path))
    for field in meta:
        # Through JSON, so that both sides are spelled alike.
        old, new = recorded.get(field), orjson.loads(orjson.dumps(meta[field]))
        if isinstance(old, dict) and isinstance(new, dict):
            old, new = ({k: v for k, v in value.items() if k != "path"} for value in (old, new))
        if difference := _difference(old, new, field):
            raise UsageError(
                f"cannot be resumed: it was started with different {difference}",
                where=str(path),
                hint="without --resume the output starts over, and its lines are lost",
            )


def _difference(old: Any, new: Any, field: str) -> str | None:
    """The innermost field that differs and both its values: "identity.threads: 1, now 2"."""
    if isinstance(old, dict) and isinstance(new, dict):
        inside = (
            _difference(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{field}.{key}")
            for key in [*new, *(key for key in old if key not in new)]
        )
        return next(filter(None, inside), None)
    if old == new:
        return None
    before, now = ("nothing" if value is _ABSENT else orjson.dumps(value).decode() for value in (old, new))
    return f"{field:.120}: {before:.60}, now {now:.60}"


def _continue_from(path: Path, earlier: Callable[[dict[str, Any]], object]) -> None:
    """Show the whole lines of an output and cut off a torn last one."""
    end = 0
    with path.open("r+b") as handle:
        for number, line in enumerate(handle, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                record = None
            if not isinstance(record, dict):
                raise OutputError(f"line {number} is not a record of a run", where=str(path))
            earlier(record)
            end += len(line)
        handle.truncate(end)
