"""What a card says in numbers: the pass rates of its checks, how many there are, its kind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from layactl.calib.statistic import Doubles

# Skills with a column of their own: those measured most often.
_MOST_SKILLS = 32


def pass_rate(card: dict[str, Any]) -> float:
    """(passed + 1) / (total + 2), pooled over the measured checks; one half without any."""
    passed = total = 0
    for check in _checks(card, "measured"):
        passed += check["passed"]
        total += check["total"]
    return (passed + 1.0) / (total + 2.0)


def log_odds(rate: float) -> float:
    """ln(rate / (1 - rate)): what a sigmoid turns back into the rate."""
    return math.log(rate / (1.0 - rate))


@dataclass(frozen=True)
class CardFeatures:
    """The columns of a feature matrix. kinds, skills: those known when it was made; others count as none of them."""

    kinds: tuple[str, ...]
    skills: tuple[str, ...]

    @classmethod
    def of(cls, cards: Sequence[dict[str, Any]]) -> CardFeatures:
        """The columns that these cards need."""
        kinds = sorted({str(card["kind"]) for card in cards})
        counts = Counter(str(check["skill"]) for card in cards for check in _checks(card, "measured"))
        return cls(tuple(kinds), tuple(sorted(skill for skill, _ in counts.most_common(_MOST_SKILLS))))

    def matrix(self, cards: Sequence[dict[str, Any]]) -> Doubles:
        """(n, columns): pooled and per-check rates as log odds, their spread, ln(1 + total), counts of checks, kind.

        A skill that a card has not measured stands at the card's pooled rate.
        """
        return np.array([self._row(card) for card in cards], np.float64)

    def _row(self, card: dict[str, Any]) -> list[float]:
        measured, pooled = _checks(card, "measured"), log_odds(pass_rate(card))
        rates = {str(check["skill"]): log_odds((check["passed"] + 1.0) / (check["total"] + 2.0)) for check in measured}
        return [
            pooled,
            min(rates.values(), default=pooled),
            max(rates.values(), default=pooled),
            math.log1p(sum(check["total"] for check in measured)),
            float(len(measured)),
            float(len(_checks(card, "missing"))),
            *(rates.get(skill, pooled) for skill in self.skills),
            *(float(str(card["kind"]) == kind) for kind in self.kinds),
        ]


def _checks(card: dict[str, Any], status: str) -> list[dict[str, Any]]:
    return [check for check in card.get("checks", []) if check["status"] == status]
