"""Where the forward pass runs: the CPU, or a device that torch has (specification, Compute device).

Exact float32 on the CPU is what this tool is for. A device runs the reference kernels through torch; no measurement
here covers one, and `parity run --device` with a gate says whether its answers may be trusted.
"""

from __future__ import annotations

from layactl.errors import ModelLoadError, UsageError

CPU, AUTO = "cpu", "auto"
DEVICES = (CPU, "cuda", "mps", AUTO)


def choose_device(asked: str) -> tuple[str, list[str]]:
    """The device and what the user should know about the choice.

    asked: "cpu"; "cuda" or "mps", which must be there; "auto": the first of those two that is, else the CPU.
    Raises UsageError for another name, ModelLoadError for a device that is not there.
    """
    if asked not in DEVICES:
        raise UsageError(f"no device is called {asked!r:.40}", hint=f"devices: {', '.join(DEVICES)}")
    if asked == CPU:
        return CPU, []
    present = [name for name in DEVICES[1:3] if _is_there(name)]
    if asked == AUTO:
        return (present[0], []) if present else (CPU, ["no device but the CPU is there; the CPU is used"])
    if asked not in present:
        raise ModelLoadError(f"there is no device {asked!r} here", hint="--device auto falls back to the CPU")
    return asked, []


def _is_there(name: str) -> bool:
    import torch

    return bool(torch.cuda.is_available() if name == "cuda" else torch.backends.mps.is_available())
