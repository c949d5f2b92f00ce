"""`layactl calib ...`: labelled data becomes logits, and logits a calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layactl.cli.models import ModelChoice
from layactl.cli.options import (
    CacheDirOption,
    FolderOuttype,
    FolderOuttypeOption,
    KernelsOption,
    MaxLenOption,
    ModelOption,
    PlanOption,
    QuietOption,
    SpecOption,
    ThreadsOption,
    Truncation,
)
from layactl.cli.output import note, path_line, progress

app = typer.Typer(help="Fit a calibration, prove it, and know when to trust it.", no_args_is_help=True)

_SOME_REFUSED = 3


@app.command("collect")
def collect_command(
    data: Annotated[Path, typer.Argument(metavar="DATA.jsonl", help="Labelled decisions or router outcomes.")],
    model: ModelOption,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="LOGITS.jsonl", help="The file to write.", show_default=False)
    ],
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

    Exit code 3 means that the run finished and some requests were refused; they are kept as such and skipped later.
    """
    from layactl.calib.collect import Collected, check_logits_target, collect
    from layactl.calib.labelled import read_labelled
    from layactl.calib.scorer import EngineScorer

    check_logits_target(out, {"the labelled data": data, "the model": model, "the spec": spec})
    choice = ModelChoice(
        model, outtype, cache_dir, threads, spec, kernels, quiet, max_len, plan.value if plan else None
    )
    labelled = read_labelled(data)
    resolved = choice.resolve()
    scorer = EngineScorer(choice.load(resolved), resolved.file)
    with progress("collecting", len(labelled.records), unit="share", quiet=quiet) as update:

        def tick(count: Collected) -> None:
            update(count.written, detail=f"{count.written:,} records, {count.refused:,} refused")

        done = collect(labelled, scorer, out, truncation=truncation.value, resume=resume, tick=tick, log=note)
    if done.before:
        note(f"resumed after {done.before:,} records", quiet)
    note(f"{done.written:,} records, {done.refused:,} refused", quiet)
    path_line(out)
    return _SOME_REFUSED if done.refused else 0
