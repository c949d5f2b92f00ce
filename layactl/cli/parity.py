"""`layactl parity ...`: the corpus, runs of both sides, and the gate."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layactl.cli.models import ModelChoice
from layactl.cli.options import (
    CacheDirOption,
    Device,
    DeviceOption,
    FolderOuttype,
    FolderOuttypeOption,
    KernelsOption,
    MaxLenOption,
    ModelOption,
    PlanOption,
    QuietOption,
    SpecOption,
    ThreadsOption,
)
from layactl.cli.output import note, path_line, plain_line, progress, record
from layactl.errors import UsageError

if TYPE_CHECKING:
    from layactl.parity.answering import Side
    from layactl.parity.items import Items
    from layactl.parity.tiers import Tiers

app = typer.Typer(help="Prove that a model, a kernel or a version answers as the reference does.", no_args_is_help=True)

_FAILED, _REFUSED = 1, 2

ItemsArgument = Annotated[
    Path | None,
    typer.Argument(metavar="[ITEMS]", help="A JSONL file of items. Default: the shipped corpus.", show_default=False),
]
RunOption = Annotated[
    Path,
    typer.Option(
        "-o",
        "--out",
        metavar="RUN.jsonl",
        help="The run file to write; what ran goes into RUN.meta.json beside it.",
        show_default=False,
    ),
]
EnglishOption = Annotated[bool, typer.Option("--english", help="Only items whose letters are all ASCII.")]
EveryOption = Annotated[int, typer.Option("--every", metavar="N", min=1, help="Only one item of N.")]
ItemOption = Annotated[list[str] | None, typer.Option("--item", metavar="ID", help="Only this item; repeatable.")]
ShardOption = Annotated[str, typer.Option("--shard", metavar="I/N", help="Every N-th item from the I-th (from 0) on.")]
JobsOption = Annotated[
    int, typer.Option("--jobs", "-j", metavar="N", min=1, max=256, help="Processes, each with a model of its own.")
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on after the last complete record; everything that ran, --jobs and --threads too, as before.",
    ),
]
GateOption = typer.Option("--gate", metavar="TIER", help="The tier: strict-f32, f16-class or bf16-class.")
TiersOption = Annotated[
    Path | None,
    typer.Option("--tiers", metavar="TIERS.json", help="Default: the shipped tiers.json.", show_default=False),
]


@app.command("corpus")
def corpus_command(
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="ITEMS.jsonl", help="Write the items.", show_default=False)
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with what corpus.json records, and check the coverage.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option("--corpus", metavar="DIR", help="The text files.", show_default=False)
    ] = None,
) -> int:
    """Make the parity corpus: the same bytes everywhere. Exit code 1 when --check finds a difference."""
    from layactl.durable import replacing
    from layactl.parity.corpus.build import (
        LEXICON,
        PROSE,
        SUMMARY,
        build_corpus,
        check_corpus,
        corpus_bytes,
        corpus_summary,
    )
    from layactl.parity.shipped import shipped
    from layactl.reporting.record_stream import refuse_input

    folder = folder or shipped("corpus")
    if out is not None:
        refuse_input(out, {f"{name} of the corpus": folder / name for name in (PROSE, LEXICON, SUMMARY)})
    items = build_corpus(folder)
    if out is not None:
        with replacing(out) as temporary:
            temporary.write_bytes(corpus_bytes(items))
    record(corpus_summary(items))
    problems = check_corpus(folder) if check else []
    for problem in problems:
        plain_line(f"differs: {problem}")
    return _FAILED if problems else 0


@app.command("ref")
def ref_command(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="The checkpoint folder.")],
    out: RunOption,
    items: ItemsArgument = None,
    english: EnglishOption = False,
    every: EveryOption = 1,
    item: ItemOption = None,
    shard: ShardOption = "0/1",
    jobs: JobsOption = 1,
    threads: ThreadsOption = None,
    resume: ResumeOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run the reference (package laya, PyTorch, float32 on the CPU) over the items.

    It works on a private copy of the checkpoint, because it rewrites tokenizer files in place. Writes RUN.jsonl, one
    record an item, and RUN.meta.json, which says what ran.
    """
    from layactl.parity.answering import ReferenceSide
    from layactl.parity.run import check_run_target

    check_run_target(out, {"the checkpoint": checkpoint, "the items": items})
    side = ReferenceSide(checkpoint, _threads(threads, jobs, quiet))
    _run(side, _items(items, english, every, item, shard), out, jobs, resume, quiet)


