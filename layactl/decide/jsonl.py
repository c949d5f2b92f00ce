"""A JSONL run: one input object a line, exactly one output line each, in order, in constant memory."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from layactl import __version__
from layactl.core import strict_json
from layactl.decide.answering import Answering
from layactl.decide.inputs import LineSource, is_file
from layactl.durable import check_target, readable_name
from layactl.engine.request import body_too_large, internal_error, parse_body
from layactl.errors import OutputError, RequestError, ServerError, UsageError
from layactl.reporting.act_gate import ActGate
from layactl.reporting.record_stream import LineSink, file_sha256, record_stream, refuse_inputs

_RUN_FORMAT = "layactl-decide-run/1"
# Lines computed together at most, and tokens from which on no more are waited for. As many lines again are read and
# tokenized meanwhile, of at most 1 MiB each.
_WINDOW_LINES, _WINDOW_TOKENS = 16, 1024


@dataclass(frozen=True)
class LineOptions:
    """What every line of a run shares.

    questions: for lines without a `questions` key, None where none were given; allow_uncalibrated: of router lines;
    gate: what answers are acted on, None where nobody asked.
    """

    questions: dict[str, Any] | None
    truncation: str
    debug: bool
    digits: int | None
    allow_uncalibrated: bool = False
    gate: ActGate | None = None


@dataclass
class RunCount:
    """Lines answered and refused so far, those of an earlier, resumed run included."""

    answered: int = 0
    refused: int = 0

    @property
    def lines(self) -> int:
        return self.answered + self.refused


def run(
    answering: Answering,
    source: LineSource,
    sink: LineSink,
    options: LineOptions,
    *,
    count: RunCount,
    tick: Callable[[], None] = lambda: None,
    log: Callable[[str], None] = lambda message: None,
) -> None:
    """Answer the lines of `source` after the first `count.lines`, which an earlier run has written.

    sink: takes each output line, newline included; tick: called after each line; log: told of internal errors.
    """
    already = count.lines
    number = 0

    def todo() -> Iterator[tuple[int, bytes | None]]:
        nonlocal number
        for number, line in enumerate(source, start=1):
            if number > already:
                yield number, line

    # Only where the next line is there to be read: somebody may wait for this answer before writing it.
    lines = _WINDOW_LINES if source.size is not None else 1
    rows = _prepared(todo(), partial(_prepare, answering, options), lines if lines > 1 else 0)
    for window in _windows(rows, lines):
        for row in _computed(answering, window):
            record, refused = _answer(answering, row, options, log)
            sink(strict_json.dumps(record).encode("utf-8") + b"\n")
            count.refused += refused
            count.answered += not refused
            tick()
    if number < already:
        raise OutputError(f"the output holds {already} lines, but the input only {number}", where=source.name)


@dataclass(frozen=True)
class _Row:
    """A line on its way to an answer. ready: what is left to do, or why there is nothing; tokens: to compute."""

    number: int
    id: Any
    ready: Any
    tokens: int = 0


def _prepared(
    lines: Iterable[tuple[int, bytes | None]], prepare: Callable[[int, bytes | None], _Row], ahead: int
) -> Iterator[_Row]:
    """Lines parsed and tokenized in order, on another thread up to `ahead` of them before they are wanted: so much of
    the input is in memory and no more.
    """
    if not ahead:
        yield from (prepare(number, line) for number, line in lines)
        return
    waiting: deque[Future[_Row]] = deque()
    with ThreadPoolExecutor(max_workers=1) as beside:
        for number, line in lines:
            waiting.append(beside.submit(prepare, number, line))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _windows(rows: Iterable[_Row], lines: int) -> Iterator[list[_Row]]:
    """Neighbours that are computed together: as many as fill a pass, and few enough that answers are written soon."""
    window: list[_Row] = []
    for row in rows:
        window.append(row)
        if len(window) == lines or sum(each.tokens for each in window) >= _WINDOW_TOKENS:
            yield window
            window = []
    if window:
        yield window


def _computed(answering: Answering, window: list[_Row]) -> Iterator[_Row]:
    """The rows of a window with what `Answering.answer` takes. Where computing them together fails, each is tried
    alone: a failure is told of its own line.
    """
    good = [row for row in window if not isinstance(row.ready, Exception)]
    try:
        found = iter(answering.compute([row.ready for row in good]))
        computed = {row.number: next(found) for row in good}
    except Exception as error:
        if len(good) > 1:
            for row in window:
                yield from _computed(answering, [row])
            return
        computed = {row.number: error for row in good}
    for row in window:
        yield replace(row, ready=computed.get(row.number, row.ready))


def _prepare(answering: Answering, options: LineOptions, number: int, line: bytes | None) -> _Row:
    line_id: Any = number
    try:
        if line is None:
            raise body_too_large()
        if not line.strip():
            raise RequestError("MALFORMED_JSON", "the line is blank")
        body = parse_body(line)
        if isinstance(body.get("id"), (str, int, float)):
            line_id = body["id"]
        body.setdefault("truncation", options.truncation)
        if options.questions is not None and "candidates" not in body:
            body.setdefault("questions", options.questions)
        prepared = answering.prepare(body)
        return _Row(number, line_id, prepared, answering.tokens(prepared))
    except Exception as error:  # told where the line's answer is due
        return _Row(number, line_id, error)


def _answer(
    answering: Answering, row: _Row, options: LineOptions, log: Callable[[str], None]
) -> tuple[dict[str, Any], bool]:
    try:
        if isinstance(row.ready, Exception):
            raise row.ready
        return {"id": row.id, **rounded(answering.answer(row.ready), options.digits)}, False
    except RequestError as error:
        problem = error
    except ServerError:  # of no line: nothing that follows would be answered either
        raise
    except Exception as error:  # one line must never end the run; the detail goes to the log only
        log(f"line {row.number}: internal error: {type(error).__name__}: {error}")
        problem = internal_error()
    return {"id": row.id, "line": row.number, "error": problem.to_json()}, True


def rounded(response: dict[str, Any], digits: int | None) -> dict[str, Any]:
    """The response with the numbers of its answers or scores rounded to `digits` (None: as they are; debug stays as it
    is).
    """
    if digits is None:
        return response

    def shorten(value: Any) -> Any:
        if isinstance(value, float):
            return round(value, digits)
        return {k: shorten(v) for k, v in value.items()} if isinstance(value, dict) else value

    def fields(answer: dict[str, Any]) -> dict[str, Any]:
        return {k: v if k in ("debug", "legend", "choice") else shorten(v) for k, v in answer.items()}

    if "scores" in response:
        return response | {"scores": [fields(score) for score in response["scores"]]}
    return response | {"answers": {k: fields(answer) for k, answer in response["answers"].items()}}


@contextmanager
def stdout_sink() -> Iterator[tuple[LineSink, RunCount]]:
    """Standard output; every line is flushed, so that a pipe sees it at once."""
    out = sys.stdout.buffer

    def write(line: bytes) -> None:
        out.write(line)
        out.flush()

    yield write, RunCount()


@contextmanager
def file_sink(
    path: Path, source: str, options: LineOptions, resume: bool, *, model: dict[str, Any], runtime: dict[str, Any]
) -> Iterator[tuple[LineSink, RunCount]]:
    """An output file and its sidecar, new or continued.

    model: what identifies it, with its "path"; runtime: of `Answering.runtime`, which the answers depend on as much.
    Raises UsageError, OutputError.
    """
    check_target(path)
    refuse_inputs(path, {"the input": source, "the model": model["path"]})
    meta = _meta(source, options) | {"model": model, "runtime": runtime}
    if resume and not is_file(source):
        raise UsageError("--resume needs an input file, not a stream", where=f"--jsonl {source}")
    count = RunCount()

    def earlier(record: dict[str, Any]) -> None:
        refused = "error" in record
        count.refused += refused
        count.answered += not refused

    with record_stream(path, meta, resume=resume, earlier=earlier) as write:
        yield write, count


def _meta(source: str, options: LineOptions) -> dict[str, Any]:
    return {
        "format": _RUN_FORMAT,
        "layactl": __version__,
        "input": {"path": readable_name(source), "sha256": file_sha256(Path(source)) if is_file(source) else None},
        "options": {
            "questions": options.questions,
            "truncation": options.truncation,
            "debug": options.debug,
            "round": options.digits,
            "allow_uncalibrated": options.allow_uncalibrated,
            **({} if options.gate is None else {"gate": asdict(options.gate)}),
        },
    }
