"""The optional packages that some of the statistics come from."""

from __future__ import annotations

import importlib
from types import ModuleType

from layactl.errors import UsageError


def scientific(module: str) -> ModuleType:
    """A module of SciPy or scikit-learn, "scipy.optimize". Raises UsageError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{module.partition('.')[0]} is needed for this and cannot be imported: {error!s:.80}",
            hint="pip install 'layactl[calib]'",
        ) from None
