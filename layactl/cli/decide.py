"""`layactl decide`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layactl.cli.options import Format, ModelOption, QuietOption, ThreadsOption, Truncation
from layactl.cli.output import note, progress, record
from layactl.errors import UsageError

if TYPE_CHECKING:
    from layactl.engine.model import Model

_SOME_REFUSED = 3


def decide_command(
    model: ModelOption,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The state as text; - reads standard input.")
    ] = None,
    state: Annotated[str | None, typer.Option("--state", metavar="JSON", help="The state as JSON.")] = None,
    state_file: Annotated[
        Path | None, typer.Option("--state-file", metavar="F", help="The state: a .json file, or any other as text.")
    ] = None,
    questions: Annotated[
        Path | None, typer.Option("--questions", metavar="F", help="A JSON file {id: {type, instructions, ...}}.")
    ] = None,
    ask: Annotated[
        list[str] | None,
        typer.Option("--ask", metavar="ASK", help="'[ID=]TYPE: question? option|option', repeatable."),
    ] = None,
    preset: Annotated[
        list[str] | None, typer.Option("--preset", metavar="NAME", help="Ready-made questions; see layactl presets.")
    ] = None,
    output_format: Annotated[Format, typer.Option("--format", help="How a single answer is printed.")] = Format.json,
    truncation: Annotated[
        Truncation, typer.Option("--truncation", help="Cut what does not fit, or refuse it.")
    ] = Truncation.allow,
    digits: Annotated[
        int | None, typer.Option("--round", metavar="N", min=0, max=17, help="Round the answers to N digits.")
    ] = None,
    threads: ThreadsOption = None,
    debug: Annotated[bool, typer.Option("--debug", help="Add logits, token ids and markers to each answer.")] = False,
    jsonl: Annotated[
        str | None,
        typer.Option("--jsonl", metavar="FILE|-", help="Answer every line of a JSONL file (plain or gzip)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="OUT.jsonl", help="With --jsonl: the output file.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="With -o: go on after its last complete line.")] = False,
    quiet: QuietOption = False,
) -> int:
    """Answer typed questions about a state.

    One state with its questions, or with --jsonl one input object a line:
    {"id"?, "state", "questions"?, "truncation"?}. Exit code 3 means that a JSONL run finished and refused some lines.
    """
    from layactl.decide.inputs import gather_questions

    asked = gather_questions(questions, ask or [], preset or [])
    if jsonl is None:
        if out is not None or resume:
            raise UsageError("-o and --resume go with --jsonl")
        return _single(
            model, (text, state, state_file), asked, output_format, truncation, digits, threads, debug, quiet
        )
    if text is not None or state is not None or state_file is not None:
        raise UsageError("a state on the command line does not go with --jsonl")
    if output_format is not Format.json:
        raise UsageError("--format table does not go with --jsonl")
    if resume and out is None:
        raise UsageError("--resume needs -o OUT.jsonl")
    from layactl.decide.jsonl import LineOptions

    options = LineOptions(asked or None, truncation.value, debug, digits)
    return _many(model, jsonl, options, out, resume, threads, quiet)


def _load(path: Path, threads: int | None, quiet: bool) -> Model:
    import layactl

    model = layactl.load(path, threads=threads)
    for message in model.notes:
        note(message, quiet)
    return model


def _single(
    path: Path,
    state_sources: tuple[str | None, str | None, Path | None],
    questions: dict[str, Any],
    output_format: Format,
    truncation: Truncation,
    digits: int | None,
    threads: int | None,
    debug: bool,
    quiet: bool,
) -> int:
    from layactl.decide.inputs import gather_state
    from layactl.decide.jsonl import rounded
    from layactl.engine.request import check_body_size

    if not questions:
        raise UsageError("no questions are given", hint="give --ask, --questions FILE or --preset NAME")
    body = {"state": gather_state(*state_sources), "questions": questions, "truncation": truncation.value}
    model = _load(path, threads, quiet)
    request = model.parse(body)
    check_body_size(body)
    response = rounded(model.respond(request, debug=debug), digits)
    for warning in response["warnings"]:
        note(warning["message"], quiet)
    if output_format is Format.json:
        record(response)
    else:
        from layactl.cli.answer_table import print_table

        print_table(response)
    return 0


def _many(
    path: Path, source_name: str, options: Any, out: Path | None, resume: bool, threads: int | None, quiet: bool
) -> int:
    from layactl.decide.inputs import LineSource
    from layactl.decide.jsonl import file_sink, run, stdout_sink

    source = LineSource(source_name)
    model = _load(path, threads, quiet)
    started = time.monotonic()
    opened = stdout_sink() if out is None else file_sink(out, path, source_name, options, resume)
    with opened as (sink, count):
        first = count.lines
        with progress(
            "deciding", source.size, unit="share", quiet=quiet or (out is None and sys.stdout.isatty())
        ) as update:

            def tick() -> None:
                rate = (count.lines - first) / max(1e-9, time.monotonic() - started)
                update(source.position, detail=f"{count.lines:,} lines, {rate:,.1f}/s, {count.refused:,} refused")

            run(model, source, sink, options, count=count, tick=tick, log=lambda message: note(message))
    if resume and first:
        note(f"resumed after {first:,} lines", quiet)
    note(f"{count.lines:,} lines, {count.refused:,} refused", quiet)
    return _SOME_REFUSED if count.refused else 0
