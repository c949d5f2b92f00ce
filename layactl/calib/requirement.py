"""Conditions that a CI job sets: "ece>0.08" or "accuracy[lang=de]<0.9" fails the run when it is so."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from layactl.calib.bootstrap import Estimate
from layactl.calib.comparison import PairedComparison
from layactl.calib.evaluation import ALL, DEFINITIONS, Evaluation
from layactl.errors import UsageError

_FORM = re.compile(
    r"\s*(?P<delta>delta\.)?(?P<metric>[a-z0-9_]+)\s*(?:\[(?P<slice>.+)\])?\s*(?P<sign>>=|<=|>|<)\s*(?P<number>\S+)\s*"
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
# A curve's area has neither parts nor draws.
_AURC = "aurc"
_METRICS = frozenset(name for names in DEFINITIONS.values() for name in names) | {_AURC}


@dataclass(frozen=True)
class Requirement:
    """text: as it was given; delta: of the comparisons with other files, instead of the file's own metric."""

    text: str
    metric: str
    slice: str
    sign: str
    limit: float
    delta: bool

    def failures(self, evaluation: Evaluation, comparisons: Sequence[PairedComparison]) -> list[str]:
        """One text for every value that the condition names as a failure; what is not defined fails too."""
        if self.metric == _AURC:
            return self._failed({_AURC: Estimate(evaluation.risk_coverage.aurc)})
        if not self.delta:
            own = evaluation.part(self.slice)
            return self._failed(None if own is None else own.metrics)
        found = []
        for comparison in comparisons:
            paired = next((part for part in comparison.parts if part.name == self.slice), None)
            found += self._failed(None if paired is None else paired.delta)
        return found

    def _failed(self, metrics: Mapping[str, Estimate] | None) -> list[str]:
        if metrics is None:
            return [f"{self.text}: no slice {self.slice} of enough answers"]
        value = metrics[self.metric].value if self.metric in metrics else None
        if value is None:
            return [f"{self.text}: not defined"]
        return [f"{self.text}: it is {value:.6g}"] if _SIGNS[self.sign](value, self.limit) else []


def parse_requirement(text: str, compared: bool) -> Requirement:
    """`[delta.]METRIC[SLICE] > NUMBER`; SLICE as the tables name it. compared: whether there are deltas.

    Raises UsageError naming what is wrong with it.
    """
    where = f"--fail-if {text:.60}"
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError("is no condition", where=where, hint="write it like 'ece>0.08' or 'accuracy[type=noul]<0.9'")
    if match["metric"] not in _METRICS:
        raise UsageError(f"no metric is called {match['metric']:.40}", where=where, hint=", ".join(sorted(_METRICS)))
    limit = float(match["number"]) if _NUMBER.fullmatch(match["number"]) else math.inf
    if not math.isfinite(limit):
        raise UsageError(f"{match['number']:.40} is no finite number", where=where)
    if match["metric"] == _AURC and (match["delta"] or match["slice"]):
        raise UsageError("aurc is of all answers of the file alone", where=where)
    if match["delta"] and not compared:
        raise UsageError("a delta needs --against", where=where)
    return Requirement(
        text.strip(), match["metric"], (match["slice"] or ALL).strip(), match["sign"], limit, bool(match["delta"])
    )
