"""Answers beside the truth: the probabilities as they are printed, and what each of them was worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from layactl.calib.logits import LabelledAnswer, LabelledScore
from layactl.calib.statistic import (
    Auc,
    CalibrationError,
    Doubles,
    Integers,
    MacroF1,
    Mean,
    MeanOf,
    Statistic,
)
from layactl.core.calibration import softmax

# A probability of 0 that comes true costs as much as the smallest step of a double, as in sklearn.metrics.log_loss.
_SMALLEST = float(np.finfo(np.float64).eps)

Acts = Callable[[LabelledAnswer | LabelledScore, float], bool]


@dataclass(frozen=True)
class Judged:
    """n answers as arrays.

    cluster: (n,), numbered in order; confidence: (n,), what is compared with a threshold; correct: (n,), 1 or 0;
    brier, nll: (n,); ranked: (n,), what the AUC ranks, and event: (n,), what it should rank above;
    acted: (n,), 1 where the answer passes the gate.
    Of decisions only: said: (n,), the option an answer says, as its index; predicted, true: (n,), the same and gold as
    numbers of (question, option) pairs; question: (n,) numbers; distance: (n,), of a score's expected
    level, NaN for the others; class_*: every option of every answer as an event of its own.
    """

    cluster: Integers
    clusters: int
    confidence: Doubles
    correct: Doubles
    brier: Doubles
    nll: Doubles
    ranked: Doubles
    event: Doubles
    acted: Doubles
    said: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    predicted: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    true: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    question: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    distance: Doubles = field(default_factory=lambda: np.zeros(0))
    class_number: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    class_answer: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    class_p: Doubles = field(default_factory=lambda: np.zeros(0))
    class_true: Doubles = field(default_factory=lambda: np.zeros(0))

    @property
    def of_decisions(self) -> bool:
        return len(self.said) > 0

    def __len__(self) -> int:
        return len(self.confidence)


def judge_answers(
    answers: Sequence[LabelledAnswer],
    temperature: Callable[[LabelledAnswer], float],
    *,
    digits: int | None = None,
    acts: Acts = lambda item, confidence: True,
) -> Judged:
    """Decisions. temperature: of an answer; digits: as `decide --round` prints them, None: unrounded; acts: the gate,
    which is asked with the unrounded confidence, as `decide` asks it.

    A noul is read as true from P(true) = 0.5 on, a choice or score as its first largest option. Brier is the sum over
    the options of (p - y)^2, from 0 to 2; the AUC says how often a right answer has more confidence than a wrong one.
    """
    clusters: dict[tuple[str, str], int] = {}
    classes: dict[tuple[str, str], int] = {}
    questions: dict[str, int] = {}
    rows, events = [], []
    for n, answer in enumerate(answers):
        exact = printed(answer, temperature(answer))
        p = exact if digits is None else [round(p_k, digits) for p_k in exact]
        numbers = [classes.setdefault((answer.question, option), len(classes)) for option in answer.options]
        cluster = clusters.setdefault(answer.member.cluster, len(clusters))
        question = questions.setdefault(answer.question, len(questions))
        rows.append(_row(answer, p, numbers, cluster, question, acts(answer, max(exact))))
        events += [
            (number, n, p_k, y_k) for number, p_k, y_k in zip(numbers, p, answer.gold.probabilities, strict=True)
        ]
    correct = _doubles(row.correct for row in rows)
    confidence = _doubles(row.confidence for row in rows)
    return Judged(
        cluster=_integers(row.cluster for row in rows),
        clusters=len(clusters),
        confidence=confidence,
        correct=correct,
        brier=_doubles(row.brier for row in rows),
        nll=_doubles(row.nll for row in rows),
        ranked=confidence,
        event=correct,
        acted=_doubles(row.acted for row in rows),
        said=_integers(row.said for row in rows),
        predicted=_integers(row.predicted for row in rows),
        true=_integers(row.true for row in rows),
        question=_integers(row.question for row in rows),
        distance=_doubles(row.distance for row in rows),
        class_number=_integers(event[0] for event in events),
        class_answer=_integers(event[1] for event in events),
        class_p=_doubles(event[2] for event in events),
        class_true=_doubles(event[3] for event in events),
    )


class _Row(NamedTuple):
    """One answer, as the fields of `Judged` name its parts."""

    cluster: int
    question: int
    confidence: float
    correct: float
    brier: float
    nll: float
    acted: float
    said: int
    predicted: int
    true: int
    distance: float


def _row(
    answer: LabelledAnswer, p: Sequence[float], numbers: Sequence[int], cluster: int, question: int, acted: bool
) -> _Row:
    y = answer.gold.probabilities
    top, confidence = predicted_option(answer.type, p), max(p)
    return _Row(
        cluster=cluster,
        question=question,
        confidence=confidence,
        correct=float(top == answer.gold.label),
        brier=math.fsum((p_k - y_k) ** 2 for p_k, y_k in zip(p, y, strict=True)),
        nll=-math.fsum(y_k * math.log(max(p_k, _SMALLEST)) for p_k, y_k in zip(p, y, strict=True)),
        acted=float(acted),
        said=top,
        predicted=numbers[top],
        true=numbers[answer.gold.label],
        distance=abs(_expected(p) - _expected(y)) if answer.type == "score" else math.nan,
    )


def judge_scores(
    scores: Sequence[LabelledScore],
    probability: Callable[[LabelledScore], float],
    *,
    digits: int | None = None,
    acts: Acts = lambda item, confidence: True,
) -> Judged:
    """Router candidates. probability: p_success of a candidate.

    Accuracy is at 0.5, from 0.5 on a success; Brier is (p - y)^2, the one-class form; the AUC ranks successes above
    failures. What is acted on is a candidate with enough p_success, and it is right when it succeeds.
    """
    clusters: dict[tuple[str, str], int] = {}
    exact = [probability(s) for s in scores]
    p = np.array(exact if digits is None else [round(p_s, digits) for p_s in exact], np.float64)
    y = np.array([score.outcome for score in scores], np.float64)
    cluster = np.array([clusters.setdefault(score.member.cluster, len(clusters)) for score in scores], np.int64)
    return Judged(
        cluster=cluster,
        clusters=len(clusters),
        confidence=p,
        correct=((p >= 0.5) == (y == 1)).astype(np.float64),
        brier=(p - y) ** 2,
        nll=-np.log(np.maximum(np.where(y == 1, p, 1 - p), _SMALLEST)),
        ranked=p,
        event=y,
        acted=np.array([acts(s, p_s) for s, p_s in zip(scores, exact, strict=True)], np.float64),
    )


def printed(answer: LabelledAnswer, temperature: float, digits: int | None = None) -> list[float]:
    """The probabilities an answer prints, in option order."""
    p = softmax(answer.logits, temperature)
    return p if digits is None else [round(p_k, digits) for p_k in p]


def predicted_option(question_type: str, p: Sequence[float]) -> int:
    """What an answer says: a noul is true from 0.5 on, otherwise the first of the largest."""
    return int(p[1] >= 0.5) if question_type == "noul" else p.index(max(p))


def statistics_of(judged: Judged) -> dict[str, Statistic]:
    """What is told of either kind of answer, by name."""
    return answer_statistics(judged) if judged.of_decisions else score_statistics(judged)


def answer_statistics(judged: Judged) -> dict[str, Statistic]:
    """What is told of decisions, by name."""
    cluster, count = judged.cluster, judged.clusters
    levels = (~np.isnan(judged.distance)).astype(np.float64)
    statistics: dict[str, Statistic] = {
        "accuracy": Mean(judged.correct, cluster, count),
        "macro_f1": MeanOf([_f1_of(judged, q) for q in np.unique(judged.question)]),
        "ece": CalibrationError(judged.confidence, judged.correct, cluster, count),
        "classwise_ece": MeanOf([_class_error(judged, c) for c in np.unique(judged.class_number)]),
    }
    statistics |= _shared(judged)
    return statistics | {"score_mae": Mean(np.nan_to_num(judged.distance), cluster, count, levels)}


def score_statistics(judged: Judged) -> dict[str, Statistic]:
    """What is told of router candidates, by name."""
    cluster, count = judged.cluster, judged.clusters
    return {
        "accuracy": Mean(judged.correct, cluster, count),
        "ece": CalibrationError(judged.ranked, judged.event, cluster, count),
        **_shared(judged),
    }


def _shared(judged: Judged) -> dict[str, Statistic]:
    cluster, count = judged.cluster, judged.clusters
    # Of a router the answer acted on is "this one succeeds"; of a decision event and correct are one.
    return {
        "brier": Mean(judged.brier, cluster, count),
        "nll": Mean(judged.nll, cluster, count),
        "auc": Auc(judged.ranked, judged.event, cluster, count),
        "coverage": Mean(judged.acted, cluster, count),
        "selective_accuracy": Mean(judged.event, cluster, count, judged.acted),
    }


def _f1_of(judged: Judged, question: int) -> MacroF1:
    rows = judged.question == question
    return MacroF1(judged.predicted[rows], judged.true[rows], judged.cluster[rows], judged.clusters)


def _class_error(judged: Judged, number: int) -> CalibrationError:
    rows = judged.class_number == number
    cluster = judged.cluster[judged.class_answer[rows]]
    return CalibrationError(judged.class_p[rows], judged.class_true[rows], cluster, judged.clusters)


def _doubles(values: Iterable[float]) -> Doubles:
    return np.fromiter(values, np.float64)


def _integers(values: Iterable[int]) -> Integers:
    return np.fromiter(values, np.int64)


def _expected(probabilities: Sequence[float]) -> float:
    return math.fsum(i * p for i, p in enumerate(probabilities))
