"""A spec with the fitted calibration in it, pinned to the kernels whose logits it was fitted on."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from layactl.calib.calibrator import parse
from layactl.calib.fit import Fit
from layactl.calib.logits import LogitsFile
from layactl.core import strict_json
from layactl.core.calibration import Calibration
from layactl.core.decision_spec import DecisionSpec
from layactl.core.spec_parser import KERNELS
from layactl.durable import check_target, replacing
from layactl.engine.spec_source import read_spec_text
from layactl.engine.stamp import get_spec, set_spec
from layactl.errors import SpecError, UsageError
from layactl.gguf_file import names
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.reader import GgufFile
from layactl.layouts.laya import LAYA
from layactl.reporting.record_stream import file_sha256

# How other engines call their kernels in what they report, and how a spec pins them.
_REPORTED = {"cpu": "default", "cpu+blas": "blas", "cpu+repack": "repack", "cpu+repack+blas": "repack+blas"}


def updated_spec(fit: Fit, base: Path | None, model: Path | None = None) -> tuple[str, list[str]]:
    """The text of the new spec, checked by the rules of loading; and what the user should know about it.

    base: the spec it starts from, None: that of the model, or one that says nothing else. Raises SpecError, GgufError.
    """
    if fit.base is None:
        fit = replace(fit, base=base_calibration(base, model))
    where, text = _base(base, model)
    stated = strict_json.loads_strict(parse(text, where).text)
    if "spec_version" not in stated:
        raise SpecError("is a bare calibration, no spec to put one into", where=where)
    notes = []
    if fit.platt is not None:
        stated["router"] = (stated.get("router") or {}) | {"calibration": fit.block}
    else:
        # As a whole, with what it keeps of the old: old buckets beside new temperatures would go first.
        required = (stated.get("calibration") or {}).get("required")
        stated["calibration"] = fit.block | ({} if required is None else {"required": required})
    if kernels := _pinned(fit):
        stated["plan"] = (stated.get("plan") or {}) | {"kernels": kernels}
    else:
        notes.append("the logits do not say which kernels computed them; plan.kernels stays as it is")
    text = strict_json.dumps(stated)
    parse(text, where)
    return text, notes


def base_calibration(base: Path | None, model: Path | None) -> Calibration | None:
    """The calibration that a fit goes into the place of; None where neither spec nor model says it.

    A spec that does not speak of calibration leaves what the model ships. Raises SpecError, GgufError.
    """
    if base is None and model is None:
        return None
    where, text = _base(base, model)
    stated = strict_json.loads_strict(parse(text, where).text)
    if "calibration" not in stated and "temperature" not in stated:
        return None if model is None else read_model(GgufFile(model)).calibration
    return parse(text, where).calibration


def write_spec(path: Path, text: str) -> None:
    """The exact text, which a spec's hash is over. Raises OutputError."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_stamp_target(logits: LogitsFile, model: Path) -> None:
    """Only the file that the logits came from is stamped, which a stamped file no longer is. Raises UsageError."""
    sha256 = (logits.one_engine() or {}).get("model_sha256")
    if sha256 != file_sha256(model):
        raise UsageError(
            "is not the file that the logits came from",
            where=f"--stamp {model}",
            hint="a stamp changes the file: after one, collect again; layactl spec set puts any spec into any model",
        )
    check_target(model)


def stamp_model(fit: Fit, model: Path, text: str) -> DecisionSpec:
    """Put the spec into the GGUF whose logits it was fitted on, in place.

    Raises UsageError for another file than that, GgufError, SpecError, OutputError.
    """
    check_stamp_target(fit.logits, model)
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.json"
        spec.write_text(text, encoding="utf-8")
        return set_spec(model, spec)


def _base(base: Path | None, model: Path | None) -> tuple[str, str]:
    """Where the spec comes from that is to be changed, and its text."""
    if base is not None:
        return str(base), read_spec_text(base)
    if model is not None:
        file = GgufFile(model)
        if names.DECISION_SPEC in file.keys:
            return str(model), get_spec(file)
    return "the new spec", strict_json.dumps({"spec_version": 1, "layout": LAYA.name})


def _pinned(fit: Fit) -> str | None:
    """plan.kernels, None where the engine is not known or reports kernels a spec cannot name."""
    kernels = (fit.logits.one_engine() or {}).get("kernels")
    if not isinstance(kernels, str):
        return None
    kernels = _REPORTED.get(kernels, kernels)
    return kernels if kernels in KERNELS else None
