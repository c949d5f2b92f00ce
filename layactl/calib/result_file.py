"""Results as JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from layactl.durable import replacing


def write_result(path: Path, value: dict[str, Any]) -> None:
    """UTF-8, indented, whole or not at all. Raises OutputError."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
