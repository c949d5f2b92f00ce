"""Results as tables of text, which the terminal and the HTML page show alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from layactl.calib.baselines import DESCRIPTIONS, Baselines
from layactl.calib.bootstrap import Estimate
from layactl.calib.comparison import PairedComparison
from layactl.calib.evaluation import Evaluation
from layactl.calib.fit import Comparison, Fit
from layactl.calib.stability import Stability
from layactl.calib.threshold import Thresholds
from layactl.labelled.split import EVAL, FIT
from layactl.reporting.text_table import TextTable

_SPLITS = {
    EVAL: "eval split, held out",
    FIT: "fit split, IN SAMPLE: no proof of anything",
    "all": "all answers, those of the fit split IN SAMPLE where the calibration was fitted on them",
}

# Fewer and a bootstrap over clusters understates the spread.
_FEW_CLUSTERS = 30


def number(value: float | None, digits: int = 4) -> str:
    """A number of a table; a dash where it is not defined."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def with_interval(estimate: Estimate, *, signed: bool = False) -> str:
    """As `0.1234 [0.1000, 0.1500]`."""
    if estimate.value is None:
        return "-"
    spec = "+.4f" if signed else ".4f"
    interval = f" [{estimate.low:{spec}}, {estimate.high:{spec}}]" if estimate.low is not None else ""
    return f"{estimate.value:{spec}}{interval}"


def few_clusters(clusters: int) -> list[str]:
    """What to say of a bootstrap over so many clusters."""
    few = clusters < _FEW_CLUSTERS
    return [f"{clusters} clusters are fewer than {_FEW_CLUSTERS}: the intervals are too narrow"] if few else []


def fit_tables(fit: Fit) -> list[TextTable]:
    """What was fitted, and what it is worth."""
    fitted = _platt_table(fit) if fit.platt else _cells_table(fit)
    return [fitted, *map(comparison_table, fit.comparisons)]


def evaluation_tables(evaluation: Evaluation) -> list[TextTable]:
    """Every metric of all answers with its interval; then the parts, without."""
    whole = evaluation.parts[0]
    title = (
        f"{evaluation.logits.path.name}, {evaluation.split} answers, calibration {evaluation.calibrator.version}: "
        f"{whole.answers:,} answers of {whole.clusters:,} clusters"
    )
    if evaluation.in_sample:
        title += f", {evaluation.in_sample:,} of them IN SAMPLE: the calibration was fitted on them"
    # Without a gate everything is acted on.
    idle = () if evaluation.gated else ("coverage", "selective_accuracy")
    defined = {name: found for name, found in whole.metrics.items() if found.value is not None and name not in idle}
    rows = [[name, with_interval(found)] for name, found in defined.items()]
    rows.append(["aurc", number(evaluation.risk_coverage.aurc)])
    notes = [*evaluation.calibrator.doubts, *few_clusters(whole.clusters)]
    if soft := evaluation.logits.soft():
        notes.append(f"{soft:,} answers of the file have soft gold: all but Brier and NLL use its label alone")
    found = [TextTable(title, ["metric", "value and 95 %"], rows, "; ".join(notes))]
    if len(evaluation.parts) > 1:
        names = list(defined)
        parts = [
            [part.name, f"{part.answers:,}", *(number(part.metrics[name].value) for name in names)]
            for part in evaluation.parts[1:]
        ]
        found.append(TextTable("parts of at least 20 answers", ["slice", "answers", *names], parts))
    return found


def reliability_table(evaluation: Evaluation, name: str = "all") -> TextTable:
    """The bins behind the calibration error, with their counts."""
    rows = [
        [
            f"({b.low:.1f}, {b.high:.1f}]",
            f"{b.count:,}",
            number(b.mean),
            number(b.share),
            "-" if b.share_low is None else f"[{number(b.share_low)}, {number(b.share_high)}]",
        ]
        for b in evaluation.reliability[name]
    ]
    return TextTable(f"reliability, {name}", ["probability", "answers", "mean", "share right", "95 % of it"], rows)


def paired_table(comparison: PairedComparison) -> TextTable:
    """The second file against the first."""
    shown = ("accuracy", "ece", "brier", "nll")
    rows = [
        [
            part.name,
            f"{part.answers:,}",
            *(with_interval(part.delta[name], signed=True) for name in shown),
            f"{part.only_first}:{part.only_second}",
            number(part.p),
            number(part.holm),
        ]
        for part in comparison.parts
    ]
    title = f"{comparison.second.path.name} against {comparison.first.path.name}"
    return TextTable(
        f"{title}, {comparison.unmatched:,} answers unmatched",
        ["slice", "answers", *(f"delta {name}" for name in shown), "only one right", "McNemar p", "Holm"],
        rows,
        "p is exact and takes answers as independent; Holm corrects over all that are tested; deltas resample clusters",
    )


def baselines_tables(found: Baselines) -> list[TextTable]:
    """Every rule on the eval split, and against the reference."""
    title = f"baselines on {found.answers:,} held-out answers of {found.clusters:,} clusters"
    metrics = list(found.found[0].metrics)
    own = [[b.name, *(with_interval(b.metrics[m]) for m in metrics), DESCRIPTIONS[b.name]] for b in found.found]
    own += [[name, *("-" for _ in metrics), reason] for name, reason in found.skipped.items()]
    others = [b for b in found.found if b.name != found.reference]
    paired = [[b.name, *(with_interval(b.delta[m], signed=True) for m in metrics)] for b in others]
    note = "an interval that holds no zero is a convincing difference; ece, brier and nll are better when lower"
    return [
        TextTable(title, ["baseline", *metrics, "what it is"], own),
        TextTable(f"differences to {found.reference}", ["baseline", *metrics], paired, note),
    ]


