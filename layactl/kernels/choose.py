"""Which kernels run: the ones asked for, else the spec's, else the fastest exact ones here."""

from __future__ import annotations

from layactl.core.spec_parser import FOREIGN_KERNELS, OWN_KERNELS
from layactl.errors import ModelLoadError
from layactl.kernels.interface import Kernels
from layactl.kernels.reference import ReferenceKernels

_HERE = {"reference": ReferenceKernels}
_REPACKED = ("repack", "repack+blas")


def choose_kernels(from_spec: str, asked: str | None = None) -> tuple[Kernels, list[str]]:
    """The kernels and what the user should know about the choice.

    from_spec: the spec's plan.kernels; asked: a name that overrides it. Raises ModelLoadError for kernels that do not
    exist here.
    """
    name = asked if asked is not None else from_spec
    notes = []
    if name in _REPACKED:
        raise ModelLoadError(
            f"the spec pins the kernels {name!r}, which do not exist here", hint="--kernels auto runs the exact ones"
        )
    if name in FOREIGN_KERNELS:
        notes.append(f"the spec names another engine's kernels ({name}); the exact float32 ones are used")
        name = "auto"
    if name == "auto":
        name = "reference"
    if name not in _HERE:
        known = name in OWN_KERNELS
        raise ModelLoadError(
            f"the kernels {name!r} {'are not available here' if known else 'are not known'}",
            hint=f"available: auto, {', '.join(_HERE)}",
        )
    return _HERE[name](), notes
