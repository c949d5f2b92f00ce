"""A checkpoint folder, read and checked as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from layactl.checkpoint.config import AgentConfig, read_agent_config, read_model_shape
from layactl.checkpoint.digest import RangeDigests
from layactl.checkpoint.json_files import MAX_JSON_BYTES, parse_json_object, read_bytes
from layactl.checkpoint.refusals import (
    refuse_encoder_keys,
    refuse_foreign_files,
    refuse_special_tokens_map,
    refuse_tokenizer_class,
)
from layactl.checkpoint.safetensors_file import StoredTensor
from layactl.checkpoint.tokenizer_files import read_tokenizer
from layactl.checkpoint.weights import read_weights
from layactl.core.model_shape import ModelShape
from layactl.core.tokenizer import TokenizerData
from layactl.errors import CheckpointError

AGENT_CONFIG = "rl_agent_config.json"
ENCODER_CONFIG = "encoder/config.json"
TOKENIZER_JSON = "tokenizer/tokenizer.json"
TOKENIZER_CONFIG = "tokenizer/tokenizer_config.json"
# The largest published tokenizer.json is 34 MB.
MAX_TOKENIZER_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Checkpoint:
    """tensors: by checkpoint name; texts: the bytes of the JSON files that were read, by relative path."""

    root: Path
    shape: ModelShape
    agent: AgentConfig
    tokenizer: TokenizerData
    tensors: dict[str, StoredTensor]
    texts: dict[str, bytes]

    @contextmanager
    def hashing(self) -> Iterator[Callable[[], str]]:
        """Hash the checkpoint beside what runs inside; the value returns the digest (see source_sha256)."""
        names = sorted(self.tensors)
        digests = RangeDigests([self.tensors[name].range for name in names])

        def result() -> str:
            digest = hashlib.sha256(b"layactl source 2\n")
            for name, text in sorted(self.texts.items()):
                digest.update(f"file {name} {hashlib.sha256(text).hexdigest()}\n".encode())
            try:
                hashed = digests.result()
            except OSError as error:
                raise CheckpointError(f"the weights cannot be read: {error}", where=str(self.root)) from None
            for name, part in zip(names, hashed, strict=True):
                tensor = self.tensors[name]
                shape = "x".join(map(str, tensor.shape))
                digest.update(f"tensor {name} {tensor.dtype} {shape} {part}\n".encode())
            return digest.hexdigest()

        try:
            yield result
        except BaseException:
            digests.cancel()
            raise

    def source_sha256(self) -> str:
        """A digest of everything the model is made of: tensor names, types, shapes and bytes, and the JSON files.

        The split into shards does not enter it, so a re-sharded checkpoint keeps its digest.
        """
        with self.hashing() as digest:
            return digest()


def read_checkpoint(root: Path, *, embed_tokenizer: bool = False) -> Checkpoint:
    """Read a folder in the published layout.

    embed_tokenizer: carry tokenizer.json whole instead of demanding one of the two families.
    Raises CheckpointError naming the file and the field or tensor.
    """
    if not root.is_dir():
        message = "is a file, not a checkpoint folder" if root.exists() else "no such folder"
        raise CheckpointError(message, where=str(root))
    if not (root / AGENT_CONFIG).is_file():
        raise CheckpointError(
            f"is not a Laya checkpoint: {AGENT_CONFIG} is missing",
            where=str(root),
            hint=f"a checkpoint holds {AGENT_CONFIG}, {ENCODER_CONFIG}, tokenizer/ and model.safetensors",
        )
    refuse_foreign_files(root)
    names = (AGENT_CONFIG, ENCODER_CONFIG, TOKENIZER_JSON, TOKENIZER_CONFIG)
    limits = {TOKENIZER_JSON: MAX_TOKENIZER_BYTES}
    texts = {name: read_bytes(root / name, limits.get(name, MAX_JSON_BYTES)) for name in names}
    files = {name: parse_json_object(root / name, text) for name, text in texts.items()}
    agent = read_agent_config(files[AGENT_CONFIG])
    refuse_encoder_keys(files[ENCODER_CONFIG])
    shape = read_model_shape(files[ENCODER_CONFIG], agent)
    # Before the tokenizer: the embedding's rows are what bounds a vocabulary.
    tensors = read_weights(root, shape)
    refuse_tokenizer_class(root, files[TOKENIZER_CONFIG])
    refuse_special_tokens_map(root, files[TOKENIZER_CONFIG], files[TOKENIZER_JSON])
    tokenizer = read_tokenizer(
        files[TOKENIZER_JSON],
        files[TOKENIZER_CONFIG],
        shape.encoder.vocab_size,
        embed=texts[TOKENIZER_JSON].decode("utf-8") if embed_tokenizer else None,
    )
    return Checkpoint(root, shape, agent, tokenizer, tensors, texts)
