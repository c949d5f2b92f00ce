"""`layactl decide`."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layactl.cli.models import ModelChoice
from layactl.cli.options import (
    AllowUncalibratedOption,
    CacheDirOption,
    FolderOuttype,
    FolderOuttypeOption,
    Format,
    KernelsOption,
    MaxLenOption,
    ModelOption,
    PlanOption,
    QuietOption,
    RoundOption,
    SpecOption,
    ThreadsOption,
    Truncation,
)
from layactl.cli.output import note, progress, record
from layactl.errors import UsageError

if TYPE_CHECKING:
    from layactl.decide.jsonl import LineOptions

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
    digits: RoundOption = None,
    threads: ThreadsOption = None,
    spec: SpecOption = None,
    kernels: KernelsOption = None,
    plan: PlanOption = None,
    debug: Annotated[bool, typer.Option("--debug", help="Add logits, token ids and markers to each answer.")] = False,
    jsonl: Annotated[
        str | None,
        typer.Option("--jsonl", metavar="FILE|-", help="Answer every line of a JSONL file (plain or gzip)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="OUT.jsonl", help="With --jsonl: the output file.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="With -o: go on after its last complete line.")] = False,
    allow_uncalibrated: AllowUncalibratedOption = False,
    outtype: FolderOuttypeOption = FolderOuttype.f16,
    cache_dir: CacheDirOption = None,
    max_len: MaxLenOption = None,
    quiet: QuietOption = False,
) -> int:
    """Answer typed questions about a state.

    One state with its questions, or with --jsonl one input object a line:
    {"id"?, "state", "questions"?, "truncation"?}, or a router request as `router score` takes it.
    Exit code 3 means that a JSONL run finished and refused some lines.
    """
    from layactl.decide.inputs import gather_questions
    from layactl.decide.jsonl import LineOptions
    from layactl.reporting.record_stream import refuse_inputs

    choice = ModelChoice(
        model, outtype, cache_dir, threads, spec, kernels, quiet, max_len, plan.value if plan else None
    )
    asked = gather_questions(questions, ask or [], preset or [])
    options = LineOptions(asked or None, truncation.value, debug, digits, allow_uncalibrated)
    if jsonl is None:
        if out is not None or resume:
            raise UsageError("-o and --resume go with --jsonl")
        return _single(choice, (text, state, state_file), options, output_format)
    if text is not None or state is not None or state_file is not None:
        raise UsageError("a state on the command line does not go with --jsonl")
    if output_format is not Format.json:
        raise UsageError("--format table does not go with --jsonl")
    if resume and out is None:
        raise UsageError("--resume needs -o OUT.jsonl")
    if out is not None and questions is not None:
        refuse_inputs(out, {"the questions file": str(questions)})
    return _many(choice, jsonl, options, out, resume)


def _single(
    choice: ModelChoice,
    state_sources: tuple[str | None, str | None, Path | None],
    options: LineOptions,
    output_format: Format,
) -> int:
    from layactl.decide.inputs import gather_state
    from layactl.decide.jsonl import rounded
    from layactl.engine.request import check_body_size

    if not options.questions:
        raise UsageError("no questions are given", hint="give --ask, --questions FILE or --preset NAME")
    body = {"state": gather_state(*state_sources), "questions": options.questions, "truncation": options.truncation}
    model = choice.load(choice.resolve())
    request = model.parse(body)
    check_body_size(body)
    response = rounded(model.respond(request, debug=options.debug), options.digits)
    for warning in response["warnings"]:
        note(warning["message"], choice.quiet)
    if output_format is Format.json:
        record(response)
    else:
        from layactl.cli.answer_table import print_table

        print_table(response)
    return 0


def _many(choice: ModelChoice, source_name: str, options: LineOptions, out: Path | None, resume: bool) -> int:
    from layactl.decide.inputs import LineSource
    from layactl.decide.jsonl import file_sink, run, stdout_sink

    with contextlib.ExitStack() as stack:
        source = stack.enter_context(LineSource(source_name))
        resolved = choice.resolve()
        model = choice.load(resolved)
        runtime = model.runtime() | {"max_len": model.limits.max_len}
        opened = (
            stdout_sink() if out is None else file_sink(out, resolved.file.path, source_name, options, resume, runtime)
        )
        sink, count = stack.enter_context(opened)
        first, started = count.lines, time.monotonic()
        # On a terminal the answers themselves are the progress.
        quiet = choice.quiet or (out is None and sys.stdout.isatty())
        update = stack.enter_context(progress("deciding", source.size, unit="share", quiet=quiet))

        def tick() -> None:
            rate = (count.lines - first) / max(1e-9, time.monotonic() - started)
            update(source.position, detail=f"{count.lines:,} lines, {rate:,.1f}/s, {count.refused:,} refused")

        run(model, source, sink, options, count=count, tick=tick, log=note)
    if resume and first:
        note(f"resumed after {first:,} lines", choice.quiet)
    note(f"{count.lines:,} lines, {count.refused:,} refused", choice.quiet)
    return _SOME_REFUSED if count.refused else 0
