"""Which calibration turns the logits into the probabilities that are judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layactl.calib.fit_file import FitFile, read_fit
from layactl.calib.logits import LabelledAnswer, LabelledScore, LogitsFile
from layactl.core import strict_json
from layactl.core.calibration import UNCALIBRATED_VERSION, Calibration, platt
from layactl.core.decision_spec import DecisionSpec
from layactl.core.spec_parser import parse_spec
from layactl.engine.spec_source import read_spec_text
from layactl.errors import InputError, SpecError
from layactl.labelled.decisions import KIND as DECISION
from layactl.labelled.outcomes import KIND as ROUTER
from layactl.layouts.laya import LAYA

_PLAIN_SIGMOID = (1.0, 0.0)


@dataclass(frozen=True)
class Calibrator:
    """source: "recorded" (as the engine applied it), "none", or the file it comes from; version: what answers call it;
    temperature: of an answer; platt: (a, b) of the router; fitted_on: fingerprints of the records it was fitted on,
    where it says so; doubts: one text for every temperature at the bounds of the clamp.
    """

    source: str
    version: str
    temperature: Callable[[LabelledAnswer], float]
    platt: tuple[float, float]
    fitted_on: frozenset[str] = frozenset()
    doubts: tuple[str, ...] = ()

    def probability(self, score: LabelledScore) -> float:
        """p_success as the router prints it."""
        assert score.logit is not None, "judged before it was scored"
        return platt(*self.platt, score.logit)

    def to_json(self) -> dict[str, Any]:
        return {"source": self.source, "version": self.version, "doubts": list(self.doubts)}


def recorded(logits: LogitsFile) -> Calibrator:
    """What the engine did when the logits were collected; T = 1 and sigmoid(z) where the file does not say.

    Raises InputError for logits of more than one engine, which have no one calibration.
    """
    engine = logits.one_engine() or {}
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
    fit = read_fit(path)
    if fit.kind != logits.kind:
        raise InputError(f"fits {fit.kind:.20} logits, but {logits.path} holds {logits.kind} logits", where=str(path))
    _same_engine(fit, logits)
    inner: dict[str, Any] = {"router": {"calibration": fit.block}} if fit.kind == ROUTER else {"calibration": fit.block}
    spec = parse(strict_json.dumps({"spec_version": 1, "layout": LAYA.name} | inner), str(path))
    return replace(_of_spec(spec, str(path), fit.kind), fitted_on=fit.split.records)


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
        doubts=_doubts(table) if kind == DECISION else (),
    )


def _doubts(table: Calibration) -> tuple[str, ...]:
    """A temperature at a bound was put there by the clamp, when it was fitted or now that it is used."""
    return tuple(
        f"the temperature of {kind} with {bucket} options is clamped to {table.clamped(stored):g}: "
        "treat as uncalibrated"
        for kind, buckets in table.temperature.items()
        for bucket, stored in buckets.items()
        if table.clamped(stored) in table.clamp
    )


def _same_engine(fit: FitFile, logits: LogitsFile) -> None:
    """A fit goes with the engine its logits came from. Raises InputError."""
    if any(other != fit.engine for other in logits.engines):
        raise InputError(
            f"was fitted on logits of another engine than those of {logits.path}",
            where=str(fit.path),
            hint="a calibration holds for the one model, spec, plan and kernels that its logits come from",
        )
