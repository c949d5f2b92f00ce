"""The model's contract: which layout, calibration and confidence rule it was made for (specification, "decision.spec").

A GGUF without a spec gets one from its own keys.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from layactl.core import strict_json
from layactl.core.calibration import Calibration

SPEC_VERSION = 1


@dataclass(frozen=True)
class DecisionSpec:
    """text: the exact JSON the hash is over; source: "default" (made from the file's keys)."""

    layout: str
    model_id: str
    confidence: str
    calibration: Calibration
    text: str
    source: str

    @property
    def sha256(self) -> str:
        """SHA-256 of the exact spec bytes."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


def default_spec(layout: str, input_contract: str, model_id: str, calibration: Calibration) -> DecisionSpec:
    """The spec of an unstamped file."""
    document: dict[str, object] = {
        "spec_version": SPEC_VERSION,
        "model_id": model_id,
        "layout": layout,
        "input_contract": input_contract,
        "special_tokens": "mask-to-space",
        "calibration": {"method": "none"},
        "confidence": layout,
    }
    if calibration.calibrated:
        document["calibration"] = {
            "method": "temperature",
            "version": calibration.version,
            "clamp": list(calibration.clamp),
            "temperature": {kind: dict(buckets) for kind, buckets in calibration.temperature.items()},
        }
    return DecisionSpec(layout, model_id, layout, calibration, strict_json.dumps(document), "default")