class Via(StrEnum):
    """How a run reaches the engine."""

    engine = "engine"
    server = "server"


@app.command("run")
def run_command(
    model: ModelOption,
    out: RunOption,
    items: ItemsArgument = None,
    english: EnglishOption = False,
    every: EveryOption = 1,
    item: ItemOption = None,
    shard: ShardOption = "0/1",
    jobs: JobsOption = 1,
    threads: ThreadsOption = None,
    kernels: KernelsOption = None,
    plan: PlanOption = None,
    device: DeviceOption = Device.cpu,
    spec: SpecOption = None,
    outtype: FolderOuttypeOption = FolderOuttype.f16,
    cache_dir: CacheDirOption = None,
    max_len: MaxLenOption = None,
    via: Annotated[Via, typer.Option("--via", help="The engine in this process, or a server over HTTP.")] = Via.engine,
    resume: ResumeOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a model over the items through the engine, in this process or behind a server.

    Writes RUN.jsonl, one record an item, and RUN.meta.json, which says what ran.
    """
    from layactl.parity.answering import EngineSide, ServerSide
    from layactl.parity.run import check_run_target

    check_run_target(out, {"the model": model, "the items": items, "the spec": spec})
    resolved = ModelChoice(model, outtype, cache_dir, quiet=quiet).resolve()
    engine = EngineSide(
        resolved.file.path,
        resolved.name,
        _threads(threads, jobs, quiet),
        spec,
        kernels,
        max_len,
        plan.value if plan else None,
        device.value,
    )
    side: Side = engine if via is Via.engine else ServerSide(engine)
    _run(side, _items(items, english, every, item, shard), out, jobs, resume, quiet)


@app.command("merge")
def merge_command(
    shards: Annotated[list[Path], typer.Argument(metavar="SHARD...", help="The runs of all shards.")],
    out: RunOption,
) -> None:
    """Make one run (RUN.jsonl and RUN.meta.json) of the runs of all its shards, and print its path."""
    from layactl.parity.run_file import merge_runs

    note(f"{merge_runs(shards, out):,} items")
    path_line(out)


@app.command("compare")
def compare_command(
    baseline: Annotated[Path, typer.Argument(metavar="BASELINE", help="The run that is right.", show_default=False)],
    candidates: Annotated[
        list[Path], typer.Argument(metavar="CANDIDATE...", help="Runs to be judged.", show_default=False)
    ],
    gate: Annotated[str, GateOption],
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="W", help="The weights the candidate must have: F32, F16, BF16 or Q8_0."),
    ] = None,
    allow_identity_mismatch: Annotated[
        bool, typer.Option("--allow-identity-mismatch", help="Judge runs whose identities do not fit, and say so.")
    ] = False,
    tiers: TiersOption = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", metavar="GATE.json", help="Write the report.", show_default=False)
    ] = None,
) -> int:
    """Hold runs to a tier: exit code 0 passed, 1 failed, 2 refused because the runs do not fit the tier.

    Each run is a RUN.jsonl with its RUN.meta.json beside it. With several candidates the report is a list, and a
    failure beats a refusal.
    """
    from layactl.cli.gate_table import print_gate
    from layactl.core import strict_json
    from layactl.durable import replacing
    from layactl.parity.gate import judge
    from layactl.parity.run_file import read_run, run_files
    from layactl.reporting.record_stream import refuse_input

    known = _tiers(tiers)
    tier = known[gate]
    if json_out is not None:
        runs = {"the baseline": baseline} | {f"candidate {n}": path for n, path in enumerate(candidates, start=1)}
        refuse_input(json_out, {**run_files(runs), "the tiers file": known.path})
    # All are read before one is judged: what stands first is no verdict when a later one cannot be read.
    right, *judged = [read_run(path) for path in (baseline, *candidates)]
    reports = [
        judge(right, run, tier, known, weights=weights, allow_mismatch=allow_identity_mismatch) for run in judged
    ]
    for report in reports:
        print_gate(report)
    if json_out is not None:
        content = [report.to_json() for report in reports]
        with replacing(json_out) as temporary:
            text = strict_json.dumps(content[0] if len(content) == 1 else content)
            temporary.write_text(text + "\n", encoding="utf-8")
    verdicts = {report.verdict for report in reports}
    return _FAILED if "fail" in verdicts else _REFUSED if "refused" in verdicts else 0


@app.command("derive")
def derive_command(
    runs: Annotated[
        Path | None,
        typer.Option("--runs", metavar="DIR", help="Where the run files of the pairs are.", show_default=False),
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option("--pair", metavar="BASELINE,CANDIDATE", help="Show the bounds these runs give; repeatable."),
    ] = None,
    gate: Annotated[str, GateOption] = "bf16-class",
    check: Annotated[
        bool, typer.Option("--check", help="Exit code 1 when a published row was edited or a derived one is not so.")
    ] = False,
    tiers: TiersOption = None,
) -> int:
    """Bounds from runs: twice the largest value seen, rounded up to one significant digit.

    With --pair it prints the row these runs give; without, it goes through the rows of tiers.json, the derived ones
    from the run files in --runs, or from the values recorded for them.
    """
    from layactl.parity.derive import check_tiers, row_from_pairs

    known = _tiers(tiers)
    if pair:
        names = [tuple(value.split(",", 1)) for value in pair]
        if any(len(name) != 2 for name in names):
            raise UsageError("a pair is BASELINE,CANDIDATE", where="--pair")
        record(row_from_pairs(known[gate], known, [(name[0], name[1]) for name in names], runs or Path()))
        return 0
    problems = list(check_tiers(known, runs))
    for problem in problems:
        plain_line(f"differs: {problem}")
    if not problems:
        plain_line(f"{known.path.name}, version {known.version}: every row is what it says it is")
    return _FAILED if problems and check else 0


def _run(side: Side, items: Items, out: Path, jobs: int, resume: bool, quiet: bool) -> None:
    from layactl.parity.run import run

    identity = side.identity(items)
    with progress("answering", len(items.items), unit="share", quiet=quiet) as update:
        before, refused = run(
            side,
            items,
            out,
            identity,
            jobs=jobs,
            resume=resume,
            tick=lambda done: update(done, detail=f"{done:,} items"),
        )
    if before:
        note(f"resumed after {before:,} items", quiet)
    note(f"{len(items.items):,} items, {refused:,} refused", quiet)
    path_line(out)


def _items(path: Path | None, english: bool, every: int, only: list[str] | None, shard: str) -> Items:
    from layactl.parity.items import load_items

    numbers = whole_numbers(shard, "/")
    if len(numbers) != 2 or numbers[0] >= numbers[1]:
        raise UsageError("must be I/N with I below N", where=f"--shard {shard:.60}")
    return load_items(path, english=english, every=every, only=only or (), shard=(numbers[0], numbers[1]))


def whole_numbers(text: str, separator: str) -> list[int]:
    """The numbers of "0/3" or "1,2"; none where it is no such list, or a number is not of this world."""
    parts = text.split(separator)
    return [int(part) for part in parts] if all(re.fullmatch("[0-9]{1,9}", part) for part in parts) else []


def _threads(asked: int | None, jobs: int, quiet: bool) -> int:
    """Threads of one process: what was asked, else those of any command, shared out where there are several."""
    from layactl.engine.threads import command_threads

    threads, notes = command_threads(asked)
    for message in notes:
        note(message, quiet)
    return threads if asked is not None else max(1, threads // jobs)


def _tiers(path: Path | None) -> Tiers:
    from layactl.parity.shipped import shipped
    from layactl.parity.tiers import read_tiers

    return read_tiers(path or shipped("tiers.json"))
