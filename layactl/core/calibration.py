"""Logits -> probabilities: temperatures by question type and option count, softmax, Platt and confidence in double.

Specification, "Calibration rules"; reference functions `agent._decode_answers`, `common.clamp_temperature`,
`common.temp_bucket`, `common.confidence_from_probs`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

TEMPERATURE_MIN, TEMPERATURE_MAX = 0.5, 5.0
UNCALIBRATED_VERSION = "none"

_BUCKET = re.compile(r"(?P<low>[0-9]{1,9})(?:-(?P<high>[0-9]{1,9})|(?P<open>\+))?")

# The reference's bucket names; its "2" means two options or fewer.
_REFERENCE_BUCKETS = {"2": "1-2", "3-5": "3-5", "6-10": "6-10", "11+": "11+"}


@dataclass(frozen=True)
class Calibration:
    """Temperatures: {question type or "all": {bucket: temperature}}.

    Buckets are "N", "A-B", "N+" and "*". A temperature found is clamped; where none is found it is exactly 1.
    version: names where the temperatures come from; "none" marks an uncalibrated model.
    """

    version: str = UNCALIBRATED_VERSION
    temperature: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    clamp: tuple[float, float] = (TEMPERATURE_MIN, TEMPERATURE_MAX)

    @property
    def calibrated(self) -> bool:
        return self.version != UNCALIBRATED_VERSION

    def temperature_for(self, question_type: str, options: int) -> float:
        """The temperature that divides the logits of a question with `options` options."""
        buckets = self.buckets_for(question_type)
        name = find_bucket(buckets, options)
        return 1.0 if name is None else self.clamped(buckets[name])

    def buckets_for(self, question_type: str) -> Mapping[str, float]:
        """The type's own entry, else "all"; empty where neither is there."""
        return self.temperature.get(question_type, self.temperature.get("all", {}))

    def clamped(self, temperature: float) -> float:
        low, high = self.clamp
        return min(high, max(low, temperature))

    def warnings(self) -> list[str]:
        """One text for every stored temperature that the clamp replaces."""
        low, high = self.clamp
        return [
            f"temperature {stored:g} of {kind} with {bucket} options is outside [{low:g}, {high:g}]; "
            f"{self.clamped(stored):g} is used: treat these confidences as uncalibrated"
            for kind, buckets in self.temperature.items()
            for bucket, stored in buckets.items()
            if stored != self.clamped(stored)
        ]


def find_bucket(buckets: Mapping[str, float], options: int) -> str | None:
    """The bucket that holds an option count: exact "N", then a range "A-B", then "N+", then "*"."""
    if str(options) in buckets:
        return str(options)
    spans = {name: span for name in buckets if (span := bucket_span(name)) is not None and name != "*"}
    holding = [name for name, (low, high) in spans.items() if low <= options and (high is None or options <= high)]
    ranges = [name for name in holding if spans[name][1] is not None]
    if ranges:
        return ranges[0]
    if holding:
        return max(holding, key=lambda name: spans[name][0])
    return "*" if "*" in buckets else None


def bucket_span(name: str) -> tuple[int, int | None] | None:
    """The option counts of a bucket: "3" -> (3, 3), "3-5" -> (3, 5), "11+" -> (11, None), "*" -> (1, None); None for
    anything else.
    """
    if name == "*":
        return 1, None
    match = _BUCKET.fullmatch(name)
    if match is None:
        return None
    low = int(match["low"])
    high = None if match["open"] else int(match["high"] or low)
    return (low, high) if low >= 1 and (high is None or low <= high) else None


def reference_calibration(
    temperatures: Sequence[float], by_options: Mapping[str, float], types: Sequence[str], version: str
) -> Calibration:
    """The calibration a checkpoint ships: one temperature a type, and buckets such as "choice:3-5" that override it.

    All ones and no bucket is an uncalibrated model. Names the reference would never look up are left out.
    """
    if all(t == 1.0 for t in temperatures) and not by_options:
        return Calibration()
    table: dict[str, dict[str, float]] = {}
    for question_type, base in zip(types, temperatures, strict=True):
        buckets = {
            bucket: by_options[f"{question_type}:{name}"]
            for name, bucket in _REFERENCE_BUCKETS.items()
            if f"{question_type}:{name}" in by_options
        }
        table[question_type] = {**buckets, "*": base}
    return Calibration(version=version, temperature=table)


def softmax(logits: Sequence[float], temperature: float) -> list[float]:
    """softmax(logits / temperature) in double."""
    # The difference first: a quotient alone overflows for the smallest temperatures a spec may name.
    top = max(logits)
    exps = [math.exp((z - top) / temperature) for z in logits]
    total = math.fsum(exps)
    return [e / total for e in exps]


def platt(a: float, b: float, logit: float) -> float:
    """sigmoid(a z + b) in double: the probability that a router calibration gives the raw logit z."""
    x = a * logit + b
    # exp of a negative number cannot overflow.
    small = math.exp(-abs(x))
    return 1.0 / (1.0 + small) if x >= 0 else small / (1.0 + small)


def confidence(rule: str, question_type: str, probabilities: Sequence[float]) -> float:
    """`confidence` of an answer by the spec's rule.

    laya: max(p, 1 - p) of a noul, 1 - H / ln K of the others; typesafe: 1 - H / ln K of all; max_p: max(p) of all.
    """
    if rule == "max_p" or (rule == "laya" and question_type == "noul"):
        return max(probabilities)
    return entropy_confidence(probabilities)


def entropy_confidence(probabilities: Sequence[float]) -> float:
    """1 - H(p) / ln K, in [0, 1]; 1 for a single option."""
    if len(probabilities) < 2:
        return 1.0
    entropy = -math.fsum(p * math.log(max(p, 1e-12)) for p in probabilities)
    return min(1.0, max(0.0, 1.0 - entropy / math.log(len(probabilities))))
