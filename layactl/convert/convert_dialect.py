"""A GGUF of the `laya` dialect -> the same model in the `llama.cpp` dialect.

Not the other way round: that dialect holds neither the act head nor max_len, which the laya dialect must have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf

from layactl.convert.llama_cpp import check_writable, llama_cpp_notes, write_llama_cpp
from layactl.convert.llama_cpp_keys import LlamaCppModel
from layactl.convert.recipe import RECIPES
from layactl.convert.tensor_stream import Fidelity, plan_tensor
from layactl.core.tensor_table import TensorSpec, tensor_specs
from layactl.durable import check_target, replacing
from layactl.errors import GgufError, LayactlError, OutputError
from layactl.gguf_file import names
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.laya_dialect import shipped_temperatures
from layactl.gguf_file.llama_cpp_dialect import DIALECT
from layactl.gguf_file.llama_cpp_names import TYPE_EMBEDDINGS, llama_cpp_specs, without_act_head
from layactl.gguf_file.reader import GgufFile
from layactl.gguf_file.rewrite import copied
from layactl.gguf_file.writer import TensorPlan

# general.* keys that say something about the new file rather than about the model.
_OWN_KEYS = (names.ARCHITECTURE, names.ALIGNMENT, names.FILE_TYPE, names.QUANTIZATION_VERSION)
# Keys beside the dialects' own, which every reader of layactl looks for.
_CARRIED = (
    names.DECISION_SPEC,
    names.SPEC_VERSION,
    names.SPEC_LAYOUT,
    names.SPEC_MODEL_ID,
    names.SPEC_MODEL_VERSION,
    names.RECIPE,
)


def convert_dialect(
    source: Path, out: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[str]:
    """Write `out`; returns what the user should know about it, first of all what it does not hold.

    The bytes are those of a conversion from the checkpoint, as far as the source holds what that reads. Weights keep
    their types. Raises GgufError (also for a source in the llama.cpp dialect) and OutputError.
    """
    check_target(out)
    if out.exists() and out.samefile(source):
        raise OutputError("is the input itself", where=str(out))
    file = GgufFile(source)
    loaded = read_model(file)
    if loaded.dialect == DIALECT:
        raise GgufError(
            "is in the llama.cpp dialect already, and holds neither the act head nor the max_len that the laya dialect "
            "needs",
            where=str(source),
            hint="for a laya file convert the checkpoint: layactl convert CHECKPOINT -o OUT.gguf",
        )

    def refuse(message: str, hint: str | None = None) -> LayactlError:
        return GgufError(message, where=str(source), hint=hint)

    check_writable(loaded.shape, loaded.tokenizer, refuse)
    shape = without_act_head(loaded.shape)
    stored = {spec.checkpoint: spec.gguf for spec in tensor_specs(shape)}
    plans = [_plan(file, stored[spec.checkpoint], spec, refuse) for spec in llama_cpp_specs(shape)]
    temperatures, by_options = shipped_temperatures(file)
    model = LlamaCppModel(
        add_general=lambda writer: _copy_general(file, writer, sum(math.prod(plan.shape) for plan in plans)),
        file_type=file.integer(names.FILE_TYPE),
        shape=shape,
        tokenizer=loaded.tokenizer,
        temperatures=temperatures,
        by_options=by_options,
        more={key: file.keys[key].value for key in _CARRIED if key in file.keys},
    )
    total, done = sum(plan.nbytes for plan in plans), 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    with replacing(out) as temporary:
        write_llama_cpp(temporary, model, plans, advance, refuse)
    return list(llama_cpp_notes(model, loaded.shape.limits.max_len))


def _plan(
    file: GgufFile, stored: str, spec: TensorSpec, refuse: Callable[[str, str | None], LayactlError]
) -> TensorPlan:
    plan = replace(copied(file, stored), name=spec.gguf, shape=spec.shape)
    if spec.gguf != TYPE_EMBEDDINGS or plan.kind == gguf.GGMLQuantizationType.F32:
        return plan
    exact = Fidelity(RECIPES["f32"])
    return plan_tensor(
        spec.gguf, spec.shape, lambda start, stop: file.floats(stored, range(start, stop)), exact, refuse
    )


def _copy_general(file: GgufFile, writer: gguf.GGUFWriter, parameters: int) -> None:
    """general.* as it is; but a size label that counts the act head is made anew."""
    whole = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
    for key, value in file.keys.items():
        if not key.startswith("general.") or key in _OWN_KEYS:
            continue
        plain = value.value if value.element is None else list(value.value)
        if key == names.SIZE_LABEL and plain == gguf.size_label(whole, whole, 0, 0):
            plain = gguf.size_label(parameters, parameters, 0, 0)
        element = None if value.element is None else gguf.GGUFValueType(value.element)
        writer.add_key_value(key, plain, gguf.GGUFValueType(value.kind), element)
