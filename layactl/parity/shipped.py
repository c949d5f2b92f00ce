"""Where the corpus and the tiers are: beside the package in a source tree, in share/layactl of an installation."""

from __future__ import annotations

import sys
from pathlib import Path

import layactl
from layactl.errors import InputError


def shipped(name: str) -> Path:
    """Path of "corpus" or "tiers.json". Raises InputError."""
    candidates = (Path(layactl.__file__).parent.parent / name, Path(sys.prefix) / "share" / "layactl" / name)
    for path in candidates:
        if path.exists():
            return path
    raise InputError("is missing from this installation", where=str(candidates[0]))