def stability_table(found: Sequence[Stability]) -> TextTable:
    """How often an answer changes with what should not matter, beside how often it is right."""
    rows = []
    for one in found:
        value = one.to_json()
        flips = [f"{count} of {one.asked[kind]} {kind}" for kind, count in one.flips.items()]
        rows.append(
            [
                f"{one.question} ({one.type})",
                f"{one.records:,}",
                number(value["accuracy"]),
                number(value["accuracy_of_variants"]),
                number(value["flipped_records"]),
                ", ".join(flips) or "not varied",
                number(value["spread_mean"]),
                number(value["spread_max"]),
            ]
        )
    columns = ["question", "records", "accuracy", "of variants", "flipped", "flips", "spread", "largest"]
    return TextTable(
        "stability: options rotated, labels renamed",
        columns,
        rows,
        "flipped: share of records that any variant answers otherwise; spread: mean over records of the largest "
        "difference of an option's probability; a score is not varied, its levels are the scale",
    )


def thresholds_table(found: Thresholds) -> TextTable:
    """What may be acted on from which confidence on, and what may not."""
    rows = []
    for c in found.certificates:
        names = (c.rule.question, c.rule.type, c.rule.options)
        certified = c.rule.min_confidence is not None
        rows.append(
            [
                " ".join(name for name in names if name is not None) or "all",
                f"{c.answers:,}",
                f"{c.rule.min_confidence:.4f}" if c.rule.min_confidence is not None else "UNCERTIFIED",
                f"{c.coverage:.1%}",
                f"{c.errors:,} of {c.acted:,}",
                number(c.upper),
                "" if certified else c.reason,
            ]
        )
    risk = found.risk
    together = "all certificates together" if found.simultaneous else "each certificate"
    note = f"with {1 - risk.delta:.0%} confidence at most {risk.alpha:.1%} of what is acted on is wrong, {together}"
    if any(c.clusters < c.answers for c in found.certificates):
        note += "; NOT SO where the pooled answers of a group depend on each other"
    if found.in_sample:
        note += f"; NOT SO: {found.in_sample:,} answers are IN SAMPLE, the calibration was fitted on them"
    if soft := found.logits.soft():
        note += f"; {soft:,} answers of the file have soft gold, and wrong is another option than its label"
    note = "; ".join([note, *found.selection.calibrator.doubts])
    return TextTable(
        f"thresholds of {found.logits.path.name}, {found.selection.split} answers",
        ["for", "answers", "act from", "coverage", "wrong", "at most", "why not"],
        rows,
        note,
    )


def comparison_table(comparison: Comparison) -> TextTable:
    """Before and after, with the paired difference."""
    rows = [
        [
            metric,
            with_interval(comparison.before[metric]),
            with_interval(comparison.after[metric]),
            with_interval(delta, signed=True),
            "yes" if delta.excludes_zero else "",
        ]
        for metric, delta in comparison.delta.items()
    ]
    title = _SPLITS[comparison.split]
    about = (
        "95 % percentile intervals, whole clusters resampled; convincing: the interval of the difference holds no zero"
    )
    return TextTable(
        f"{title}: {comparison.answers:,} answers of {comparison.clusters:,} clusters",
        ["metric", "before", "after", "after - before", "convincing"],
        rows,
        "; ".join([about, *few_clusters(comparison.clusters)]),
    )


def _cells_table(fit: Fit) -> TextTable:
    rows = []
    for cell in fit.cells:
        found = cell.fit
        if found is None:
            wider = "1" if cell.type == "all" else "all" if cell.bucket == "*" else f"{cell.type} *"
            rows.append([f"{cell.type} {cell.bucket}", f"{cell.count:,}", "-", "-", f"{cell.why}: {wider} is used"])
            continue
        interval = "-" if found.interval is None else f"[{found.interval[0]:.4g}, {found.interval[1]:.4g}]"
        clamped = f"clamped from {found.likeliest:.4g}: treat as uncalibrated" if found.clamped else ""
        rows.append([f"{cell.type} {cell.bucket}", f"{cell.count:,}", f"{found.temperature:.4f}", interval, clamped])
    columns = ["type and options", "answers", "T", "95 % of T", "note"]
    return TextTable("temperatures", columns, rows, "; ".join(fit.warnings))


def _platt_table(fit: Fit) -> TextTable:
    found = fit.platt
    assert found is not None
    spans = found.intervals or (None, None)
    rows = [
        [name, f"{value:.6g}", "-" if span is None else f"[{span[0]:.4g}, {span[1]:.4g}]"]
        for name, value, span in (("a", found.a, spans[0]), ("b", found.b, spans[1]))
    ]
    note = "" if found.a > 0 else "a is not positive: the logits rank failures above successes"
    title = f"p = sigmoid(a z + b), of {found.count:,} candidates, {found.positives:,} successes"
    return TextTable(title, ["parameter", "value", "95 %"], rows, note)
