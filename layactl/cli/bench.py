"""`layactl bench ...`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layactl.cli.models import ModelChoice
from layactl.cli.options import (
    MODEL,
    CacheDirOption,
    FolderOuttype,
    FolderOuttypeOption,
    MaxLenOption,
    Plan,
    QuietOption,
    SpecOption,
)
from layactl.cli.output import note, path_line, raw_text
from layactl.errors import UsageError

if TYPE_CHECKING:
    from layactl.bench.suite import SuiteRequest

app = typer.Typer(help="Measure latency and memory. No speed is told without parity.", invoke_without_command=True)

_REGRESSED = 1

SuiteOption = Annotated[
    Path | None,
    typer.Option("-f", "--suite", metavar="SUITE.jsonl", help="Requests to ask. Default: the suite of bench suite."),
]
ParityOption = Annotated[
    list[Path] | None,
    typer.Option("--parity", metavar="GATE.json|DIR", help="Reports of parity compare --json that cover the runs."),
]
UngatedOption = Annotated[
    bool, typer.Option("--allow-ungated", help="Show runs that no parity gate covers, and mark them so.")
]
RefOption = Annotated[
    str | None,
    typer.Option("--ref", metavar="CONFIG", help="What ratios are against. Default: the first peer by name."),
]
MarkdownOption = Annotated[
    Path | None, typer.Option("--markdown", metavar="REPORT.md", help="Write the tables as Markdown.")
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="REPORT.html", help="Write one self-contained page with plots.")
]


@app.callback()
def bench_command(
    context: typer.Context,
    model: Annotated[list[Path] | None, MODEL] = None,
    suite: SuiteOption = None,
    threads: Annotated[
        list[int] | None,
        typer.Option("-t", "--threads", metavar="N", min=1, max=1024, help="Repeatable. Default: the physical cores."),
    ] = None,
    kernels: Annotated[list[str] | None, typer.Option("--kernels", metavar="K", help="Repeatable.")] = None,
    plan: Annotated[list[Plan] | None, typer.Option("--plan", help="Repeatable.")] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="NAME=WHERE", help="laya=CHECKPOINT, laya-bf16=CHECKPOINT, llama-server=URL."),
    ] = None,
    peer_model: Annotated[
        Path | None, typer.Option("--peer-model", metavar="GGUF", help="What a llama-server program is started with.")
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", min=1, help="Rounds of the suite in a block.")] = 10,
    warmup: Annotated[int, typer.Option("--warmup", metavar="N", min=0, help="Rounds before them.")] = 1,
    cycles: Annotated[int, typer.Option("--cycles", metavar="N", min=1, help="Blocks of every configuration.")] = 3,
    idle_ms: Annotated[
        int, typer.Option("--idle-ms", metavar="MS", min=0, help="Pause before one more round, 0 for none.")
    ] = 0,
    foreign_max: Annotated[
        float,
        typer.Option("--foreign-max", metavar="CORES", help="What others may use before a block is measured again."),
    ] = 0.25,
    server_starts: Annotated[
        int, typer.Option("--server-starts", metavar="N", min=0, help="Also start servers and measure them over HTTP.")
    ] = 0,
    throughput: Annotated[
        int, typer.Option("--throughput", metavar="ROWS", min=0, help="Also time decide --jsonl on so many rows.")
    ] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run of about a minute.")] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Where the results go.", show_default=False)
    ] = None,
    parity: ParityOption = None,
    allow_ungated: UngatedOption = False,
    ref: RefOption = None,
    markdown: MarkdownOption = None,
    html: HtmlOption = None,
    spec: SpecOption = None,
    outtype: FolderOuttypeOption = FolderOuttype.f16,
    cache_dir: CacheDirOption = None,
    max_len: MaxLenOption = None,
    quiet: QuietOption = False,
) -> None:
    """Measure models through the server's code path in process, block by block, and print the report.

    Every block is a process of its own; configurations take turns, in an order that flips, and a block that others
    disturbed is measured again. Writes one DIR/CONFIG.json each, whole after every block.
    """
    if context.invoked_subcommand is not None:
        return
    if not model or out is None:
        raise UsageError("a benchmark needs -m MODEL and -o DIR", hint="layactl bench --help")
    from layactl.bench.configs import EngineChoice, peers
    from layactl.bench.run import Plan as BenchPlan
    from layactl.bench.run import measure
    from layactl.bench.suite import quick_suite
    from layactl.cli.bench_live import live
    from layactl.durable import check_target
    from layactl.engine.threads import command_threads

    chosen, notes = command_threads(None)
    for message in notes if not threads else ():
        note(message, quiet)
    resolved = [ModelChoice(path, outtype, cache_dir, quiet=quiet).resolve() for path in model]
    choice = EngineChoice(
        [(one.file.path, one.name) for one in resolved],
        threads or [chosen],
        kernels or [None],
        [one.value for one in plan] if plan else [None],
        spec,
        max_len,
    )
    requests = _suite(suite, choice.models[0][0], max_len)
    steps = BenchPlan(repeat, warmup, cycles, idle_ms, foreign_max, server_starts, throughput)
    if quick:
        requests = quick_suite(requests)
        steps = replace(steps, repeat=min(repeat, 3), cycles=1, idle_ms=0, server_starts=min(server_starts, 1))
    for target in (markdown, html):
        # The folder of the results itself is made with the first of them.
        if target is not None and target.parent.resolve() != out.resolve():
            check_target(target)
    with peers(peer or (), peer_model or choice.models[0][0], choice.threads[0]) as others:
        configs = [*choice.configs(), *others]
        if ref is not None and ref not in [config.label for config in configs]:
            raise UsageError(f"no configuration is called {ref!r:.80}", where="--ref")
        with live([config.label for config in configs], steps, quiet=quiet) as progress:
            for path in measure(configs, requests, steps, out, progress):
                note(f"written: {path}", quiet)
    _report(out, parity or (), ref, allow_ungated, markdown, html)


@app.command("report")
def report_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Results of a benchmark.", show_default=False)],
    parity: ParityOption = None,
    allow_ungated: UngatedOption = False,
    ref: RefOption = None,
    markdown: MarkdownOption = None,
    html: HtmlOption = None,
) -> None:
    """Print the report of results again."""
    _report(folder, parity or (), ref, allow_ungated, markdown, html)


@app.command("compare")
def compare_command(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Results before.", show_default=False)],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Results after.", show_default=False)],
    threshold: Annotated[
        float, typer.Option("--threshold", metavar="SHARE", min=0.0, help="How much slower is a regression.")
    ] = 0.1,
) -> int:
    """Compare results of one suite on one kind of CPU; exit code 1 when a group became too much slower.

    A change has to exceed what the cycles of the old run differ by among themselves, too.
    """
    from layactl.bench.compare import compare, compare_table
    from layactl.bench.kpi import read_measurements
    from layactl.cli.text_tables import print_tables

    changes = compare(read_measurements(old), read_measurements(new))
    print_tables([compare_table(changes, threshold)])
    regressions = sum(change.regressed(threshold) for change in changes)
    raw_text(f"{'FAIL' if regressions else 'PASS'}: {regressions} of {len(changes)} groups became slower")
    return _REGRESSED if regressions else 0


@app.command("load")
def load_command(
    rule: Annotated[
        Path | None, typer.Option("--rule", metavar="RULE.json", help="Rates, time and budget the run is judged by.")
    ] = None,
    model: Annotated[Path | None, MODEL] = None,
    server: Annotated[str | None, typer.Option("--server", metavar="URL", help="A running server.")] = None,
    api_key: Annotated[
        str | None, typer.Option("--api-key", metavar="K", help="With --server: its key.", envvar="LAYACTL_API_KEY")
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option("--rate", metavar="R", min=0.001, help="Requests a second; repeatable. Default: the rule's."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="S", min=0.1, help="Of each rate. Default: the rule's.")
    ] = None,
    suite: SuiteOption = None,
    request: Annotated[
        str, typer.Option("--request", metavar="ID", help="Which request of the suite is sent.")
    ] = "so-1q-noul",
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the arrivals.")] = 0,
    threads: Annotated[int | None, typer.Option("-t", "--threads", metavar="N", min=1, max=1024)] = None,
    kernels: Annotated[str | None, typer.Option("--kernels", metavar="K")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="LOAD.json", help="Write the result.", show_default=False)
    ] = None,
    quiet: QuietOption = False,
) -> int:
    """Send requests at given rates whether or not the server keeps up; latencies count from the scheduled arrival.

    With --rule the last line is a verdict: pass (exit code 0), fail (1), or not_a_gate_run (2), with its reasons.
    """
    from layactl.bench.load_rule import FAIL, NOT_A_GATE_RUN, read_rule
    from layactl.bench.load_run import LoadTarget, load_table, run_load
    from layactl.cli.text_tables import print_tables
    from layactl.core import strict_json
    from layactl.durable import replacing

    fixed = read_rule(rule) if rule else None
    rates = rate or (list(fixed.rates) if fixed else [])
    time = seconds or (fixed.seconds if fixed else None)
    if not rates or time is None:
        raise UsageError("neither a rule nor --rate and --seconds are given", hint="layactl bench load --help")
    if (model is None) == (server is None):
        raise UsageError("a load needs either -m MODEL or --server URL")
    if suite is None and model is None:
        raise UsageError("--server needs a suite, -f SUITE.jsonl", hint="layactl bench suite -m MODEL -o SUITE.jsonl")
    path = ModelChoice(model, quiet=quiet).resolve().file.path if model else None
    requests = _suite(suite, path or Path(), None)
    chosen = [one for one in requests if one.id == request]
    if not chosen:
        known = ", ".join(one.id for one in requests[:20])
        raise UsageError(f"the suite has no request {request!r:.80}", where="--request", hint=f"it has {known}")
    target = LoadTarget(path, server, api_key, threads, kernels)
    result = run_load(target, chosen[0], rates, time, seed, fixed, tell=lambda text: note(text, quiet))
    print_tables([load_table([cell.to_json() for cell in result.cells])])
    if out is not None:
        with replacing(out) as temporary:
            temporary.write_text(strict_json.dumps(result.to_json()) + "\n", encoding="utf-8")
    if result.verdict is None:
        return 0
    for reason in result.verdict.reasons:
        raw_text(f"  {reason}")
    raw_text(result.verdict.word)
    return {FAIL: 1, NOT_A_GATE_RUN: 2}.get(result.verdict.word, 0)


@app.command("suite")
def suite_command(
    model: Annotated[Path, MODEL],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="SUITE.jsonl", help="The file.", show_default=False)],
    outtype: FolderOuttypeOption = FolderOuttype.f16,
    cache_dir: CacheDirOption = None,
    max_len: MaxLenOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write the suite as a model's tokenizer makes it: texts of given lengths in tokens."""
    from layactl.bench.suite import suite_bytes
    from layactl.durable import replacing

    resolved = ModelChoice(model, outtype, cache_dir, quiet=quiet).resolve()
    data = suite_bytes(_suite(None, resolved.file.path, max_len))
    with replacing(out) as temporary:
        temporary.write_bytes(data)
    path_line(out)


