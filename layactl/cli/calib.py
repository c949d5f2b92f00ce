"""`layactl calib ...`: labelled data becomes logits, and logits a calibration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layactl.cli.models import ModelChoice
from layactl.cli.options import (
    MODEL,
    CacheDirOption,
    FolderOuttype,
    FolderOuttypeOption,
    Format,
    KernelsOption,
    MaxLenOption,
    PlanOption,
    QuietOption,
    SpecOption,
    ThreadsOption,
    Truncation,
)
from layactl.cli.output import note, path_line, progress, record
from layactl.errors import UsageError

if TYPE_CHECKING:
    from layactl.calib.calibrator import Calibrator
    from layactl.calib.fit import Fit, Minimums
    from layactl.calib.logits import LogitsFile
    from layactl.calib.scorer import Scorer
    from layactl.labelled.labelled_file import Labelled

app = typer.Typer(help="Fit a calibration, prove it, and know when to trust it.", no_args_is_help=True)

_SOME_REFUSED = 3

LogitsArgument = Annotated[
    Path, typer.Argument(metavar="LOGITS.jsonl", help="What calib collect wrote, or outcomes with logits.")
]
HeldoutOption = Annotated[
    float | None,
    typer.Option(
        "--heldout-frac",
        metavar="F",
        help="Share of the records without a stated split that is held out. [0.3; with --fit as it was fitted]",
        show_default=False,
    ),
]
ResplitOption = Annotated[
    bool,
    typer.Option("--resplit", help="Hash every record, whatever split the data states. With --fit as it was fitted."),
]
ResamplesOption = Annotated[
    int, typer.Option("--resamples", metavar="B", min=0, max=100_000, help="Bootstrap resamples; 0: no intervals.")
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Of the bootstrap.")]
SpecFileOption = Annotated[
    Path | None,
    typer.Option("--spec", metavar="SPEC.json", help="The spec whose calibration is in force.", show_default=False),
]
ResultOption = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="RESULT.json", help="Write the result.", show_default=False)
]
FormatOption = Annotated[Format, typer.Option("--format", help="How the result is printed.")]


@app.command("collect")
def collect_command(
    data: Annotated[Path, typer.Argument(metavar="DATA.jsonl", help="Labelled decisions or router outcomes.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="LOGITS.jsonl", help="The file to write.", show_default=False)
    ],
    model: Annotated[Path | None, MODEL] = None,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="URL", help="Ask a running server (with --debug) instead of loading a model."),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option("--api-key", metavar="K", help="With --server: its key.", envvar="LAYACTL_API_KEY")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last complete record.")] = False,
    truncation: Annotated[
        Truncation, typer.Option("--truncation", help="Cut what does not fit, or refuse and skip it.")
    ] = Truncation.allow,
    threads: ThreadsOption = None,
    spec: SpecOption = None,
    kernels: KernelsOption = None,
    plan: PlanOption = None,
    outtype: FolderOuttypeOption = FolderOuttype.f16,
    cache_dir: CacheDirOption = None,
    max_len: MaxLenOption = None,
    quiet: QuietOption = False,
) -> int:
    """Run a model over labelled data and keep its raw logits, with what computed them.

    With --server a --spec is not loaded: it is the spec that the server must have been started with.
    Exit code 3 means that the run finished and some requests were refused; they are kept as such and skipped later.
    """
    from layactl.calib.collect import check_logits_target
    from layactl.labelled.labelled_file import read_labelled
    from layactl.labelled.outcomes import KIND as ROUTER

    check_logits_target(out, {"the labelled data": data, "the model": model, "the spec": spec})
    if server is not None:
        loading = (model, threads, kernels, plan, cache_dir, max_len)
        if any(value is not None for value in loading) or outtype is not FolderOuttype.f16:
            raise UsageError("-m, and what goes with a model loaded here, does not go with --server")
        from layactl.calib.server_scorer import ServerScorer
        from layactl.client.http_client import ServerClient

        labelled = read_labelled(data)
        with ServerClient(server, api_key=api_key) as client:
            remote = ServerScorer(client, decisions=labelled.kind != ROUTER, spec=spec)
            for message in remote.notes:
                note(message, quiet)
            return _collect(labelled, remote, out, truncation.value, resume, quiet)
    if model is None:
        raise UsageError("neither --model nor --server is given", hint="give -m MODEL or --server URL")
    from layactl.calib.scorer import EngineScorer

    choice = ModelChoice(
        model, outtype, cache_dir, threads, spec, kernels, quiet, max_len, plan.value if plan else None
    )
    labelled = read_labelled(data)
    resolved = choice.resolve()
    scorer = EngineScorer(choice.load(resolved), resolved.file)
    return _collect(labelled, scorer, out, truncation.value, resume, quiet)


def _collect(data: Labelled, scorer: Scorer, out: Path, truncation: str, resume: bool, quiet: bool) -> int:
    from layactl.calib.collect import Collected, collect

    with progress("collecting", len(data.records), unit="share", quiet=quiet) as update:

        def tick(count: Collected) -> None:
            update(count.written, detail=f"{count.written:,} records, {count.refused:,} refused")

        def log(message: str) -> None:
            note(message, quiet)

        done = collect(data, scorer, out, truncation=truncation, resume=resume, tick=tick, log=log)
    if done.before:
        note(f"resumed after {done.before:,} records", quiet)
    note(f"{done.written:,} records, {done.refused:,} refused", quiet)
    path_line(out)
    return _SOME_REFUSED if done.refused else 0


@app.command("fit")
def fit_command(
    logits: LogitsArgument,
    out: ResultOption = None,
    spec: SpecFileOption = None,
    spec_out: Annotated[
        Path | None,
        typer.Option("--spec-out", metavar="SPEC.json", help="Write the spec with the calibration and its kernels."),
    ] = None,
    stamp: Annotated[
        Path | None,
        typer.Option("--stamp", metavar="MODEL.gguf", help="Put that spec into the model the logits came from."),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="A,B", help="Router: what ships now, instead of the recorded calibration."),
    ] = None,
    min_examples: Annotated[
        int | None, typer.Option("--min-examples", metavar="N", help="Fewest of the fit split. [1000 router, else 100]")
    ] = None,
    min_per_class: Annotated[
        int | None, typer.Option("--min-per-class", metavar="N", help="Router: fewest of either outcome. [50]")
    ] = None,
    min_eval: Annotated[
        int | None, typer.Option("--min-eval", metavar="N", help="Fewest of the eval split. [200 router, else 100]")
    ] = None,
    min_count: Annotated[
        int | None, typer.Option("--min-count", metavar="N", help="Fewest answers of a temperature of its own. [100]")
    ] = None,
    heldout: HeldoutOption = None,
    resplit: ResplitOption = False,
    resamples: ResamplesOption = 1000,
    seed: SeedOption = 0,
    output_format: FormatOption = Format.table,
    quiet: QuietOption = False,
) -> None:
    """Fit temperatures (decisions) or the Platt parameters of the router, and compare before and after.

    The fit split is fitted on, the eval split judges; the fit split's own numbers are marked as in sample. The last
    line on stdout is the calibration block.
    """
    from layactl.calib.bootstrap import Bootstrap
    from layactl.calib.fit import fit
    from layactl.calib.result_file import write_result
    from layactl.calib.spec_update import base_calibration, check_stamp_target

    refuse_outputs(
        {"-o": out, "--spec-out": spec_out}, {"the logits": [logits], "the spec": [spec], "the model": [stamp]}
    )
    found = open_logits(logits, heldout, resplit, quiet)
    if stamp is not None:
        check_stamp_target(found, stamp)
    fitted = fit(
        found,
        _before(before, spec, found),
        _minimums(found, min_examples, min_per_class, min_eval, min_count),
        Bootstrap(resamples, seed),
        base_calibration(spec, stamp),
    )
    # The stamp first: it may still fail, and is then the only thing that was tried.
    if spec_out is not None or stamp is not None:
        _write_spec(fitted, spec, spec_out, stamp, quiet)
    if out is not None:
        write_result(out, fitted.to_json())
    if output_format is Format.json:
        record(fitted.to_json())
        return
    from layactl.calib.tables import fit_tables
    from layactl.cli.text_tables import print_tables

    print_tables(fit_tables(fitted))
    record(fitted.block)


def refuse_outputs(outputs: dict[str, Path | None], inputs: dict[str, Sequence[Path | None]]) -> None:
    """No output may replace an input, the sidecar of one, or another output, and all can be written.

    outputs: by option; inputs: by what they are. Raises UsageError, OutputError.
    """
    from layactl.durable import check_target
    from layactl.reporting.record_stream import refuse_input, sidecar

    given = {option: target for option, target in outputs.items() if target is not None}
    for option, target in given.items():
        for what, paths in inputs.items():
            for path in paths:
                refuse_input(target, {what: path, f"the sidecar of {what}": path and sidecar(path)})
        check_target(target)
        for other, first in given.items():
            if other != option and target.resolve() == first.resolve():
                raise UsageError(f"both {other} and {option} would write it", where=str(target))


def open_logits(path: Path, heldout: float | None, resplit: bool, quiet: bool, fit: Path | None = None) -> LogitsFile:
    """Read a file of logits, and say what the user should know about it.

    fit: a FIT.json, which holds out what was held out from it wherever heldout and resplit do not say otherwise.
    """
    from layactl.calib.fit_file import read_fit
    from layactl.calib.logits import check_heldout, read_logits
    from layactl.labelled.split import HELDOUT_FRACTION

    fraction = HELDOUT_FRACTION if heldout is None else check_heldout(heldout)
    if fit is not None:
        split = read_fit(fit).split
        fraction, resplit = split.heldout if heldout is None else fraction, resplit or split.resplit
    found = read_logits(path, heldout=fraction, stated_splits=not resplit)
    if found.refused:
        note(f"{found.refused:,} of {found.records:,} records were refused and are left out", quiet)
    if found.one_option:
        note(f"{found.one_option:,} answers to questions of one option are left out", quiet)
    if odd := found.odd_labels():
        note(f"{odd:,} answers have soft gold whose label is not its most probable option", quiet)
    if shared := found.shared_states():
        note(
            f"{shared:,} states or tasks are in both splits under different groups: the held-out numbers flatter", quiet
        )
    return found


def _before(pair: str | None, spec: Path | None, logits: LogitsFile) -> Calibrator:
    from dataclasses import replace

    from layactl.calib.calibrator import from_spec, recorded, uncalibrated
    from layactl.labelled.outcomes import KIND as ROUTER

    if pair is None:
        return from_spec(spec, logits) if spec is not None else recorded(logits)
    if logits.kind != ROUTER:
        raise UsageError("--before goes with router outcomes")
    try:
        a, b = (float(part) for part in pair.split(","))
        if not (abs(a) < 1e9 and abs(b) < 1e9):
            raise ValueError
    except ValueError:
        raise UsageError(f"must be two numbers A,B, not {pair!r:.40}", where="--before") from None
    return replace(uncalibrated(), source="--before", version="platt", platt=(a, b))


def _minimums(
    logits: LogitsFile, examples: int | None, per_class: int | None, held_out: int | None, cell: int | None
) -> Minimums:
    from dataclasses import replace

    from layactl.calib.fit import DECISION_MINIMUMS, ROUTER_MINIMUMS
    from layactl.labelled.outcomes import KIND as ROUTER

    asked = {"examples": examples, "per_class": per_class, "held_out": held_out, "cell": cell}
    given = {name: value for name, value in asked.items() if value is not None}
    if negative := [name for name, value in given.items() if value < 0]:
        raise UsageError(f"a minimum must not be negative: {negative[0]}")
    return replace(ROUTER_MINIMUMS if logits.kind == ROUTER else DECISION_MINIMUMS, **given)


def _write_spec(fitted: Fit, base: Path | None, spec_out: Path | None, stamp: Path | None, quiet: bool) -> None:
    from layactl.calib.spec_update import stamp_model, updated_spec, write_spec

    text, notes = updated_spec(fitted, base, stamp)
    for message in notes:
        note(message, quiet)
    if stamp is not None:
        stamped = stamp_model(fitted, stamp, text)
        note(f"stamped {stamp}: spec_sha256 {stamped.sha256}", quiet)
    if spec_out is not None:
        write_spec(spec_out, text)
        note(f"layactl spec set MODEL.gguf {spec_out} puts it into a model", quiet or stamp is not None)
