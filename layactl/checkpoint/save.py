"""A checkpoint folder, written: new weights and temperatures in the place of another checkpoint's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layactl.checkpoint.folder import AGENT_CONFIG, Checkpoint
from layactl.checkpoint.weights import SINGLE
from layactl.core.tensor_table import UNUSED_TENSORS
from layactl.core.weights import FloatArray
from layactl.durable import replacing, sync
from layactl.errors import OutputError

if TYPE_CHECKING:
    from torch import Tensor

# Files that say how a tokenizer is to be read, beside the two that every checkpoint has.
_OPTIONAL = ("tokenizer/special_tokens_map.json",)


@dataclass(frozen=True)
class Saved:
    """changed: weights that the stored type does not hold exactly, of `total`."""

    changed: int
    total: int


def save_checkpoint(
    root: Path, base: Checkpoint, weights: Mapping[str, FloatArray], outtype: str | None = None
) -> Saved:
    """Write a folder that differs from `base` in its weights, and has no temperatures of its own (all are 1).

    weights: float32, by checkpoint name; a tensor of the base that is not among them keeps its bytes. outtype: "f32",
    "f16" or "bf16"; None: each tensor's type in the base. The folder appears whole or not at all.
    Raises OutputError: it exists, cannot be written, or a weight is beyond the type's range.
    """
    if root.exists():
        raise OutputError("exists already", where=str(root))
    temporary = root.with_name(f".{root.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        saved = _write(temporary, base, weights, outtype)
        temporary.rename(root)
        sync(root.parent)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", where=str(root)) from None
    finally:
        with suppress(OSError):
            shutil.rmtree(temporary, ignore_errors=True)
    return saved


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file with the permissions that a new file has, which the package would narrow."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, dict(metadata))
    except SafetensorError as error:
        raise OutputError(f"cannot be written: {error}", where=str(path.parent)) from None
    path.chmod(mode)


def set_temperatures(root: Path, temperature: Sequence[float], by_options: Mapping[str, float]) -> None:
    """Put fitted temperatures into a folder's rl_agent_config.json, where the reference reads them.

    temperature: of choice, score and noul; by_options: by "<type>:<option count>", as in "choice:3-5".
    """
    path = root / AGENT_CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    with replacing(path) as new:
        new.write_text(_agent_text(config, temperature, by_options), encoding="utf-8")


def _agent_text(config: dict[str, Any], temperature: Sequence[float], by_options: Mapping[str, float]) -> str:
    values = config | {"temperature": list(temperature), "temperature_by_options": dict(by_options)}
    return json.dumps(values, ensure_ascii=False, indent=2) + "\n"


def _write(root: Path, base: Checkpoint, weights: Mapping[str, FloatArray], outtype: str | None) -> Saved:
    for name, text in base.texts.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(text)
    for name in _OPTIONAL:
        if (base.root / name).is_file():
            (root / name).write_bytes((base.root / name).read_bytes())
    config = json.loads(base.texts[AGENT_CONFIG])
    (root / AGENT_CONFIG).write_text(_agent_text(config, (1.0, 1.0, 1.0), {}), encoding="utf-8")
    saved = _write_weights(root / SINGLE, base, weights, outtype)
    for path in root.rglob("*"):
        sync(path)
    return saved


def _write_weights(path: Path, base: Checkpoint, weights: Mapping[str, FloatArray], outtype: str | None) -> Saved:
    import torch

    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    tensors, changed, total = {}, 0, 0
    for name, tensor in base.tensors.items():
        if name not in weights:
            stored = tensor.stored(0, tensor.shape[0])
            tensors[name] = torch.from_numpy(stored).view(types[tensor.dtype])
            continue
        values = torch.from_numpy(weights[name])
        tensors[name] = values.to(types[outtype.upper() if outtype else tensor.dtype])
        if not bool(tensors[name].isfinite().all()):
            raise OutputError(
                f"{name} holds a weight that {str(tensors[name].dtype).removeprefix('torch.')} cannot hold",
                where=str(base.root),
                hint="--outtype f32 keeps it",
            )
        changed += int((tensors[name].float() != values).sum())
        total += values.numel()
    tensors |= {name: torch.ones(shape) for name, shape in UNUSED_TENSORS.items()}
    write_tensors(path, tensors, {"format": "pt"})
    return Saved(changed, total)