def _suite(file: Path | None, model: Path, max_len: int | None) -> list[SuiteRequest]:
    from layactl.bench.suite import build_suite, read_suite, tokenizer_of

    if file is not None:
        return read_suite(file)
    tokenizer = tokenizer_of(model, max_len)
    return build_suite(lambda text: len(tokenizer.encode(text)))


def _report(
    folder: Path, parity: Sequence[Path], ref: str | None, allow_ungated: bool, markdown: Path | None, html: Path | None
) -> None:
    import layactl
    from layactl.bench.html_report import html_report
    from layactl.bench.kpi import read_measurements
    from layactl.bench.load_run import read_loads
    from layactl.bench.parity_cover import read_gates
    from layactl.bench.report import build_report
    from layactl.cli.text_tables import print_tables
    from layactl.durable import replacing
    from layactl.reporting.html_page import write_page

    gates = read_gates(parity)
    results = read_measurements(folder)
    report = build_report(results, gates, reference=ref, allow_ungated=allow_ungated, loads=read_loads(folder))
    print_tables(report.tables)
    if markdown is not None:
        with replacing(markdown) as temporary:
            temporary.write_text(report.markdown(), encoding="utf-8")
    if html is not None:
        write_page(html, html_report(report, reference=ref, foot=f"layactl {layactl.__version__}"))
    if report.refused and not report.shown:
        note("no run is covered: layactl parity compare ... --json GATE.json, then --parity GATE.json")
