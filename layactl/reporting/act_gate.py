"""When an answer may be acted on: a confidence for all, or certified ones per question or kind of question.

`calib threshold` writes a gate, `decide --min-confidence` and `calib eval --min-confidence` read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.core import strict_json
from layactl.core.calibration import bucket_span
from layactl.core.json_fields import JsonObject
from layactl.durable import read_limited
from layactl.errors import InputError, RequestError, UsageError

GATE_FORMAT = "layactl.act-gate/1"
_KINDS = ("decision", "router")
_MAX_BYTES = 16 * 2**20


@dataclass(frozen=True)
class GateRule:
    """The lowest confidence that is acted on, None where none could be certified: nothing is then acted on.

    question: of this id only; type, options: of this type and bucket of option counts only; None: of any.
    """

    min_confidence: float | None
    question: str | None = None
    type: str | None = None
    options: str | None = None

    def holds(self, question: str, question_type: str, options: int) -> bool:
        """Whether the rule speaks of such a question."""
        if self.question is not None and self.question != question:
            return False
        if self.type is not None and self.type != question_type:
            return False
        span = None if self.options is None else bucket_span(self.options)
        return span is None or (span[0] <= options and (span[1] is None or options <= span[1]))


@dataclass(frozen=True)
class ActGate:
    """kind: "decision" or "router", None for a plain number, which goes with both.

    calibration: what the confidences were calibrated by; source_sha256: the checkpoint of the model, None where the
    logits it was certified on did not name theirs. A plain number depends on neither.
    """

    rules: Sequence[GateRule]
    kind: str | None = None
    calibration: str | None = None
    source_sha256: str | None = None

    def acts(self, question: str, question_type: str, options: int, confidence: float) -> bool:
        """Whether an answer with this `answer_confidence` is acted on; one that no rule speaks of is not."""
        rule = next((rule for rule in self.rules if rule.holds(question, question_type, options)), None)
        return rule is not None and rule.min_confidence is not None and confidence >= rule.min_confidence

    def check_model(self, calibration: str | None, source_sha256: str | None, where: str) -> None:
        """A certificate holds for the probabilities it was made of. Raises UsageError for those of another model.

        calibration, source_sha256: the model's, None where it does not say. A certificate that names no checkpoint
        goes with no model that has one.
        """
        if self.kind is None:
            return
        for name, own, found in (
            ("calibration", self.calibration, calibration),
            ("checkpoint", self.source_sha256, source_sha256),
        ):
            if found is not None and own != found:
                raise UsageError(
                    f"was certified with {name} {own or 'unknown':.40}, but the model has {found:.40}",
                    where=where,
                    hint="a gate goes with the calibration and model of its logits: put that calibration into use "
                    "(--spec, or calib fit --stamp), or certify this one (calib threshold)",
                )


def read_gate(text: str) -> ActGate:
    """A number from 0 to 1, or the name of a file that `calib threshold` wrote.

    Raises UsageError for a number outside, InputError for a file that is no gate.
    """
    try:
        number = float(text)
    except ValueError:
        return _gate_file(Path(text))
    if not 0.0 <= number <= 1.0:
        raise UsageError(
            f"must be between 0 and 1, or a file of calib threshold, not {text:.40}", where="--min-confidence"
        )
    return ActGate([GateRule(number)])


def _gate_file(path: Path) -> ActGate:
    try:
        value = strict_json.loads_strict(read_limited(path, _MAX_BYTES))
    except RequestError as error:
        raise InputError(error.message, where=str(path)) from None
    fields = JsonObject(value if isinstance(value, dict) else {}, str(path), InputError)
    if fields.get("format") != GATE_FORMAT:
        raise InputError(f"is no gate: its format is {fields.get('format')!r:.60}", where=str(path))
    rules = [_rule(fields, i, value) for i, value in enumerate(fields.items("gates"))]
    if (kind := fields.text("kind")) not in _KINDS:
        raise fields.error("kind", f"is {kind!r:.40}; one of: {', '.join(_KINDS)}")
    return ActGate(rules, kind, fields.text("calibration"), _optional(fields, "source_sha256"))


def _rule(fields: JsonObject, number: int, value: Any) -> GateRule:
    if not isinstance(value, dict):
        raise fields.error(f"gates[{number}]", "must be an object")
    rule = fields.inside(value, f"gates[{number}]")
    options = _optional(rule, "options")
    if options is not None and bucket_span(options) is None:
        raise rule.error("options", f"is {options!r:.40}, which is no bucket of option counts")
    threshold = None if rule.get("min_confidence") is None else rule.number("min_confidence")
    if threshold is not None and not 0.0 <= threshold <= 1.0:
        raise rule.error("min_confidence", f"must be between 0 and 1, not {threshold:g}")
    if rule.get("certified") is not (threshold is not None):
        raise rule.error("certified", "must be true where there is a min_confidence and false where there is none")
    return GateRule(threshold, _optional(rule, "question"), _optional(rule, "type"), options)


def _optional(fields: JsonObject, key: str) -> str | None:
    return None if fields.get(key) is None else fields.text(key)
