"""The lowest confidence that is safe to act on, certified by fixed-sequence Learn-then-Test.

Angelopoulos, Bates, Candes, Jordan and Lei, "Learn then Test" (2021): the thresholds 1.0000, 0.9999, ... are tested in
this order, each null hypothesis being "more than alpha of what is acted on is wrong", with the exact binomial tail; the
first that cannot be rejected ends it. With probability 1 - delta over the answers it was certified on, the error rate
behind the certified threshold is at most alpha.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from layactl import __version__
from layactl.calib.evaluation import Selection, check_selection, model_of
from layactl.calib.extra import scientific
from layactl.calib.logits import LabelledAnswer, LabelledScore, LogitsFile
from layactl.calib.statistic import Doubles
from layactl.calib.temperature import BUCKETS
from layactl.core.calibration import find_bucket
from layactl.errors import UsageError
from layactl.labelled.outcomes import KIND as ROUTER
from layactl.reporting.act_gate import GATE_FORMAT, ActGate, GateRule

GRID = 10_000
MIN_ACTED = 30


@dataclass(frozen=True)
class Risk:
    """alpha: the error rate among acted-on answers that is tolerated; delta: how often a certificate may be wrong;
    min_acted: fewest answers a test is made of.
    """

    alpha: float = 0.05
    delta: float = 0.1
    min_acted: int = MIN_ACTED

    def __post_init__(self) -> None:
        """Raises UsageError."""
        for name, value in (("--alpha", self.alpha), ("--delta", self.delta)):
            if not 0.0 < value < 1.0:
                raise UsageError(f"must be between 0 and 1, not {value:g}", where=name)

    def first_test(self, tests: int = 1) -> int:
        """Acted-on answers with which the sequence starts: three times what certifies when none is wrong.

        Fewer would stop it at the first error. tests: how many certificates share delta.
        """
        return max(self.min_acted, math.ceil(3.0 * math.log(self.delta / tests) / math.log(1.0 - self.alpha)))


@dataclass(frozen=True)
class Certificate:
    """rule: with min_confidence None where nothing could be certified, for `reason`.

    answers: that the sequence was tested on, of so many clusters; acted, errors, p: at the certified threshold, else at
    the first that was tested; upper: the exact 1 - delta bound of its error rate.
    """

    rule: GateRule
    answers: int
    clusters: int
    acted: int
    errors: int
    p: float | None
    upper: float | None
    reason: str = ""

    @property
    def coverage(self) -> float:
        """Share of the answers that the gate lets through."""
        return self.acted / self.answers if self.rule.min_confidence is not None else 0.0

    def to_json(self) -> dict[str, Any]:
        named = {"question": self.rule.question, "type": self.rule.type, "options": self.rule.options}
        return {
            **{name: value for name, value in named.items() if value is not None},
            "certified": self.rule.min_confidence is not None,
            "min_confidence": self.rule.min_confidence,
            "answers": self.answers,
            "clusters": self.clusters,
            "acted": self.acted,
            "errors": self.errors,
            "coverage": self.coverage,
            "p": self.p,
            "error_upper": self.upper,
            **({"reason": self.reason} if self.reason else {}),
        }


@dataclass(frozen=True)
class Thresholds:
    """by: "all", "shape" (type and bucket of option counts) or "question"; simultaneous: whether delta is shared;
    pooled: whether all answers of a group were used; in_sample: answers of records the calibration was fitted on.
    """

    logits: LogitsFile
    selection: Selection
    risk: Risk
    by: str
    simultaneous: bool
    pooled: bool
    certificates: Sequence[Certificate]
    in_sample: int = 0

    def gate(self) -> ActGate:
        """What `decide --min-confidence` reads back from the file."""
        model = model_of(self.logits, self.selection.calibrator)
        return ActGate([c.rule for c in self.certificates], self.logits.kind, *model)

    def to_json(self) -> dict[str, Any]:
        calibration, source = model_of(self.logits, self.selection.calibrator)
        return {
            "format": GATE_FORMAT,
            "layactl": __version__,
            "kind": self.logits.kind,
            "calibration": calibration,
            "source_sha256": source,
            "alpha": self.risk.alpha,
            "delta": self.risk.delta,
            "by": self.by,
            "simultaneous": self.simultaneous,
            "pooled": self.pooled,
            "split": self.selection.split,
            "in_sample": self.in_sample,
            "logits": {"sha256": self.logits.sha256},
            "gates": [certificate.to_json() for certificate in self.certificates],
        }


def certify(
    confidence: Doubles, right: Doubles, risk: Risk, rule: GateRule, *, clusters: int, tests: int = 1
) -> Certificate:
    """Walk the grid down from 1. confidence, right: (n,); tests: how many certificates share delta."""
    order = np.argsort(confidence, kind="stable")
    ranked = confidence[order]
    grid = np.arange(GRID, -1, -1) / GRID
    below = np.searchsorted(ranked, grid, side="left")  # answers that a threshold holds back
    acted = len(ranked) - below
    wrong_below = np.concatenate([[0.0], np.cumsum(1.0 - right[order])])
    errors = (wrong_below[-1] - wrong_below[below]).round().astype(np.int64)
    least, delta = risk.first_test(tests), risk.delta / tests
    start = int(np.searchsorted(acted, least, side="left"))

    def certificate(at: int | None, shown: int, p: float | None, reason: str = "") -> Certificate:
        found = GateRule(None if at is None else float(grid[at]), rule.question, rule.type, rule.options)
        n, e = int(acted[shown]), int(errors[shown])
        bound = _upper(e, n, delta) if n else None
        return Certificate(found, len(ranked), clusters, n, e, p, bound, reason)

    if start == len(grid):
        return certificate(None, GRID, None, f"{len(ranked)} answers; the first test needs {least}")
    p_values = np.asarray(scientific("scipy.stats").binom.cdf(errors[start:], acted[start:], risk.alpha), np.float64)
    failed = p_values > delta
    passed = int(np.argmax(failed)) if failed.any() else len(failed)
    if not passed:
        first = f"{errors[start]} of the {acted[start]} most confident answers are wrong"
        return certificate(None, start, float(p_values[0]), first)
    return certificate(start + passed - 1, start + passed - 1, float(p_values[passed - 1]))


def thresholds(
    logits: LogitsFile,
    selection: Selection,
    risk: Risk,
    *,
    by: str = "shape",
    simultaneous: bool = False,
    pooled: bool = False,
) -> Thresholds:
    """A certificate for every question or shape of question.

    simultaneous: all certificates hold together with 1 - delta, delta shared among them (Bonferroni), instead of each
    alone; pooled: use all answers of a group, as if they were independent, instead of one of them, as the test needs.
    Raises InputError where the split holds none or logits of two engines are mixed, UsageError for an unknown `by`.
    """
    logits.one_engine()
    logits.require_logits()
    check_selection(logits, selection)
    if logits.kind == ROUTER:
        scores = selection.scores(logits)
        parts = {GateRule(None): scores}
        found = _certificates(parts, lambda s: selection.judge_scores(s), risk, simultaneous, pooled)
        seen = selection.in_sample(scores)
        return Thresholds(logits, selection, risk, "all", simultaneous, pooled, found, seen)
    if by not in _RULES:
        raise UsageError(f"must be {', '.join(_RULES)}, not {by:.40}", where="--by")
    groups: dict[GateRule, list[LabelledAnswer]] = {}
    for answer in selection.answers(logits):
        if len(answer.options) > 1:
            groups.setdefault(_RULES[by](answer), []).append(answer)
    found = _certificates(groups, lambda a: selection.judge_answers(a), risk, simultaneous, pooled)
    seen = selection.in_sample(answer for answers in groups.values() for answer in answers)
    return Thresholds(logits, selection, risk, by, simultaneous, pooled, found, seen)


def _certificates(
    parts: dict[GateRule, Any], judge: Callable[[Any], Any], risk: Risk, simultaneous: bool, pooled: bool
) -> list[Certificate]:
    tests = max(1, len(parts)) if simultaneous else 1
    found = []
    for rule, items in parts.items():
        kept = items if pooled else _one_of_each_cluster(items)
        judged = judge(kept)
        found.append(certify(judged.ranked, judged.event, risk, rule, clusters=judged.clusters, tests=tests))
    return found


def _one_of_each_cluster(items: Sequence[Any]) -> list[Any]:
    """Chosen by a hash of their names, so that neither confidence nor order has a say."""
    kept: dict[tuple[str, str], Any] = {}

    def rank(item: LabelledAnswer | LabelledScore) -> bytes:
        part = item.candidate if isinstance(item, LabelledScore) else item.question
        return hashlib.sha256(f"threshold:{item.member.id}:{part}".encode()).digest()

    for item in items:
        other = kept.get(item.member.cluster)
        if other is None or rank(item) < rank(other):
            kept[item.member.cluster] = item
    return list(kept.values())


def _shape(answer: LabelledAnswer) -> GateRule:
    bucket = find_bucket(dict.fromkeys(BUCKETS, 1.0), len(answer.options))
    return GateRule(None, type=answer.type, options=bucket)


_RULES: dict[str, Callable[[LabelledAnswer], GateRule]] = {
    "shape": _shape,
    "question": lambda answer: GateRule(None, question=answer.question),
    "all": lambda answer: GateRule(None),
}


def _upper(errors: int, acted: int, delta: float) -> float:
    """Clopper and Pearson's one-sided bound."""
    if errors >= acted:
        return 1.0
    return float(scientific("scipy.stats").beta.ppf(1.0 - delta, errors + 1, acted - errors))
