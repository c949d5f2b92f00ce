"""The golden numbers, which fixtures/make_calib_golden.py has from scikit-learn and SciPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "golden" / "calib_metrics.json").read_text(encoding="utf-8")
)
