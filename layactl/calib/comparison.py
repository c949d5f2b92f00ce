"""Two models on the same answers: paired differences, exact McNemar tests, and Holm's correction over all of them.

McNemar, Psychometrika 12 (1947), in its exact binomial form; Holm, Scandinavian Journal of Statistics 6 (1979).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from layactl.calib.bootstrap import Bootstrap, Estimate, estimate
from layactl.calib.evaluation import Selection, check_selection
from layactl.calib.extra import scientific
from layactl.calib.judged import Judged, statistics_of
from layactl.calib.logits import LabelledAnswer, LabelledScore, LogitsFile
from layactl.calib.slices import Item, answer_slices, score_slices
from layactl.calib.statistic import Difference
from layactl.errors import InputError
from layactl.labelled.outcomes import KIND as ROUTER

# Slices that are tested: a question or group of its own would make the family too large to find anything.
_TESTED = ("all", "type", "lang", "kind")


@dataclass(frozen=True)
class PairedPart:
    """One slice of the answers that both files hold.

    delta: the second file's metrics - the first's, over the same draws; only_first, only_second: answers that only the
    one gets right; p: McNemar's, two-sided, None where the slice is not tested; holm: the same after the correction.
    """

    name: str
    answers: int
    clusters: int
    delta: Mapping[str, Estimate]
    only_first: int
    only_second: int
    p: float | None
    holm: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "slice": self.name,
            "answers": self.answers,
            "clusters": self.clusters,
            "delta": {name: found.to_json() for name, found in self.delta.items()},
            "mcnemar": {"only_first": self.only_first, "only_second": self.only_second, "p": self.p, "holm": self.holm},
        }


@dataclass(frozen=True)
class PairedComparison:
    """unmatched: answers of either file that the other does not hold."""

    first: LogitsFile
    second: LogitsFile
    parts: Sequence[PairedPart]
    unmatched: int

    def to_json(self) -> dict[str, Any]:
        return {
            "first": {"sha256": self.first.sha256, "engines": self.first.engines},
            "second": {"sha256": self.second.sha256, "engines": self.second.engines},
            "unmatched": self.unmatched,
            "slices": [part.to_json() for part in self.parts],
        }


def compare_files(
    first: tuple[LogitsFile, Selection], others: Sequence[tuple[LogitsFile, Selection]], bootstrap: Bootstrap
) -> list[PairedComparison]:
    """Every other file against the first, one family of tests.

    Raises InputError where two files share no answers, or disagree about the gold of one.
    """
    found = [_compare(first, other, bootstrap) for other in others]
    tested = [part.p for comparison in found for part in comparison.parts if part.p is not None]
    corrected = iter(holm(tested))
    return [
        PairedComparison(c.first, c.second, [_corrected(part, corrected) for part in c.parts], c.unmatched)
        for c in found
    ]


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p of as uneven a split of the answers on which two models differ; 1 where they never do.

    It takes the answers as independent: within clusters it is too bold, and the paired interval is the one to read.
    """
    if only_first + only_second == 0:
        return 1.0
    return float(scientific("scipy.stats").binomtest(only_first, only_first + only_second, 0.5).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values, in their order: the k-th smallest of m times (m - k + 1), never below those before it."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = largest
    return adjusted


def _compare(
    first: tuple[LogitsFile, Selection], second: tuple[LogitsFile, Selection], bootstrap: Bootstrap
) -> PairedComparison:
    (a, choose_a), (b, choose_b) = first, second
    for logits, selection in (first, second):
        logits.require_logits()
        check_selection(logits, selection)
    if a.kind != b.kind:
        raise InputError(f"holds {b.kind} logits, {a.path} holds {a.kind} logits", where=str(b.path))
    parts = []
    if a.kind == ROUTER:
        left, right, unmatched = _matched(choose_a.scores(a), choose_b.scores(b), str(b.path))
        for part in score_slices(left):
            judged = choose_a.judge_scores([left[row] for row in part.rows])
            other = choose_b.judge_scores([right[row] for row in part.rows])
            parts.append(_part(part.name, part.by, judged, other, bootstrap))
    else:
        ours, theirs, unmatched = _matched(choose_a.answers(a), choose_b.answers(b), str(b.path))
        for part in answer_slices(ours):
            judged = choose_a.judge_answers([ours[row] for row in part.rows])
            other = choose_b.judge_answers([theirs[row] for row in part.rows])
            parts.append(_part(part.name, part.by, judged, other, bootstrap))
    return PairedComparison(a, b, parts, unmatched)


def _part(name: str, by: str, first: Judged, second: Judged, bootstrap: Bootstrap) -> PairedPart:
    old, new = statistics_of(first), statistics_of(second)
    # Both files name the same clusters; the first one's numbers count for both.
    delta = estimate({metric: Difference(old[metric], new[metric]) for metric in old}, first.clusters, bootstrap)
    right_a, right_b = first.correct == 1, second.correct == 1
    only_a, only_b = int(np.sum(right_a & ~right_b)), int(np.sum(right_b & ~right_a))
    p = mcnemar(only_a, only_b) if by in _TESTED else None
    return PairedPart(name, len(first), first.clusters, delta, only_a, only_b, p)


def _corrected(part: PairedPart, adjusted: Iterator[float]) -> PairedPart:
    return part if part.p is None else replace(part, holm=next(adjusted))


def _matched(first: Sequence[Item], second: Sequence[Item], where: str) -> tuple[list[Item], list[Item], int]:
    """What both hold, in the first one's order and clusters; and how many items only one holds."""
    by_name = {_name(item): item for item in second}
    left, right = [], []
    for item in first:
        other = by_name.get(_name(item))
        if other is None:
            continue
        if _truth(item) != _truth(other):
            record, part = _name(item)
            raise InputError(f"{part!r:.40} of {record!r:.40} has other options or another gold", where=where)
        left.append(item)
        right.append(replace(other, member=item.member))
    if not left:
        raise InputError("shares no answers with the first file", where=where)
    return left, right, len(first) + len(second) - 2 * len(left)


def _name(item: LabelledAnswer | LabelledScore) -> tuple[str, str]:
    return item.member.id, item.candidate if isinstance(item, LabelledScore) else item.question


def _truth(item: LabelledAnswer | LabelledScore) -> object:
    return item.outcome if isinstance(item, LabelledScore) else (item.type, item.options, item.gold)
