"""One question answered by two runs: how far apart, in every way a tier has a bound for.

Source of the statistics: specification, Backend parity tiers (Gate). b is the baseline's value, c the candidate's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from layactl.core import strict_json
from layactl.core.calibration import softmax
from layactl.parity.run_file import QuestionRecord, to_float

# Fields that a whole run may lack (known difference server_answer_shape).
OPTIONAL_FIELDS = frozenset({"answer_confidence", "action"})
_CATEGORIES = ("type", "choice", "legend")


@dataclass(frozen=True)
class NumberError:
    """One number of the two answers. name: its path; error: |b - c|, rounded and scaled as the exact rule wants it;
    raw: |b - c| as the numbers stand. Both are NaN where a side is not finite.
    """

    name: str
    error: float
    raw: float


@dataclass
class Difference:
    """Two records of one question whose ids and markers are the same.

    gap: p1 - p2 of softmax(b) at temperature 1; flipped: the largest logit is another option's;
    dlogit: max |b - c| over the scorer logits; tvd: half the sum of |softmax(b) - softmax(c)|;
    act: max |b - c| / max(|b|, |c|, 1) over the act logits, None where a side has none;
    numbers: every number of the public answers; dp: |b - c| of the probabilities and noul values among them;
    categories: fields that are no numbers and differ; missing: fields only one side has; not_finite: values that are
    no numbers at all; answered: both sides have an answer with numbers in it; own_choice: the candidate's choice is a
    label with the largest of its public probabilities.
    """

    gap: float
    flipped: bool
    dlogit: float
    tvd: float
    act: float | None
    act_missing: bool
    answered: bool
    numbers: list[NumberError] = field(default_factory=list)
    dp: list[float] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)
    own_choice: bool = True


def differ(baseline: QuestionRecord, candidate: QuestionRecord, ignored: frozenset[str] = frozenset()) -> Difference:
    """Compare two records of one question. Lists of other lengths are a missing "logits" or "act_logits".

    ignored: fields of the answers that one of the runs never gives.
    """
    missing, not_finite = [], []
    for name in ("logits", "act_logits"):
        b, c = getattr(baseline, name), getattr(candidate, name)
        if b is not None and c is not None and len(b) != len(c):
            missing.append(name)
        not_finite += [name] * (not all(map(math.isfinite, [*(b or []), *(c or [])])))
    sound = not missing and not not_finite
    act = None
    if sound and baseline.act_logits is not None and candidate.act_logits is not None:
        act = relative_error(baseline.act_logits, candidate.act_logits)
    result = Difference(
        gap=top_gap(baseline.logits) if sound else math.nan,
        flipped=sound and first_largest(baseline.logits) != first_largest(candidate.logits),
        dlogit=absolute_error(baseline.logits, candidate.logits) if sound else math.nan,
        tvd=_total_variation(baseline.logits, candidate.logits) if sound else math.nan,
        act=act,
        act_missing=(baseline.act_logits is None) or (candidate.act_logits is None),
        answered=False,
        missing=missing,
        not_finite=not_finite,
        categories=[] if baseline.type == candidate.type else ["type"],
    )
    if baseline.answer is not None and candidate.answer is not None:
        b, c = ({k: v for k, v in answer.items() if k not in ignored} for answer in (baseline.answer, candidate.answer))
        _compare_answers(result, b, c, len(baseline.logits))
        result.answered = bool(result.numbers)
        result.own_choice = _is_own_choice(candidate.answer)
    return result


def top_gap(logits: list[float]) -> float:
    """p1 - p2 of softmax(logits) at temperature 1; 1 for a single option."""
    if len(logits) == 1:
        return 1.0
    first, second = sorted(softmax(logits, 1.0), reverse=True)[:2]
    return first - second


def first_largest(values: list[float]) -> int:
    """Index of the largest value, the first of several."""
    return values.index(max(values))


def absolute_error(b: list[float], c: list[float]) -> float:
    """max |b - c|."""
    return max((abs(x - y) for x, y in zip(b, c, strict=True)), default=0.0)


def relative_error(b: list[float], c: list[float]) -> float:
    """max |b - c| / max(|b|, |c|, 1): act logits reach the thousands, and their softmax is 1 long before."""
    return max((abs(x - y) / max(abs(x), abs(y), 1.0) for x, y in zip(b, c, strict=True)), default=0.0)


def within(error: float, tolerance: float) -> bool:
    """error <= tolerance, an error equal to it up to float noise included; never for NaN.

    One step of a 4-digit number is 1.0000000000000167e-4 as often as 1e-4.
    """
    return error <= tolerance or math.isclose(error, tolerance, rel_tol=1e-9, abs_tol=1e-12)


def _total_variation(b: list[float], c: list[float]) -> float:
    return math.fsum(abs(p - q) for p, q in zip(softmax(b, 1.0), softmax(c, 1.0), strict=True)) / 2


def _compare_answers(result: Difference, b: dict[str, Any], c: dict[str, Any], options: int) -> None:
    for name, left, right in _pairs("", b, c, result.missing):
        key = name.partition(".")[0]
        if any(isinstance(value, float) and not math.isfinite(value) for value in (left, right)):
            result.not_finite.append(name)
            result.numbers.append(NumberError(name, math.nan, math.nan))
            continue
        if key in _CATEGORIES or not (_is_number(left) and _is_number(right)):
            # As JSON, because 1, 1.0 and True are equal in Python and different answers.
            if json.dumps(left, sort_keys=True) != json.dumps(right, sort_keys=True):
                result.categories.append(name)
            continue
        left, right = to_float(left), to_float(right)
        if not (math.isfinite(left) and math.isfinite(right)):
            result.not_finite.append(name)
            result.numbers.append(NumberError(name, math.nan, math.nan))
            continue
        raw = abs(left - right)
        # The reference rounds its answers to four digits: such a number is compared with the other rounded alike.
        error = abs(left - round(right, 4)) if left == round(left, 4) else raw
        # A score sums K probability terms, each with a rounding of its own: its error is one of its range.
        result.numbers.append(NumberError(name, error / max(1, options - 1) if key == "score" else error, raw))
        if key in ("probabilities", "noul"):
            result.dp.append(raw)


def _pairs(path: str, b: dict[str, Any], c: dict[str, Any], missing: list[str]) -> Iterator[tuple[str, Any, Any]]:
    """Leaves of two answers side by side; `missing` grows by the fields only one has."""
    for key in [*b, *(key for key in c if key not in b)]:
        name = f"{path}.{key}" if path else key
        if key not in b or key not in c:
            missing.append(name)
        elif isinstance(b[key], dict) and isinstance(c[key], dict) and key not in _CATEGORIES:
            yield from _pairs(name, b[key], c[key], missing)
        else:
            yield name, b[key], c[key]


def _is_own_choice(answer: dict[str, Any]) -> bool:
    """Whether the choice is a label with the largest of the public probabilities."""
    probabilities = answer.get("probabilities")
    if "choice" not in answer or not isinstance(probabilities, dict):
        return True
    if not isinstance(answer["choice"], (str, int, float)):
        return False
    values = [value for value in probabilities.values() if _is_number(value)]
    chosen = probabilities.get(strict_json.json_key(answer["choice"]))
    return bool(values) and _is_number(chosen) and chosen == max(values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
