"""`layactl calib eval ...`: what the probabilities are worth, and when to act on them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layactl.cli.calib import (
    FormatOption,
    HeldoutOption,
    LogitsArgument,
    ResamplesOption,
    ResplitOption,
    ResultOption,
    SeedOption,
    SpecFileOption,
    open_logits,
    refuse_outputs,
)
from layactl.cli.models import ModelChoice
from layactl.cli.options import MODEL, Format, QuietOption, RoundOption, ThreadsOption
from layactl.cli.output import note, plain_line, progress, record
from layactl.errors import UsageError

if TYPE_CHECKING:
    from layactl.calib.calibrator import Calibrator
    from layactl.calib.logits import LogitsFile
    from layactl.reporting.text_table import TextTable

_FAILED = 1
_SOME_REFUSED = 3


class Split(StrEnum):
    """Which answers are judged."""

    all = "all"
    eval = "eval"
    fit = "fit"


class By(StrEnum):
    """What has a gate of its own."""

    shape = "shape"
    question = "question"
    all = "all"


FitOption = Annotated[
    Path | None,
    typer.Option("--fit", metavar="FIT.json", help="The calibration that calib fit found.", show_default=False),
]
UncalibratedOption = Annotated[
    bool, typer.Option("--uncalibrated", help="T = 1, or sigmoid(z), whatever was recorded.")
]
SplitOption = Annotated[
    Split | None, typer.Option("--split", help="The answers to judge. Default: eval with --fit, else all.")
]
AlphaOption = Annotated[float, typer.Option("--alpha", help="Tolerated share of errors among acted-on answers.")]
DeltaOption = Annotated[float, typer.Option("--delta", help="How often a certificate may be wrong.")]
MinConfidenceOption = Annotated[
    str | None,
    typer.Option("--min-confidence", metavar="X|GATE.json", help="What is acted on: a number, or a certified gate."),
]


def eval_command(
    logits: LogitsArgument,
    against: Annotated[
        list[Path] | None,
        typer.Option("--against", metavar="OTHER.jsonl", help="Logits of another model on the same data; repeatable."),
    ] = None,
    fit: FitOption = None,
    spec: SpecFileOption = None,
    uncalibrated: UncalibratedOption = False,
    split: SplitOption = None,
    min_confidence: MinConfidenceOption = None,
    digits: RoundOption = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option("--fail-if", metavar="COND", help="'ece>0.08', 'accuracy[lang=de]<0.9'; repeatable, exit code 1."),
    ] = None,
    stability: Annotated[
        bool,
        typer.Option("--stability", help="Ask labelled DATA of -m MODEL with options rotated and labels renamed."),
    ] = False,
    model: Annotated[Path | None, MODEL] = None,
    rotations: Annotated[
        int, typer.Option("--rotations", metavar="N", min=1, max=19, help="With --stability: orders of a choice.")
    ] = 3,
    threads: ThreadsOption = None,
    heldout: HeldoutOption = None,
    resplit: ResplitOption = False,
    resamples: ResamplesOption = 1000,
    seed: SeedOption = 0,
    out: ResultOption = None,
    output_format: FormatOption = Format.table,
    quiet: QuietOption = False,
) -> int:
    """Judge the probabilities as they are printed: accuracy, F1, calibration error, Brier, NLL, per part of the data.

    With --stability it judges whether answers depend on the order and the names of options.

    Exit code 1 when a --fail-if condition holds, or names what is not defined.
    """
    from layactl.calib.bootstrap import Bootstrap
    from layactl.calib.comparison import compare_files
    from layactl.calib.evaluation import Selection, evaluate
    from layactl.calib.requirement import parse_requirement
    from layactl.reporting.act_gate import read_gate

    if stability or model is not None:
        judging = (against, fit, min_confidence, digits, fail_if, split)
        if not stability or any(judging) or uncalibrated:
            raise UsageError("-m goes with --stability, and --stability with nothing that judges logits")
        return _stability(logits, model, spec, threads, rotations, out, output_format, quiet)
    requirements = [parse_requirement(text, bool(against)) for text in fail_if or []]
    inputs = _inputs(logits, fit, spec, min_confidence) | {"the logits of --against": against or []}
    refuse_outputs({"-o": out}, inputs)
    found = open_logits(logits, heldout, resplit, quiet, fit)
    gate = None if min_confidence is None else read_gate(min_confidence)
    chosen = split.value if split else "eval" if fit is not None else "all"
    selection = Selection(calibrator(found, fit, spec, uncalibrated), chosen, gate, digits)
    if fit is not None and chosen != "eval":
        note("the fit split is in sample: its numbers prove nothing", quiet)
    evaluation = evaluate(found, selection, Bootstrap(resamples, seed))
    others = []
    for path in against or []:
        other = open_logits(path, heldout, resplit, quiet, fit)
        others.append((other, Selection(calibrator(other, None, None, uncalibrated), chosen, gate, digits)))
    comparisons = compare_files((found, selection), others, Bootstrap(resamples, seed))
    result = evaluation.to_json() | ({"against": [c.to_json() for c in comparisons]} if comparisons else {})
    from layactl.calib.tables import evaluation_tables, paired_table, reliability_table

    tables = [*evaluation_tables(evaluation), reliability_table(evaluation), *map(paired_table, comparisons)]
    emit(result, tables, out, output_format)
    failures = [line for requirement in requirements for line in requirement.failures(evaluation, comparisons)]
    if output_format is Format.table and requirements:
        plain_line(
            f"FAIL {'; '.join(failures)}"
            if failures
            else f"PASS {len(requirements)} condition{'s' * (len(requirements) > 1)}"
        )
    elif failures:
        note(f"failed {'; '.join(failures)}")
    return _FAILED if failures else 0


def threshold_command(
    logits: LogitsArgument,
    alpha: AlphaOption = 0.05,
    delta: DeltaOption = 0.1,
    by: Annotated[
        By, typer.Option("--by", help="A gate for each type and option count, each question, or one.")
    ] = By.shape,
    simultaneous: Annotated[
        bool, typer.Option("--simultaneous", help="All gates hold together with 1 - delta, not each alone.")
    ] = False,
    pooled: Annotated[
        bool, typer.Option("--pooled", help="Use all answers of a group as if independent, not one of each.")
    ] = False,
    min_acted: Annotated[int, typer.Option("--min-acted", metavar="N", min=1, help="Fewest answers of a test.")] = 30,
    fit: FitOption = None,
    spec: SpecFileOption = None,
    uncalibrated: UncalibratedOption = False,
    split: Annotated[Split, typer.Option("--split", help="The answers to certify on.")] = Split.eval,
    heldout: HeldoutOption = None,
    resplit: ResplitOption = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="GATE.json", help="Write the gate.", show_default=False)
    ] = None,
    output_format: FormatOption = Format.table,
    quiet: QuietOption = False,
) -> None:
    """Find the lowest confidence from which on acting is certified to go wrong in at most alpha of the cases.

    The gate file is what `decide --min-confidence` reads. A gate without a certificate lets nothing through.
    """
    from layactl.calib.evaluation import Selection
    from layactl.calib.tables import thresholds_table
    from layactl.calib.threshold import Risk, thresholds

    risk = Risk(alpha, delta, min_acted)
    refuse_outputs({"-o": out}, _inputs(logits, fit, spec))
    found = open_logits(logits, heldout, resplit, quiet, fit)
    selection = Selection(calibrator(found, fit, spec, uncalibrated), split.value)
    made = thresholds(found, selection, risk, by=by.value, simultaneous=simultaneous, pooled=pooled)
    if fit is not None and split is not Split.eval:
        note("the fit split is in sample: a certificate made of it is none", quiet)
    emit(made.to_json(), [thresholds_table(made)], out, output_format)


def baselines_command(
    logits: LogitsArgument,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference", metavar="NAME", help="What differences are taken to. Default: the engine, calibrated."
        ),
    ] = None,
    fail_if_beaten: Annotated[
        bool, typer.Option("--fail-if-beaten", help="Exit code 1 when a rule without the model is better.")
    ] = False,
    fit: FitOption = None,
    heldout: HeldoutOption = None,
    resplit: ResplitOption = False,
    resamples: ResamplesOption = 1000,
    seed: SeedOption = 0,
    out: ResultOption = None,
    output_format: FormatOption = Format.table,
    quiet: QuietOption = False,
) -> int:
    """Hold a model against rules that need none: base rates, a card's pass rate, a regression on the card.

    A rule is better when its NLL or Brier score on the eval split is convincingly lower than the reference's.
    """
    from layactl.calib.baselines import baselines
    from layactl.calib.bootstrap import Bootstrap
    from layactl.calib.tables import baselines_tables

    refuse_outputs({"-o": out}, _inputs(logits, fit))
    data = open_logits(logits, heldout, resplit, quiet, fit)
    fitted = None if fit is None else calibrator(data, fit, None, False)
    found = baselines(data, Bootstrap(resamples, seed), reference, fitted)
    emit(found.to_json(), baselines_tables(found), out, output_format)
    better = found.better()
    if output_format is Format.table:
        plain_line(
            f"{found.reference} is beaten by {', '.join(better)}" if better else f"nothing beats {found.reference}"
        )
    return _FAILED if better and fail_if_beaten else 0


def report_command(
    logits: LogitsArgument,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="REPORT.html", help="Write one self-contained page.")
    ] = None,
    fit: FitOption = None,
    spec: SpecFileOption = None,
    uncalibrated: UncalibratedOption = False,
    split: SplitOption = None,
    min_confidence: MinConfidenceOption = None,
    digits: RoundOption = None,
    alpha: AlphaOption = 0.05,
    delta: DeltaOption = 0.1,
    heldout: HeldoutOption = None,
    resplit: ResplitOption = False,
    resamples: ResamplesOption = 1000,
    seed: SeedOption = 0,
    out: ResultOption = None,
    output_format: FormatOption = Format.table,
    quiet: QuietOption = False,
) -> None:
    """Everything at once, as tables, JSON (-o) and a page (--html): quality, reliability, thresholds, baselines.

    With --fit or --spec it shows before (as recorded) and after.
    """
    from layactl.calib.bootstrap import Bootstrap
    from layactl.calib.calibrator import recorded
    from layactl.calib.evaluation import Selection
    from layactl.calib.html_report import report_page
    from layactl.calib.report import report
    from layactl.calib.threshold import Risk
    from layactl.reporting.act_gate import read_gate
    from layactl.reporting.html_page import write_page

    risk = Risk(alpha, delta)
    refuse_outputs({"-o": out, "--html": html}, _inputs(logits, fit, spec, min_confidence))
    found = open_logits(logits, heldout, resplit, quiet, fit)
    chosen = split.value if split else "eval" if fit is not None else "all"
    gate = None if min_confidence is None else read_gate(min_confidence)
    selection = Selection(calibrator(found, fit, spec, uncalibrated), chosen, gate, digits)
    before = None if fit is None and spec is None else recorded(found)
    made = report(found, selection, before, risk, Bootstrap(resamples, seed))
    if html is not None:
        write_page(html, report_page(made))
    emit(made.to_json(), made.tables(), out, output_format)


def _stability(
    data: Path,
    model: Path | None,
    spec: Path | None,
    threads: int | None,
    rotations: int,
    out: Path | None,
    output_format: Format,
    quiet: bool,
) -> int:
    from layactl.calib.scorer import EngineScorer
    from layactl.calib.stability import probe, stability_json
    from layactl.calib.tables import stability_table
    from layactl.labelled.decisions import read_decisions

    if model is None:
        raise UsageError("--stability needs -m MODEL")
    refuse_outputs({"-o": out}, {"the data": [data], "the spec": [spec], "the model": [model]})
    records = read_decisions(data)
    choice = ModelChoice(model, threads=threads, spec=spec, quiet=quiet)
    resolved = choice.resolve()
    scorer = EngineScorer(choice.load(resolved), resolved.file)
    refused: list[str] = []
    with progress("asking", len(records), unit="share", quiet=quiet) as update:
        found = probe(
            records,
            scorer,
            rotations=rotations,
            tick=lambda done: update(done, detail=f"{done:,} records"),
            log=refused.append,
        )
    for message in refused:
        note(message, quiet)
    emit(stability_json(found, scorer.engine, rotations, len(refused)), [stability_table(found)], out, output_format)
    return _SOME_REFUSED if refused else 0


def calibrator(logits: LogitsFile, fit: Path | None, spec: Path | None, none: bool) -> Calibrator:
    """The calibration in force. Raises UsageError for more than one."""
    from layactl.calib import calibrator as known

    if sum((fit is not None, spec is not None, none)) > 1:
        raise UsageError("--fit, --spec and --uncalibrated exclude each other")
    if fit is not None:
        return known.from_fit(fit, logits)
    if spec is not None:
        return known.from_spec(spec, logits)
    return known.uncalibrated() if none else known.recorded(logits)


def emit(result: dict[str, Any], tables: list[TextTable], out: Path | None, output_format: Format) -> None:
    """The result on stdout as it was asked for, and into the file that was asked for."""
    from layactl.calib.result_file import write_result
    from layactl.cli.text_tables import print_tables

    if out is not None:
        write_result(out, result)
    if output_format is Format.json:
        record(result)
    else:
        print_tables(tables)


def _inputs(
    logits: Path, fit: Path | None = None, spec: Path | None = None, gate: str | None = None
) -> dict[str, Sequence[Path | None]]:
    """What a command reads, as `refuse_outputs` takes it. gate: the text of --min-confidence."""
    return {"the logits": [logits], "the fit": [fit], "the spec": [spec], "the gate": [Path(gate) if gate else None]}
