"""One checkpoint folder -> one GGUF file."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gguf

from layactl.checkpoint.folder import ENCODER_CONFIG, TOKENIZER_JSON, Checkpoint, read_checkpoint
from layactl.checkpoint.json_files import parse_json_object
from layactl.checkpoint.safetensors_file import StoredTensor
from layactl.checkpoint.weights import INDEX
from layactl.convert.laya_keys import add_laya_keys
from layactl.convert.llama_cpp import check_writable, llama_cpp_notes, write_llama_cpp
from layactl.convert.llama_cpp_keys import LlamaCppModel
from layactl.convert.metadata import README, read_metadata
from layactl.convert.recipe import RECIPES
from layactl.convert.tensor_stream import Fidelity, StoredRows, plan_tensor
from layactl.core.tensor_table import TensorSpec, tensor_specs
from layactl.core.tokenizer import Tokenizer, from_huggingface_json
from layactl.core.tokenizer_probe import piece_texts, probe_texts
from layactl.durable import check_target, replacing
from layactl.errors import CheckpointError, OutputError
from layactl.gguf_file import laya_dialect, llama_cpp_dialect, names
from layactl.gguf_file.llama_cpp_names import llama_cpp_specs, without_act_head
from layactl.gguf_file.writer import TensorPlan, write_gguf

PROBE_TEXTS = 2000


@dataclass(frozen=True)
class Conversion:
    """What a conversion did. nbytes: size of the file; remarks: what its dialect does not hold."""

    path: Path
    source_sha256: str
    tensors: int
    parameters: int
    nbytes: int
    fidelity: Fidelity
    remarks: tuple[str, ...] = ()

    def notes(self) -> list[str]:
        """What the user should know about the file."""
        size = f"{self.tensors} tensors, {self.parameters:,} parameters, {self.nbytes:,} bytes"
        return [*self.fidelity.notes(self.tensors), *self.remarks, size]


def convert(
    root: Path,
    out: Path,
    *,
    outtype: str = "f16",
    dialect: str = "laya",
    model_name: str | None = None,
    embed_tokenizer: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
    finish: Callable[[Path], None] = lambda path: None,
) -> Conversion:
    """Convert a checkpoint folder; the file appears under its name only when it is whole.

    outtype: "f32", "f16", "bf16" or "q8_0", for 2-D weights; 1-D tensors and norms are float32 always.
    dialect: "laya", or "llama.cpp" for the file that stock llama.cpp loads (without act head and max_len).
    embed_tokenizer: carry tokenizer.json whole, for tokenizers outside the two families ("laya" only).
    progress: called with (bytes written, bytes in all).
    finish: called with the whole file before it takes its name; what it raises leaves nothing behind.

    The same folder gives the same bytes every time. Raises CheckpointError, OutputError.
    """
    fidelity = Fidelity(RECIPES[outtype])
    check_target(out)
    with _without_collector():
        checkpoint = read_checkpoint(root, embed_tokenizer=embed_tokenizer)
    _refuse_own_input(checkpoint, out)
    if dialect == llama_cpp_dialect.DIALECT:
        check_writable(checkpoint.shape, checkpoint.tokenizer, _refusal(checkpoint))
    with checkpoint.hashing() as digest:
        prove_tokenizer(checkpoint)
        source_sha256 = digest()
    specs = list(tensor_specs(checkpoint.shape)) if dialect == laya_dialect.DIALECT else _llama_cpp_specs(checkpoint)
    parameters = sum(checkpoint.tensors[spec.checkpoint].size for spec in specs)
    metadata = read_metadata(root, model_name, parameters)
    plans = [_plan(spec, checkpoint.tensors[spec.checkpoint], fidelity) for spec in specs]
    file_type = fidelity.recipe.file_type
    total, done = sum(plan.nbytes for plan in plans), 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    remarks: tuple[str, ...] = ()
    with replacing(out) as temporary:
        if dialect == laya_dialect.DIALECT:
            write_gguf(
                temporary,
                names.LAYA_ARCHITECTURE,
                lambda writer: add_laya_keys(writer, checkpoint, metadata, file_type, source_sha256),
                plans,
                advance,
            )
        else:
            model = _llama_cpp_model(checkpoint, metadata, file_type)
            write_llama_cpp(temporary, model, plans, advance, _refusal(checkpoint))
            remarks = tuple(llama_cpp_notes(model, checkpoint.shape.limits.max_len))
        finish(temporary)
        nbytes = temporary.stat().st_size
    return Conversion(out, source_sha256, len(plans), parameters, nbytes, fidelity, remarks)


@contextmanager
def _without_collector() -> Iterator[None]:
    """A vocabulary is a million objects and no cycle; looking for some takes a third of the time of reading it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _llama_cpp_specs(checkpoint: Checkpoint) -> list[TensorSpec]:
    """The tensors of the llama.cpp dialect in the stock converter's order: shard by shard, by name."""
    specs = llama_cpp_specs(without_act_head(checkpoint.shape))
    return sorted(specs, key=lambda spec: (checkpoint.tensors[spec.checkpoint].path.name, spec.checkpoint))


