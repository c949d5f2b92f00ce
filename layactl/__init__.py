"""layactl: convert, run and check typed-decision models of the Laya family on a CPU.

>>> import layactl
>>> model = layactl.load("laya-f16.gguf")                                          # doctest: +SKIP
>>> model.decide("Billed twice, please refund", {"refund": {"type": "noul", "instructions": "Asks for money back?"}})
...                                                                                # doctest: +SKIP

Importing the package costs nothing: numpy and torch load with the first model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layactl.engine.model import Model

__version__ = "0.1.0"
__all__ = ["Model", "__version__", "load"]


def load(
    path: str | Path,
    *,
    spec: str | Path | None = None,
    kernels: str | None = None,
    plan: str | None = None,
    threads: int | None = None,
    outtype: str = "f16",
    cache_dir: str | Path | None = None,
    max_len: int | None = None,
    device: str = "cpu",
) -> Model:
    """Load a model.

    path: a GGUF file, or a checkpoint folder, which is converted once into the cache and loaded from there.
    spec: a decision.spec file that replaces the model's own as a whole.
    kernels: how products are computed, instead of what the spec says ("auto"): "onednn" (exact float32, what "auto"
    takes where it works) or "reference" (plain torch).
    plan: "sequential" or "packed", instead of the spec's; the router is always sequential.
    threads: CPU threads of the forward pass, for the whole process (torch has one pool); default: torch's own.
    outtype, cache_dir: for a folder: weight type of its conversion ("f16" or "f32") and where conversions are kept.
    device: "cpu", "cuda" or "mps" (the reference kernels on a device of torch, which must be there), or "auto".
    max_len: for a file that stores none (the llama.cpp dialect): tokens of a sequence; default: its context length.

    Returns a `Model`; its methods may be called from several threads at once.
    Raises GgufError (damaged or foreign file), SpecError, ModelLoadError (a file this version cannot run), and for a
    folder CheckpointError and OutputError.
    """
    from layactl.convert.resolve import resolve_model
    from layactl.engine.model import Model

    resolved = resolve_model(Path(path), outtype=outtype, cache_dir=Path(cache_dir) if cache_dir else None)
    return Model.from_gguf(
        resolved.file,
        name=resolved.name,
        threads=threads,
        spec_file=Path(spec) if spec else None,
        kernels=kernels,
        max_len=max_len,
        plan=plan,
        device=device,
    )


def __getattr__(name: str) -> object:
    if name == "Model":
        from layactl.engine.model import Model

        return Model
    raise AttributeError(f"module 'layactl' has no attribute {name!r}")
