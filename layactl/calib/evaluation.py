"""How good are the probabilities: every metric, with its interval, of all answers and of every part of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from layactl import __version__
from layactl.calib.bootstrap import Bootstrap, Estimate, estimate
from layactl.calib.calibrator import Calibrator
from layactl.calib.curves import Confusion, ReliabilityBin, RiskCoverage, confusions, reliability, risk_coverage
from layactl.calib.fit_file import seen_by_fit
from layactl.calib.judged import Judged, judge_answers, judge_scores, statistics_of
from layactl.calib.logits import LabelledAnswer, LabelledScore, LogitsFile
from layactl.calib.slices import answer_slices, score_slices
from layactl.errors import InputError, UsageError
from layactl.labelled.outcomes import KIND as ROUTER
from layactl.labelled.split import EVAL, SPLITS
from layactl.reporting.act_gate import ActGate

EVAL_FORMAT = "layactl.calib-eval/1"
ALL = "all"

DEFINITIONS = {
    "decision": {
        "accuracy": "share of answers whose option is the gold label; a noul is true from P(true) 0.5 on, a choice or "
        "score is its first largest option",
        "macro_f1": "mean over questions of the mean F1 over their labels that are gold or predicted",
        "ece": "top-label: 10 equal-width bins (lo, hi] of the largest p, |mean p - accuracy| weighted by count",
        "classwise_ece": "mean over (question, option) of the ECE of that option's probability, same bins",
        "brier": "mean over answers of the sum over options of (p - y)^2, from 0 to 2",
        "nll": "mean of -sum of y ln p, p at least 2.2e-16",
        "auc": "how often a right answer has more confidence than a wrong one, ties half",
        "coverage": "share of answers that pass the gate",
        "selective_accuracy": "accuracy of the answers that pass the gate",
        "score_mae": "mean distance of a score's expected level from the gold's expected level",
    },
    "router": {
        "accuracy": "share of candidates that succeed where p_success is at least 0.5 and fail where it is below",
        "ece": "10 equal-width bins (lo, hi] of p_success, |mean p - success rate| weighted by count",
        "brier": "mean of (p - y)^2, the one-class form",
        "nll": "mean of -ln of the probability of what happened, at least 2.2e-16",
        "auc": "how often a success has a higher p_success than a failure, ties half",
        "coverage": "share of candidates that pass the gate",
        "selective_accuracy": "success rate of the candidates that pass the gate",
    },
}


@dataclass(frozen=True)
class Part:
    """One slice of the answers with its metrics."""

    name: str
    answers: int
    clusters: int
    metrics: Mapping[str, Estimate]

    def to_json(self) -> dict[str, Any]:
        metrics = {name: found.to_json() for name, found in self.metrics.items()}
        return {"slice": self.name, "answers": self.answers, "clusters": self.clusters, "metrics": metrics}


@dataclass(frozen=True)
class Evaluation:
    """gated: whether answers are held back; in_sample: answers of records that the calibration was fitted on; parts:
    "all" first; reliability: of all answers and of each type; confusions: of decisions.
    """

    logits: LogitsFile
    calibrator: Calibrator
    split: str
    gated: bool
    in_sample: int
    parts: Sequence[Part]
    reliability: Mapping[str, Sequence[ReliabilityBin]]
    risk_coverage: RiskCoverage
    confusions: Sequence[Confusion]
    bootstrap: Bootstrap

    def part(self, name: str) -> Part | None:
        return next((part for part in self.parts if part.name == name), None)

    def to_json(self) -> dict[str, Any]:
        found = self.logits
        return {
            "format": EVAL_FORMAT,
            "layactl": __version__,
            "kind": found.kind,
            "logits": found.counts,
            "engines": found.engines,
            "calibration": self.calibrator.to_json(),
            "split": self.split,
            "gated": self.gated,
            "in_sample": self.in_sample,
            "bootstrap": self.bootstrap.to_json(self.parts[0].clusters),
            "definitions": DEFINITIONS[found.kind],
            "slices": [part.to_json() for part in self.parts],
            "reliability": {name: [asdict(b) for b in bins] for name, bins in self.reliability.items()},
            "risk_coverage": self.risk_coverage.to_json(),
            "confusion": [asdict(confusion) for confusion in self.confusions],
        }


@dataclass(frozen=True)
class Selection:
    """What of a file is judged and how. split: "fit", "eval" or "all"; digits: as `decide --round` prints."""

    calibrator: Calibrator
    split: str = ALL
    gate: ActGate | None = None
    digits: int | None = None

    def answers(self, logits: LogitsFile) -> list[LabelledAnswer]:
        return [answer for answer in logits.answers if self.split in (ALL, answer.split)]

    def scores(self, logits: LogitsFile) -> list[LabelledScore]:
        return [score for score in logits.scores if self.split in (ALL, score.split)]

    def in_sample(self, items: Iterable[LabelledAnswer | LabelledScore]) -> int:
        """How many of these answers are of records that the calibration was fitted on."""
        return seen_by_fit(items, self.calibrator.fitted_on)

    def judge_answers(self, answers: Sequence[LabelledAnswer]) -> Judged:
        return judge_answers(answers, self.calibrator.temperature, digits=self.digits, acts=self._acts)

    def judge_scores(self, scores: Sequence[LabelledScore]) -> Judged:
        return judge_scores(scores, self.calibrator.probability, digits=self.digits, acts=self._acts)

    def _acts(self, item: LabelledAnswer | LabelledScore, confidence: float) -> bool:
        if self.gate is None:
            return True
        if isinstance(item, LabelledScore):
            return self.gate.acts("", ROUTER, 2, confidence)
        return self.gate.acts(item.question, item.type, len(item.options), confidence)


def evaluate(logits: LogitsFile, selection: Selection, bootstrap: Bootstrap) -> Evaluation:
    """Judge the answers of a file. Raises InputError where the split holds none or logits are missing, UsageError for a
    gate of the other kind.
    """
    logits.require_logits()
    check_selection(logits, selection)
    parts, bins = [], {}
    if logits.kind == ROUTER:
        scores = selection.scores(logits)
        for part in score_slices(scores):
            judged = selection.judge_scores([scores[row] for row in part.rows])
            parts.append(_part(part.name, judged, bootstrap))
        whole = selection.judge_scores(scores)
        bins[ALL] = reliability(whole.ranked, whole.event)
        return Evaluation(
            logits,
            selection.calibrator,
            selection.split,
            selection.gate is not None,
            selection.in_sample(scores),
            parts,
            bins,
            risk_coverage(whole.ranked, whole.event),
            [],
            bootstrap,
        )
    answers = selection.answers(logits)
    for part in answer_slices(answers):
        judged = selection.judge_answers([answers[row] for row in part.rows])
        parts.append(_part(part.name, judged, bootstrap))
        if part.by in (ALL, "type"):
            bins[part.name] = reliability(judged.confidence, judged.correct)
    whole = selection.judge_answers(answers)
    return Evaluation(
        logits,
        selection.calibrator,
        selection.split,
        selection.gate is not None,
        selection.in_sample(answers),
        parts,
        bins,
        risk_coverage(whole.confidence, whole.correct),
        confusions(answers, whole),
        bootstrap,
    )


def check_selection(logits: LogitsFile, selection: Selection) -> None:
    """What is judged is there, and the gate and the calibration may judge it.

    Raises InputError where the split holds no answers, or where the eval split holds some that were fitted on;
    UsageError for a split or a gate that does not go with the answers.
    """
    if selection.split not in (ALL, *SPLITS):
        raise UsageError(f"must be fit, eval or all, not {selection.split:.40}", where="--split")
    if selection.gate is not None:
        if selection.gate.kind not in (None, logits.kind):
            raise UsageError(f"is a gate for {selection.gate.kind} confidences", where="--min-confidence")
        selection.gate.check_model(*model_of(logits, selection.calibrator), "--min-confidence")
    items: list[LabelledAnswer | LabelledScore] = [*selection.answers(logits), *selection.scores(logits)]
    if not items:
        raise InputError(f"the {selection.split} split holds no answers", where=str(logits.path))
    if selection.split == EVAL and (seen := selection.in_sample(items)):
        raise InputError(
            f"the eval split holds {seen:,} answers of records that {selection.calibrator.source} was fitted on",
            where=str(logits.path),
            hint="without --heldout-frac and --resplit the split is that of the fit; --split all judges IN SAMPLE",
        )


def model_of(logits: LogitsFile, calibrator: Calibrator) -> tuple[str, str | None]:
    """What certificates hold for: the calibration by name (a router's by its parameters), and the checkpoint."""
    sources = {source if isinstance(source := (e or {}).get("source_sha256"), str) else None for e in logits.engines}
    a, b = calibrator.platt
    version = f"platt:{a!r},{b!r}" if logits.kind == ROUTER else calibrator.version
    return version, sources.pop() if len(sources) == 1 else None


def _part(name: str, judged: Judged, bootstrap: Bootstrap) -> Part:
    return Part(name, len(judged), judged.clusters, estimate(statistics_of(judged), judged.clusters, bootstrap))
