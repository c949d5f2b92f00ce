"""Which kernels run: the ones asked for, else the spec's, else the fastest exact ones that work here."""

from __future__ import annotations

from collections.abc import Callable

from layactl.core.arithmetic import Kernels
from layactl.core.spec_parser import FOREIGN_KERNELS, OWN_KERNELS
from layactl.errors import ModelLoadError
from layactl.kernels.onednn import OneDnnBf16Kernels, OneDnnKernels
from layactl.kernels.probe import flaw
from layactl.kernels.reference import ReferenceKernels

_HERE: dict[str, Callable[[], Kernels]] = {
    "reference": ReferenceKernels,
    "onednn": OneDnnKernels,
    "onednn-bf16": OneDnnBf16Kernels,
}
# What `auto` tries, fastest first: exact ones only, and never by a stopwatch, so that the same machine always gives the
# same digits.
_AUTOMATIC = ("onednn", "reference")
_REPACKED = ("repack", "repack+blas")


def _on_device(name: str, device: str) -> Kernels:
    """Raises ModelLoadError for kernels of the CPU, and for a device that does not multiply exactly."""
    if name not in ("auto", ReferenceKernels.name):
        raise ModelLoadError(f"the kernels {name!r} run on the CPU only", hint="--kernels auto runs plain torch there")
    if (problem := flaw(ReferenceKernels(device))) is not None:
        raise ModelLoadError(f"the device {device!r} cannot be used: {problem}", hint="--device cpu")
    return ReferenceKernels(device)


def choose_kernels(from_spec: str, asked: str | None = None, *, device: str = "cpu") -> tuple[Kernels, list[str]]:
    """The kernels and what the user should know about the choice.

    from_spec: the spec's plan.kernels; asked: a name that overrides it; device: of torch, on which only plain torch
    runs.
    Raises ModelLoadError for kernels that do not exist here or compute something else than they say.
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
    if device != "cpu":
        return _on_device(name, device), notes
    if name == "auto":
        for candidate in _AUTOMATIC:
            if (problem := flaw(_HERE[candidate]())) is None:
                return _HERE[candidate](), notes
        raise ModelLoadError(
            f"torch does not multiply float32 matrices exactly in this process: {problem}",
            hint="leave torch.set_float32_matmul_precision and torch.backends...fp32_precision at their defaults",
        )
    if name not in _HERE:
        known = name in OWN_KERNELS
        raise ModelLoadError(
            f"the kernels {name!r} {'are not available here' if known else 'are not known'}",
            hint=f"available: auto, {', '.join(_HERE)}",
        )
    if (problem := flaw(_HERE[name]())) is not None:
        raise ModelLoadError(f"the kernels {name!r} cannot be used: {problem}", hint="--kernels auto takes what works")
    return _HERE[name](), notes
