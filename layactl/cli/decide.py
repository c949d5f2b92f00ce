"""`layactl decide`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from layactl.cli.models import ModelChoice
from layactl.cli.options import (
    MODEL,
    AllowUncalibratedOption,
    CacheDirOption,
    Device,
    DeviceOption,
    FolderOuttype,
    FolderOuttypeOption,
    Format,
    KernelsOption,
    MaxLenOption,
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
    from layactl.decide.answering import Answering
    from layactl.decide.jsonl import LineOptions
    from layactl.reporting.act_gate import ActGate

_SOME_REFUSED = 3


def decide_command(
    model: Annotated[Path | None, MODEL] = None,
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
    output_format: Annotated[Format, typer.Option("--format", help="How answers are printed.")] = Format.json,
    truncation: Annotated[
        Truncation, typer.Option("--truncation", help="Cut what does not fit, or refuse it.")
    ] = Truncation.allow,
    digits: RoundOption = None,
    threads: ThreadsOption = None,
    spec: SpecOption = None,
    kernels: KernelsOption = None,
    plan: PlanOption = None,
    device: DeviceOption = Device.cpu,
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
    min_confidence: Annotated[
        str | None,
        typer.Option(
            "--min-confidence",
            metavar="X|GATE.json",
            help="Say in each answer whether to act on it: from this answer_confidence on, or by calib threshold.",
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="URL", help="Ask a running layactl serve instead of loading a model."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", metavar="K", help="With --server: its key.", envvar="LAYACTL_API_KEY"),
    ] = None,
    outtype: FolderOuttypeOption = FolderOuttype.f16,
    cache_dir: CacheDirOption = None,
    max_len: MaxLenOption = None,
    quiet: QuietOption = False,
) -> int:
    """Answer typed questions about a state.

    One state with its questions, or with --jsonl one input object a line:
    {"id"?, "state", "questions"?, "truncation"?}, or a router request as `router score` takes it.
    The model is -m MODEL, or the one of a running server, --server URL.
    Exit code 3 means that a JSONL run finished and refused some lines.
    """
    from layactl.decide.inputs import gather_questions
    from layactl.decide.jsonl import LineOptions
    from layactl.reporting.record_stream import refuse_inputs

    asked = gather_questions(questions, ask or [], preset or [])
    gate = _gate(min_confidence)
    options = LineOptions(asked or None, truncation.value, debug, digits, allow_uncalibrated, gate)
    answerer: _Answerer
    if server is not None:
        loading = (model, threads, spec, kernels, plan, cache_dir, max_len)
        other = allow_uncalibrated or outtype is not FolderOuttype.f16 or device is not Device.cpu
        if other or any(value is not None for value in loading):
            raise UsageError("-m, and what goes with a model loaded here, does not go with --server")
        answerer = _Server(server, api_key, debug, quiet)
    elif model is None:
        raise UsageError("neither --model nor --server is given", hint="give -m MODEL or --server URL")
    else:
        plan_name = plan.value if plan else None
        choice = ModelChoice(
            *(model, outtype, cache_dir, threads, spec, kernels, quiet, max_len, plan_name), device=device.value
        )
        answerer = _Loaded(choice, options)
    if jsonl is None:
        if out is not None or resume:
            raise UsageError("-o and --resume go with --jsonl")
        return _single(answerer, (text, state, state_file), options, output_format)
    if text is not None or state is not None or state_file is not None:
        raise UsageError("a state on the command line does not go with --jsonl")
    if output_format is not Format.json and out is not None:
        raise UsageError("--format table does not go with -o")
    if resume and out is None:
        raise UsageError("--resume needs -o OUT.jsonl")
    if out is not None and questions is not None:
        refuse_inputs(out, {"the questions file": str(questions)})
    if out is not None and min_confidence is not None:
        refuse_inputs(out, {"the gate": min_confidence})
    return _many(answerer, jsonl, options, out, resume, output_format)


class _Answerer(Protocol):
    """Where answers come from, opened when all else is known to be sound."""

    @property
    def quiet(self) -> bool: ...

    def open(self) -> AbstractContextManager[tuple[Answering, Callable[[], dict[str, Any]]]]:
        """Yields it, and what identifies its model."""
        ...


@dataclass(frozen=True)
class _Loaded:
    choice: ModelChoice
    options: LineOptions

    @property
    def quiet(self) -> bool:
        return self.choice.quiet

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[Answering, Callable[[], dict[str, Any]]]]:
        from layactl.decide.local import LocalAnswering
        from layactl.durable import readable_name
        from layactl.reporting.record_stream import file_sha256

        resolved, options = self.choice.resolve(), self.options
        path, model = resolved.file.path, self.choice.load(resolved)
        local = LocalAnswering(model, debug=options.debug, allow_uncalibrated=options.allow_uncalibrated)
        yield local, lambda: {"path": readable_name(path), "sha256": file_sha256(path)}


@dataclass(frozen=True)
class _Server:
    url: str
    api_key: str | None
    debug: bool
    quiet: bool

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[Answering, Callable[[], dict[str, Any]]]]:
        from layactl.client.http_client import ServerClient
        from layactl.decide.remote import RemoteAnswering

        # A server takes several keys by commas; a variable that both read may hold more than one.
        key = self.api_key.split(",")[0].strip() if self.api_key else None
        with ServerClient(self.url, api_key=key, tell=lambda text: note(text, self.quiet)) as client:
            remote = RemoteAnswering(client, debug=self.debug)
            decision = remote.props["decision"]
            name, sha256 = remote.props.get("model_alias"), decision.get("model_sha256")
            yield remote, lambda: {"path": self.url, "name": name, "sha256": sha256}


def _gate(text: str | None) -> ActGate | None:
    from layactl.reporting.act_gate import read_gate

    gate = None if text is None else read_gate(text)
    if gate is not None and gate.kind == "router":
        raise UsageError(
            "is a gate for router scores, which are the caller's to judge", where=f"--min-confidence {text}"
        )
    return gate


def _gated(answering: Answering, options: LineOptions) -> Answering:
    from layactl.decide.gated import GatedAnswering

    return answering if options.gate is None else GatedAnswering(answering, options.gate, "--min-confidence")


def _single(
    answerer: _Answerer,
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
    check_body_size(body)
    with answerer.open() as (opened, _):
        answering = _gated(opened, options)
        (computed,) = answering.compute([answering.prepare(body)])
        response = rounded(answering.answer(computed), options.digits)
    for warning in response["warnings"]:
        note(warning["message"], answerer.quiet)
    if output_format is Format.json:
        record(response)
    else:
        from layactl.cli.answer_table import print_table

        print_table(response)
    return 0


def _many(
    answerer: _Answerer,
    source_name: str,
    options: LineOptions,
    out: Path | None,
    resume: bool,
    output_format: Format,
) -> int:
    from layactl.decide.inputs import LineSource
    from layactl.decide.jsonl import file_sink, run, stdout_sink

    quiet = answerer.quiet
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(LineSource(source_name))
        ungated, identity = stack.enter_context(answerer.open())
        answering = _gated(ungated, options)
        if out is None:
            opened = stdout_sink()
        else:
            opened = file_sink(out, source_name, options, resume, model=identity(), runtime=answering.runtime())
        sink, count = stack.enter_context(opened)
        if output_format is Format.table:
            from layactl.cli.answer_table import print_line

            sink = print_line
        first, started = count.lines, time.monotonic()
        # On a terminal the answers themselves are the progress.
        silent = quiet or (out is None and sys.stdout.isatty())
        update = stack.enter_context(progress("deciding", source.size, unit="share", quiet=silent))

        def tick() -> None:
            rate = (count.lines - first) / max(1e-9, time.monotonic() - started)
            update(source.position, detail=f"{count.lines:,} lines, {rate:,.1f}/s, {count.refused:,} refused")

        run(answering, source, sink, options, count=count, tick=tick, log=note)
    if resume and first:
        note(f"resumed after {first:,} lines", quiet)
    note(f"{count.lines:,} lines, {count.refused:,} refused", quiet)
    return _SOME_REFUSED if count.refused else 0
