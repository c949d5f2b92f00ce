"""One checkpoint folder -> one GGUF file of the `laya` dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from layactl.checkpoint.folder import TOKENIZER_JSON, Checkpoint, read_checkpoint
from layactl.checkpoint.safetensors_file import StoredTensor
from layactl.convert.laya_keys import add_laya_keys
from layactl.convert.metadata import read_metadata
from layactl.core.tensor_table import TensorSpec, tensor_specs
from layactl.core.tokenizer import Tokenizer, from_huggingface_json
from layactl.core.tokenizer_probe import differences, probe_texts
from layactl.durable import check_target, replacing
from layactl.errors import CheckpointError, OutputError
from layactl.gguf_file import names
from layactl.gguf_file.writer import SLICE_BYTES, TensorPlan, write_gguf

OUTTYPES: dict[str, tuple[np.dtype[Any], gguf.LlamaFileType]] = {
    "f32": (np.dtype(np.float32), gguf.LlamaFileType.ALL_F32),
    "f16": (np.dtype(np.float16), gguf.LlamaFileType.MOSTLY_F16),
}
PROBE_TEXTS = 2000


@dataclass
class Conversion:
    """What a conversion did. inexact: tensors whose values the out type had to round, with the largest error."""

    path: Path
    source_sha256: str
    tensors: int
    parameters: int
    nbytes: int
    inexact: dict[str, float]
    nonfinite: list[str]


def convert(
    root: Path,
    out: Path,
    *,
    outtype: str = "f16",
    model_name: str | None = None,
    embed_tokenizer: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Conversion:
    """Convert a checkpoint folder; the file appears under its name only when it is whole.

    outtype: "f32" or "f16", for 2-D weights; 1-D tensors and norms are float32 always.
    embed_tokenizer: carry tokenizer.json whole, for tokenizers outside the two families.
    progress: called with (bytes written, bytes in all).

    The same folder gives the same bytes every time. Raises CheckpointError, OutputError.
    """
    dtype, file_type = OUTTYPES[outtype]
    check_target(out)
    checkpoint = read_checkpoint(root, embed_tokenizer=embed_tokenizer)
    _refuse_own_input(checkpoint, out)
    prove_tokenizer(checkpoint)
    parameters = sum(tensor.values.size for tensor in checkpoint.tensors.values())
    result = Conversion(out, checkpoint.source_sha256(), len(checkpoint.tensors), parameters, 0, {}, [])
    metadata = read_metadata(root, model_name, parameters)
    plans = [_plan(spec, checkpoint.tensors[spec.checkpoint], dtype, result) for spec in tensor_specs(checkpoint.shape)]
    total, done = sum(plan.nbytes for plan in plans), 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    with replacing(out) as temporary:
        write_gguf(
            temporary,
            names.LAYA_ARCHITECTURE,
            lambda writer: add_laya_keys(writer, checkpoint, metadata, file_type, result.source_sha256),
            plans,
            advance,
        )
        result.nbytes = temporary.stat().st_size
    return result


def prove_tokenizer(checkpoint: Checkpoint, count: int = PROBE_TEXTS) -> None:
    """The tokenizer that the GGUF will rebuild gives the ids of tokenizer.json, or the checkpoint is refused."""
    where = str(checkpoint.root / TOKENIZER_JSON)
    try:
        original = from_huggingface_json(checkpoint.texts[TOKENIZER_JSON].decode("utf-8"))
        rebuilt = Tokenizer(checkpoint.tokenizer)
    except ValueError as error:
        raise CheckpointError(f"the tokenizer cannot be built: {error}", where=where) from None
    added = [token.content for token in checkpoint.tokenizer.added]
    text = next(differences(original, rebuilt, probe_texts(count, added)), None)
    if text is not None:
        raise CheckpointError(
            f"the rebuilt tokenizer reads {text!r:.80} differently",
            where=where,
            hint="--embed-tokenizer carries tokenizer.json whole instead of rebuilding it",
        )


def _refuse_own_input(checkpoint: Checkpoint, out: Path) -> None:
    inputs = {tensor.path for tensor in checkpoint.tensors.values()} | {
        checkpoint.root / name for name in checkpoint.texts
    }
    if out.exists() and any(out.samefile(path) for path in inputs):
        raise OutputError("is one of the checkpoint's own files", where=str(out))


def _plan(spec: TensorSpec, tensor: StoredTensor, dtype: np.dtype[Any], result: Conversion) -> TensorPlan:
    if len(spec.shape) == 1 or spec.gguf.endswith("_norm.weight") or not spec.gguf.endswith(".weight"):
        dtype = np.dtype(np.float32)
    return TensorPlan(spec.gguf, spec.shape, dtype, lambda: _slices(tensor, dtype, result))


def _slices(tensor: StoredTensor, dtype: np.dtype[Any], result: Conversion) -> Iterator[npt.NDArray[Any]]:
    """The tensor in `dtype`, a few rows at a time, noting on the way what does not survive."""
    row_bytes = 4 * int(np.prod(tensor.shape[1:], dtype=np.int64))
    step = max(1, SLICE_BYTES // max(1, row_bytes))
    for start in range(0, tensor.shape[0], step):
        exact = tensor.floats(start, start + step)
        finite = np.isfinite(exact)
        if not finite.all() and tensor.name not in result.nonfinite:
            result.nonfinite.append(tensor.name)
        with np.errstate(over="ignore"):
            stored = exact.astype(dtype)
        if dtype != np.float32:
            back = stored.astype(np.float32)
            if not np.isfinite(back[finite]).all():
                raise CheckpointError(
                    f"tensor {tensor.name} holds values beyond the range of {dtype.name}",
                    where=str(tensor.path),
                    hint="use --outtype f32",
                )
            error = float(np.abs(back[finite] - exact[finite]).max(initial=0.0))
            if error:
                result.inexact[tensor.name] = max(error, result.inexact.get(tensor.name, 0.0))
        yield stored
