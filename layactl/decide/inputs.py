"""State and questions from what was typed: text, JSON, files, shorthand, presets."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from layactl.core import strict_json
from layactl.decide.ask import parse_asks
from layactl.decide.presets import preset_questions
from layactl.engine.request import MAX_BODY_BYTES, body_too_large
from layactl.errors import InputError, RequestError, UsageError

_GZIP_MAGIC = b"\x1f\x8b"


def gather_questions(file: Path | None, asks: Sequence[str], presets: Sequence[str]) -> dict[str, Any]:
    """The questions of all sources together.

    Raises UsageError, also when two share an id, and RequestError for shorthand that is no Unicode text.
    """
    sources = [preset_questions(name) for name in presets]
    if file is not None:
        sources.append(_questions_file(file))
    sources.append(parse_asks(asks))
    questions: dict[str, Any] = {}
    for source in sources:
        for question_id, definition in source.items():
            if question_id in questions:
                raise UsageError(f"two questions are called {question_id!r}")
            questions[question_id] = definition
    strict_json.check_value(questions, "questions")
    return questions


def gather_state(text: str | None, state: str | None, state_file: Path | None) -> Any:
    """One state: TEXT and non-.json files are text as they stand, --state and .json files are JSON.

    Raises UsageError unless exactly one source is given.
    """
    given = [source for source in (text, state, state_file) if source is not None]
    if len(given) != 1:
        found = "no state is given" if not given else "more than one state is given"
        raise UsageError(found, hint="give one of TEXT, --state JSON or --state-file FILE")
    if text is not None:
        if text == "-":
            return _decode(read_body(text), "standard input")
        return _decode(os.fsencode(text), "TEXT")
    if state is not None:
        return _parse_json(state.encode("utf-8", "surrogateescape"), "--state")
    assert state_file is not None
    data = _read_file(state_file)
    return _parse_json(data, str(state_file)) if state_file.suffix == ".json" else _decode(data, str(state_file))


def read_body(name: str) -> bytes:
    """The bytes of a file, or of standard input for "-"; of one over the 1 MiB limit just enough to show that it is.

    Raises InputError.
    """
    return standard_input().read(MAX_BODY_BYTES + 1) if name == "-" else _read_file(Path(name))


def standard_input() -> io.BufferedReader:
    """The bytes of standard input. Raises InputError where a caller has closed it."""
    if sys.stdin is None:
        raise InputError("standard input is closed")
    return cast(io.BufferedReader, sys.stdin.buffer)


def _questions_file(path: Path) -> dict[str, Any]:
    questions = _parse_json(_read_file(path), str(path))
    if not isinstance(questions, dict):
        raise InputError("questions must be a JSON object of id: definition", where=str(path))
    return questions


def _parse_json(data: bytes, where: str) -> Any:
    if len(data) > MAX_BODY_BYTES:
        raise body_too_large()
    try:
        return strict_json.loads_strict(data)
    except RequestError as error:
        raise InputError(error.message, where=where) from None


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as handle:
            return handle.read(MAX_BODY_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _decode(data: bytes, where: str) -> str:
    try:
        # A cut through a character only happens past the size limit, which is refused anyway.
        return data.decode("utf-8", "ignore" if len(data) > MAX_BODY_BYTES else "strict")
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text: {error.reason} at byte {error.start}", where=where) from None


def is_file(name: str) -> bool:
    """Whether an input can be read twice: a regular file, not "-" and not a pipe such as <(command)."""
    return name != "-" and Path(name).is_file()


class _Rejoined(io.RawIOBase):
    """A stream with bytes that were read from it put back in front."""

    def __init__(self, start: bytes, rest: io.BufferedReader) -> None:
        self._start, self._rest = start, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._start[: len(buffer)] or self._rest.read1(len(buffer))
        self._start = self._start[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


class LineSource:
    """The lines of a JSONL file, or of standard input for "-", plain or gzip; use it in a `with` block.

    Iterating yields each line without its line end, or None for a line over the 1 MiB limit, whose bytes are never
    held. position: bytes of the file read so far (compressed bytes of a gzip file); size: of the file, None for a pipe.
    """

    def __init__(self, name: str) -> None:
        self.name = "standard input" if name == "-" else name
        try:
            raw = standard_input() if name == "-" else Path(name).open("rb")  # noqa: SIM115 - lives as long as self
            self.size = Path(name).stat().st_size if is_file(name) else None
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=name) from None
        self._raw = raw
        # A pipe may hand over its first byte alone, so the magic number is read rather than peeked at.
        magic = self._raw.read(len(_GZIP_MAGIC))
        whole = cast(IO[bytes], io.BufferedReader(_Rejoined(magic, self._raw)))
        self._stream = cast(IO[bytes], gzip.GzipFile(fileobj=whole)) if magic == _GZIP_MAGIC else whole
        self._consumed = 0

    def __enter__(self) -> LineSource:
        return self

    def __exit__(self, *error: object) -> None:
        if self.name != "standard input":
            self._raw.close()

    @property
    def position(self) -> int:
        return self._consumed if self.size is None else self._raw.tell()

    def __iter__(self) -> Iterator[bytes | None]:
        try:
            while line := self._stream.readline(MAX_BODY_BYTES + 2):
                self._consumed += len(line)
                if line.endswith(b"\n") or len(line) <= MAX_BODY_BYTES:
                    body = line.removesuffix(b"\n").removesuffix(b"\r")
                    yield body if len(body) <= MAX_BODY_BYTES else None
                    continue
                while (rest := self._stream.readline(MAX_BODY_BYTES)) and not rest.endswith(b"\n"):
                    self._consumed += len(rest)
                yield None
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"cannot be read to its end: {error}", where=self.name) from None
