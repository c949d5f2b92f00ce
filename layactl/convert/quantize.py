"""A GGUF of the `laya` dialect -> the same model with quantized weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf

from layactl.convert.recipe import RECIPES
from layactl.convert.tensor_stream import Fidelity, plan_tensor
from layactl.durable import check_target, replacing
from layactl.errors import GgufError, OutputError
from layactl.gguf_file import names
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.reader import GgufFile
from layactl.gguf_file.rewrite import copied, rewrite_gguf
from layactl.gguf_file.writer import TensorPlan


def quantize(
    source: Path, out: Path, recipe: str, progress: Callable[[int, int], None] = lambda done, total: None
) -> int:
    """Write `out` with the tensors of `source` in the types of a recipe; returns its size in bytes.

    The recipe's name is recorded as `layactl.recipe`. Raises GgufError (also for a file that is quantized already:
    quantizing twice adds up the errors) and OutputError.
    """
    check_target(out)
    if out.exists() and out.samefile(source):
        raise OutputError("is the input itself", where=str(out))
    file = GgufFile(source)
    read_model(file)
    if quantized := [tensor.name for tensor in file.tensors.values() if tensor.type_name == "Q8_0"]:
        raise file.error("is quantized already", quantized[0])
    fidelity = Fidelity(RECIPES[recipe])
    plans = [_plan(file, name, fidelity) for name in file.tensors]
    total, done = sum(plan.nbytes for plan in plans), 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    changes: dict[str, str | int | None] = {
        names.FILE_TYPE: int(fidelity.recipe.file_type),
        names.QUANTIZATION_VERSION: gguf.GGML_QUANT_VERSION,
        names.RECIPE: recipe,
    }
    with replacing(out) as temporary:
        rewrite_gguf(file, temporary, changes, plans, advance)
        return temporary.stat().st_size


def _plan(file: GgufFile, name: str, fidelity: Fidelity) -> TensorPlan:
    tensor = file.tensors[name]
    if fidelity.recipe.type_of(name, tensor.shape) == tensor.type_code:
        return copied(file, name)

    def refuse(message: str, hint: str | None) -> GgufError:
        return GgufError(message, where=str(file.path), hint=hint)

    return plan_tensor(name, tensor.shape, lambda start, stop: file.floats(name, range(start, stop)), fidelity, refuse)
