"""core.spec_parser: the contract of a file that carries none."""

from __future__ import annotations

import hashlib
import json

from layactl.core.calibration import Calibration
from layactl.core.spec_parser import default_spec_text, parse_spec
from layactl.layouts.laya import LAYA


def default_spec(model_id: str, shipped: Calibration):
    return parse_spec(
        default_spec_text("laya", model_id, shipped),
        source="default",
        where="tiny.gguf",
        shipped=shipped,
        model_id=model_id,
        parse_question=LAYA.parse_question,
    )


def test_the_default_spec_of_an_uncalibrated_model():
    spec = default_spec("tiny", Calibration())
    assert json.loads(spec.text) == {
        "spec_version": 1,
        "model_id": "tiny",
        "layout": "laya",
        "input_contract": "laya-v1",
        "special_tokens": "mask-to-space",
        "calibration": {"method": "none"},
        "confidence": "laya",
    }
    assert spec.source == "default" and not spec.calibration.calibrated


def test_the_default_spec_of_a_calibrated_model_holds_its_temperatures():
    calibration = Calibration("gguf:laya.temperature", {"noul": {"1-2": 1.43, "*": 1.12}})
    spec = default_spec("tiny", calibration)
    assert json.loads(spec.text)["calibration"] == {
        "method": "temperature",
        "version": "gguf:laya.temperature",
        "clamp": [0.5, 5.0],
        "temperature": {"noul": {"1-2": 1.43, "*": 1.12}},
    }
    assert spec.calibration == calibration


def test_the_hash_is_over_the_exact_text_as_json_dumps_writes_it():
    spec = default_spec("caf\u00e9", Calibration())
    assert spec.text == json.dumps(json.loads(spec.text), ensure_ascii=False)
    assert spec.sha256 == hashlib.sha256(spec.text.encode()).hexdigest()
