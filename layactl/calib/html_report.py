"""A report as one HTML page: reliability, before and after, risk against coverage, confusion."""

from __future__ import annotations

from collections.abc import Sequence

from layactl import __version__
from layactl.calib.curves import ReliabilityBin
from layactl.calib.evaluation import DEFINITIONS, Evaluation
from layactl.calib.report import Report, definitions_table, facts_of
from layactl.calib.tables import (
    baselines_tables,
    comparison_table,
    evaluation_tables,
    reliability_table,
    thresholds_table,
)
from layactl.labelled.outcomes import KIND as ROUTER
from layactl.reporting.html_page import Html, facts, figures, note, page, section, table
from layactl.reporting.svg_plot import SERIES, Plot, matrix

# Pixels to either side: bars of before and after at the same probability must not cover each other.
_APART = 2.0
NOW, THEN, IDEAL = SERIES[0], SERIES[1], SERIES[5]


def report_page(report: Report) -> Html:
    """The page, complete in itself."""
    found = report.evaluation
    overview, *parts = evaluation_tables(found)
    blocks = [facts(facts_of(found)), section("Quality", [table(overview)])]
    if report.comparison is not None:
        blocks.append(section("Before and after", [table(comparison_table(report.comparison))]))
    blocks.append(section("Reliability", _reliability(report)))
    blocks.append(section("When to act", _acting(report)))
    if parts:
        blocks.append(section("Parts of the data", [table(part) for part in parts]))
    if found.confusions:
        blocks.append(section("Confusion", _confusions(found)))
    if report.baselines is not None:
        better = report.baselines.better()
        verdict = f"beaten by {', '.join(better)}" if better else "beaten by nothing here"
        rows = [table(part) for part in baselines_tables(report.baselines)]
        blocks.append(section("Baselines", [note(f"{report.baselines.reference} is {verdict}."), *rows]))
    elif report.why_no_baselines:
        blocks.append(section("Baselines", [note(f"None: {report.why_no_baselines}.")]))
    blocks.append(section("Definitions", [table(definitions_table(DEFINITIONS[found.logits.kind]))]))
    return page(f"Calibration of {_name(found)}", blocks, foot=f"layactl {__version__}")


def _name(found: Evaluation) -> str:
    engine = next((engine for engine in found.logits.engines if engine), {})
    return str(engine.get("model") or found.logits.path.name)


def _reliability(report: Report) -> list[Html]:
    found, before = report.evaluation, report.before
    event = "succeeds" if found.logits.kind == ROUTER else "is right"
    rows = []
    for name, bins in found.reliability.items():
        earlier = before.reliability[name] if before is not None else None
        diagram = (_diagram(name, bins, earlier, event), _caption(name, bins))
        # A row of its own: a diagram and its counts stay together at any width.
        rows.append(figures([diagram, (_counts(name, bins), f"How many answers of {name} have such a probability.")]))
    return [*rows, *(table(reliability_table(found, name)) for name in found.reliability)]


def _diagram(name: str, bins: Sequence[ReliabilityBin], before: Sequence[ReliabilityBin] | None, event: str) -> str:
    plot = Plot(f"Reliability, {name}", "mean probability in the bin", f"share that {event}")
    plot.line([(0.0, 0.0), (1.0, 1.0)], IDEAL, dashed=True)
    if before is not None:
        points, errors, tips = _points(before)
        plot.points(points, THEN, errors=errors, tips=tips, name="before", shift=-_APART)
    points, errors, tips = _points(bins)
    plot.line(points, NOW)
    plot.points(
        points,
        NOW,
        errors=errors,
        tips=tips,
        name="after" if before is not None else "",
        shift=_APART if before else 0.0,
    )
    return plot.svg()


def _points(
    bins: Sequence[ReliabilityBin],
) -> tuple[list[tuple[float, float]], list[tuple[float, float] | None], list[str]]:
    points: list[tuple[float, float]] = []
    errors: list[tuple[float, float] | None] = []
    tips: list[str] = []
    for b in bins:
        if b.mean is None or b.share is None:
            continue
        points.append((b.mean, b.share))
        errors.append(None if b.share_low is None or b.share_high is None else (b.share_low, b.share_high))
        tips.append(f"({b.low:.1f}, {b.high:.1f}]: {b.count:,} answers, mean {b.mean:.4f}, share {b.share:.4f}")
    return points, errors, tips


def _counts(name: str, bins: Sequence[ReliabilityBin]) -> str:
    most = max(1, *(b.count for b in bins))
    plot = Plot(f"Answers, {name}", "probability", "answers", y=(0.0, most * 1.12), height=200)
    plot.bars([(b.low, b.high, float(b.count)) for b in bins], NOW, labels=[f"{b.count:,}" for b in bins])
    return plot.svg()


def _caption(name: str, bins: Sequence[ReliabilityBin]) -> str:
    return (
        f"{sum(b.count for b in bins):,} answers of {name}. On the dashed line probabilities mean what they say; bars "
        "are Wilson's 95 % interval of the share, as if answers were independent."
    )


def _acting(report: Report) -> list[Html]:
    found = report.evaluation
    plot = Plot("Risk and coverage", "coverage: share that is acted on", "risk: share of that which is wrong")
    for evaluation, series, name in ((report.before, THEN, "before"), (found, NOW, "after" if report.before else "")):
        if evaluation is not None:
            curve = evaluation.risk_coverage
            plot.steps(list(zip(curve.coverage, curve.risk, strict=True)), series, name=name)
    levels = Plot("Threshold and coverage", "confidence from which on is acted", "coverage")
    curve = found.risk_coverage
    levels.line(list(zip(curve.thresholds, curve.coverage, strict=True)), NOW)
    return [
        figures(
            [
                (plot.svg(), f"The area below is {found.risk_coverage.aurc:.4f}: the mean risk over all coverages."),
                (levels.svg(), "What a threshold lets through."),
            ]
        ),
        table(thresholds_table(report.thresholds)),
    ]


def _confusions(found: Evaluation) -> list[Html]:
    plots = []
    for confusion in found.confusions:
        total = sum(map(sum, confusion.counts))
        right = sum(row[i] for i, row in enumerate(confusion.counts))
        drawn = matrix(
            confusion.question, confusion.options, confusion.options, confusion.counts, axes=("gold", "answer")
        )
        plots.append((drawn, f"{right:,} of {total:,} answers are right."))
    return [figures(plots)]
