"""One checkpoint folder -> one GGUF file of the `laya` dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from layactl.checkpoint.folder import TOKENIZER_JSON, Checkpoint, read_checkpoint
from layactl.checkpoint.safetensors_file import StoredTensor
from layactl.convert.laya_keys import add_laya_keys
from layactl.convert.metadata import read_metadata
from layactl.convert.recipe import RECIPES
from layactl.convert.tensor_stream import Fidelity, plan_tensor
from layactl.core.tensor_table import TensorSpec, tensor_specs
from layactl.core.tokenizer import Tokenizer, from_huggingface_json
from layactl.core.tokenizer_probe import probe_texts
from layactl.durable import check_target, replacing
from layactl.errors import CheckpointError, OutputError
from layactl.gguf_file import names
from layactl.gguf_file.writer import TensorPlan, write_gguf

PROBE_TEXTS = 2000


@dataclass(frozen=True)
class Conversion:
    """What a conversion did. nbytes: size of the file."""

    path: Path
    source_sha256: str
    tensors: int
    parameters: int
    nbytes: int
    fidelity: Fidelity

    def notes(self) -> list[str]:
        """What the user should know about the file."""
        size = f"{self.tensors} tensors, {self.parameters:,} parameters, {self.nbytes:,} bytes"
        return [*self.fidelity.notes(self.tensors), size]


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

    outtype: "f32", "f16", "bf16" or "q8_0", for 2-D weights; 1-D tensors and norms are float32 always.
    embed_tokenizer: carry tokenizer.json whole, for tokenizers outside the two families.
    progress: called with (bytes written, bytes in all).

    The same folder gives the same bytes every time. Raises CheckpointError, OutputError.
    """
    fidelity = Fidelity(RECIPES[outtype])
    check_target(out)
    checkpoint = read_checkpoint(root, embed_tokenizer=embed_tokenizer)
    _refuse_own_input(checkpoint, out)
    prove_tokenizer(checkpoint)
    parameters = sum(tensor.size for tensor in checkpoint.tensors.values())
    source_sha256 = checkpoint.source_sha256()
    metadata = read_metadata(root, model_name, parameters)
    plans = [_plan(spec, checkpoint.tensors[spec.checkpoint], fidelity) for spec in tensor_specs(checkpoint.shape)]
    total, done = sum(plan.nbytes for plan in plans), 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    with replacing(out) as temporary:
        write_gguf(
            temporary,
            names.LAYA_ARCHITECTURE,
            lambda writer: add_laya_keys(writer, checkpoint, metadata, fidelity.recipe.file_type, source_sha256),
            plans,
            advance,
        )
        nbytes = temporary.stat().st_size
    return Conversion(out, source_sha256, len(plans), parameters, nbytes, fidelity)


def prove_tokenizer(checkpoint: Checkpoint, count: int = PROBE_TEXTS) -> None:
    """The tokenizer that the GGUF will rebuild gives the ids of tokenizer.json, or the checkpoint is refused."""
    where = str(checkpoint.root / TOKENIZER_JSON)
    texts = list(probe_texts(count, [token.content for token in checkpoint.tokenizer.added]))
    try:
        # One after the other: a vocabulary of 256,000 takes 200 MB as a tokenizer.
        original = from_huggingface_json(checkpoint.texts[TOKENIZER_JSON].decode("utf-8"))
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
        checkpoint.root / name for name in checkpoint.texts
    }
    if out.exists() and any(out.samefile(path) for path in inputs):
        raise OutputError("is one of the checkpoint's own files", where=str(out))


def _plan(spec: TensorSpec, tensor: StoredTensor, fidelity: Fidelity) -> TensorPlan:
    def refuse(message: str, hint: str | None) -> CheckpointError:
        return CheckpointError(message, where=str(tensor.path), hint=hint)

    return plan_tensor(spec.gguf, spec.shape, tensor.floats, fidelity, refuse)
