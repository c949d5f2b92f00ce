"""Everything about the calibration of one model on one data set: computed once, shown as tables, JSON and a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from layactl import __version__
from layactl.calib.baselines import Baselines, baselines
from layactl.calib.bootstrap import Bootstrap
from layactl.calib.calibrator import Calibrator
from layactl.calib.evaluation import Evaluation, Selection, evaluate
from layactl.calib.fit import Comparison, compare
from layactl.calib.logits import LogitsFile
from layactl.calib.tables import (
    baselines_tables,
    comparison_table,
    evaluation_tables,
    reliability_table,
    thresholds_table,
)
from layactl.calib.threshold import Risk, Thresholds, thresholds
from layactl.errors import LayactlError
from layactl.labelled.outcomes import KIND as ROUTER
from layactl.reporting.text_table import TextTable

REPORT_FORMAT = "layactl.calib-report/1"


@dataclass(frozen=True)
class Report:
    """evaluation: with the calibration that is reported on; before: as recorded, None where that is the same;
    baselines: None where the splits allow none, for `why_no_baselines`.
    """

    evaluation: Evaluation
    before: Evaluation | None
    comparison: Comparison | None
    thresholds: Thresholds
    baselines: Baselines | None
    why_no_baselines: str

    def tables(self) -> list[TextTable]:
        """What the terminal shows."""
        found = evaluation_tables(self.evaluation)
        if self.comparison is not None:
            found.append(comparison_table(self.comparison))
        found += [reliability_table(self.evaluation), thresholds_table(self.thresholds)]
        return found + (baselines_tables(self.baselines) if self.baselines else [])

    def to_json(self) -> dict[str, Any]:
        return {
            "format": REPORT_FORMAT,
            "layactl": __version__,
            "evaluation": self.evaluation.to_json(),
            "before": None if self.before is None else self.before.to_json(),
            "comparison": None if self.comparison is None else self.comparison.to_json(),
            "thresholds": self.thresholds.to_json(),
            "baselines": None if self.baselines is None else self.baselines.to_json(),
        }


def report(
    logits: LogitsFile, selection: Selection, before: Calibrator | None, risk: Risk, bootstrap: Bootstrap
) -> Report:
    """before: the calibration to compare with, None for none. Raises what `evaluate` raises."""
    evaluation = evaluate(logits, selection, bootstrap)
    earlier = comparison = None
    if before is not None:
        old = replace(selection, calibrator=before)
        earlier = evaluate(logits, old, bootstrap)
        comparison = compare(selection.split, _judged(logits, old), _judged(logits, selection), bootstrap)
    rules, why = _baselines(logits, bootstrap, None if before is None else selection.calibrator)
    return Report(evaluation, earlier, comparison, thresholds(logits, selection, risk), rules, why)


def _judged(logits: LogitsFile, selection: Selection) -> Any:
    if logits.kind == ROUTER:
        return selection.judge_scores(selection.scores(logits))
    return selection.judge_answers(selection.answers(logits))


def _baselines(logits: LogitsFile, bootstrap: Bootstrap, calibrator: Calibrator | None) -> tuple[Baselines | None, str]:
    try:
        return baselines(logits, bootstrap, calibrator=calibrator), ""
    except LayactlError as error:
        return None, error.message


def facts_of(found: Evaluation) -> dict[str, str]:
    """What the numbers are of."""
    logits = found.logits
    engine = next((engine for engine in logits.engines if engine), {})
    named = ("model", "kernels", "precision", "plan", "max_len", "spec_sha256", "source_sha256", "build")
    return {
        "logits": f"{logits.path.name}, sha256 {logits.sha256}",
        "records": f"{logits.records:,}, of them {logits.refused:,} refused and left out; "
        f"{logits.one_option:,} answers of one option left out",
        "answers": f"{found.parts[0].answers:,} of the {found.split} split, {found.parts[0].clusters:,} clusters",
        "calibration": f"{found.calibrator.version} ({found.calibrator.source})",
        **{name: str(engine[name]) for name in named if engine.get(name) is not None},
        "intervals": f"95 % percentile, whole clusters resampled {found.bootstrap.resamples:,} times",
    }


def definitions_table(definitions: dict[str, str]) -> TextTable:
    """What each metric is."""
    rows: Sequence[Sequence[str]] = [[name, text] for name, text in definitions.items()]
    return TextTable("definitions", ["metric", "what it is"], rows)
