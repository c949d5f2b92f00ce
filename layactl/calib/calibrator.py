"""Which calibration turns the logits into the probabilities that are judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.calib.decisions import KIND as DECISION
from layactl.calib.logits import LabelledAnswer, LabelledScore, LogitsFile
from layactl.calib.outcomes import KIND as ROUTER
from layactl.core import strict_json
from layactl.core.calibration import UNCALIBRATED_VERSION, Calibration, platt
from layactl.core.decision_spec import DecisionSpec
from layactl.core.json_fields import JsonObject
from layactl.core.spec_parser import parse_spec
from layactl.durable import read_limited
from layactl.engine.spec_source import read_spec_text
from layactl.errors import InputError, RequestError, SpecError
from layactl.layouts.laya import LAYA

FIT_FORMAT = "layactl.calib-fit/1"
_MAX_FIT_BYTES = 64 * 2**20
_PLAIN_SIGMOID = (1.0, 0.0)


@dataclass(frozen=True)
class Calibrator:
    """source: "recorded" (as the engine applied it), "none", or the file it comes from; version: what answers call it;
    temperature: of an answer; platt: (a, b) of the router.
    """

    source: str
    version: str
    temperature: Callable[[LabelledAnswer], float]
    platt: tuple[float, float]

    def probability(self, score: LabelledScore) -> float:
        """p_success as the router prints it."""
        assert score.logit is not None, "judged before it was scored"
        return platt(*self.platt, score.logit)

    def to_json(self) -> dict[str, Any]:
        return {"source": self.source, "version": self.version}


def recorded(logits: LogitsFile) -> Calibrator:
    """What the engine did when the logits were collected; T = 1 and sigmoid(z) where the file does not say."""
    engine = next((engine for engine in logits.engines if engine), {})
    version = engine.get("calibration")
    pair = engine.get("router_calibration")
    sound = isinstance(pair, list) and len(pair) == 2 and all(isinstance(value, (int, float)) for value in pair)
    if logits.kind == ROUTER:
        version = "platt" if sound else UNCALIBRATED_VERSION
    return Calibrator(
        "recorded",
        version if isinstance(version, str) else UNCALIBRATED_VERSION,
        lambda answer: answer.temperature or 1.0,
        (float(pair[0]), float(pair[1])) if sound and isinstance(pair, list) else _PLAIN_SIGMOID,
    )


def uncalibrated() -> Calibrator:
    """T = 1 and sigmoid(z)."""
    return Calibrator("none", UNCALIBRATED_VERSION, lambda answer: 1.0, _PLAIN_SIGMOID)


def from_spec(path: Path, logits: LogitsFile) -> Calibrator:
    """The calibration of a SPEC.json, or of a bare calibration.json.

    A spec that does not speak of calibration keeps what the model ships, which is what was recorded. Raises SpecError.
    """
    spec = parse(read_spec_text(path), str(path))
    found = _of_spec(spec, str(path), logits.kind)
    stated = strict_json.loads_strict(spec.text)
    silent = isinstance(stated, dict) and "calibration" not in stated and "temperature" not in stated
    if logits.kind == DECISION and silent:
        before = recorded(logits)
        return Calibrator(str(path), before.version, before.temperature, before.platt)
    return found


def from_fit(path: Path, logits: LogitsFile) -> Calibrator:
    """The calibration of a FIT.json that `calib fit` wrote. Raises InputError, SpecError."""
    try:
        value = strict_json.loads_strict(read_limited(path, _MAX_FIT_BYTES))
    except RequestError as error:
        raise InputError(error.message, where=str(path)) from None
    fields = JsonObject(value if isinstance(value, dict) else {}, str(path), InputError)
    if fields.get("format") != FIT_FORMAT:
        raise InputError(f"is no fit: its format is {fields.get('format')!r:.60}", where=str(path))
    kind = fields.text("kind")
    if kind != logits.kind:
        raise InputError(f"fits {kind:.20} logits, but {logits.path} holds {logits.kind} logits", where=str(path))
    _same_engine(fields, logits)
    block = fields.object("calibration").values
    inner: dict[str, Any] = {"router": {"calibration": block}} if kind == ROUTER else {"calibration": block}
    spec = parse(strict_json.dumps({"spec_version": 1, "layout": LAYA.name} | inner), str(path))
    return _of_spec(spec, str(path), kind)


def parse(text: str, where: str) -> DecisionSpec:
    """A spec, or a bare calibration.json, by the rules of loading. Raises SpecError."""
    spec = parse_spec(
        text, source="file", where=where, shipped=Calibration(), model_id="", parse_question=LAYA.parse_question
    )
    if spec.layout != LAYA.name:
        raise SpecError(f"layout is {spec.layout}; only {LAYA.name} has a calibration here", where=where)
    return spec


def _of_spec(spec: DecisionSpec, where: str, kind: str) -> Calibrator:
    table = spec.calibration
    version = table.version
    if kind == ROUTER:
        version = "platt" if spec.router.platt else UNCALIBRATED_VERSION
    return Calibrator(
        where,
        version,
        lambda answer: table.temperature_for(answer.type, len(answer.options)),
        spec.router.platt or _PLAIN_SIGMOID,
    )


def _same_engine(fit: JsonObject, logits: LogitsFile) -> None:
    """A fit goes with the engine its logits came from. Raises InputError."""
    engine = fit.get("engine")
    if any(other != engine for other in logits.engines):
        raise InputError(
            f"was fitted on logits of another engine than those of {logits.path}",
            where=fit.where,
            hint="a calibration holds for the one model, spec, plan and kernels that its logits come from",
        )