def _llama_cpp_model(checkpoint: Checkpoint, metadata: gguf.Metadata, file_type: int) -> LlamaCppModel:
    def add_general(writer: gguf.GGUFWriter) -> None:
        writer.add_type(gguf.GGUFType.MODEL)
        metadata.set_gguf_meta_model(writer)

    config = parse_json_object(checkpoint.root / ENCODER_CONFIG, checkpoint.texts[ENCODER_CONFIG])
    return LlamaCppModel(
        add_general=add_general,
        file_type=file_type,
        shape=without_act_head(checkpoint.shape),
        tokenizer=checkpoint.tokenizer,
        temperatures=checkpoint.agent.temperature,
        by_options=checkpoint.agent.temperature_by_options,
        pooling=config.text("classifier_pooling", ""),
    )


def _refusal(checkpoint: Checkpoint) -> Callable[[str], CheckpointError]:
    return lambda message: CheckpointError(message, where=str(checkpoint.root), hint="--dialect laya holds the model")


def prove_tokenizer(checkpoint: Checkpoint, count: int = PROBE_TEXTS) -> None:
    """The tokenizer that the GGUF will rebuild gives the ids of tokenizer.json, or the checkpoint is refused."""
    where = str(checkpoint.root / TOKENIZER_JSON)
    texts = list(probe_texts(count, [token.content for token in checkpoint.tokenizer.added]))
    try:
        # One after the other: a vocabulary of 256,000 takes 200 MB as a tokenizer.
        original = from_huggingface_json(checkpoint.texts[TOKENIZER_JSON])
        texts += piece_texts(original, count)
        expected = [encoding.ids for encoding in original.encode_batch(texts, add_special_tokens=False)]
        del original
        rebuilt = Tokenizer(checkpoint.tokenizer)
    except ValueError as error:
        raise CheckpointError(f"the tokenizer cannot be built: {error}", where=where) from None
    text = next((text for text, ids in zip(texts, expected, strict=True) if rebuilt.encode(text) != ids), None)
    if text is not None:
        raise CheckpointError(
            f"the rebuilt tokenizer reads {text!r:.80} differently",
            where=where,
            hint="--embed-tokenizer carries tokenizer.json whole instead of rebuilding it",
        )


def _refuse_own_input(checkpoint: Checkpoint, out: Path) -> None:
    inputs = {tensor.path for tensor in checkpoint.tensors.values()} | {
        checkpoint.root / name for name in (*checkpoint.texts, INDEX, README)
    }
    if out.exists() and any(path.exists() and out.samefile(path) for path in inputs):
        raise OutputError("is one of the checkpoint's own files", where=str(out))


def _plan(spec: TensorSpec, tensor: StoredTensor, fidelity: Fidelity) -> TensorPlan:
    def refuse(message: str, hint: str | None) -> CheckpointError:
        return CheckpointError(message, where=str(tensor.path), hint=hint)

    stored = StoredRows(gguf.GGMLQuantizationType[tensor.dtype], tensor.stored)
    return plan_tensor(spec.gguf, spec.shape, tensor.floats, fidelity, refuse, stored)
