"""The tokenizer of a GGUF on its own, and its comparison with a checkpoint's tokenizer.json."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from layactl.checkpoint.folder import MAX_TOKENIZER_BYTES, TOKENIZER_JSON
from layactl.checkpoint.json_files import read_bytes
from layactl.core.tokenizer import Tokenizer, from_huggingface_json
from layactl.core.tokenizer_probe import differences, piece_texts, probe_texts
from layactl.errors import CheckpointError, InputError
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.reader import GgufFile


def load_tokenizer(file: GgufFile, max_len: int | None = None) -> Tokenizer:
    """max_len: as for loading the model, and without influence on the tokens. Raises GgufError, UsageError."""
    try:
        return Tokenizer(read_model(file, max_len).tokenizer)
    except ValueError as error:
        raise file.error(f"the tokenizer cannot be built: {error}") from None


_MAX_PIECES = 300_000


def verify_tokenizer(
    file: GgufFile, checkpoint: Path, texts: Path | None, count: int, max_len: int | None = None
) -> tuple[int, list[str]]:
    """Compare on `count` probe texts, the text of every piece and the lines of `texts`: (texts compared, those read
    differently).
    """
    data = read_model(file, max_len).tokenizer
    rebuilt = load_tokenizer(file, max_len)
    path = checkpoint / TOKENIZER_JSON
    try:
        original = from_huggingface_json(read_bytes(path, MAX_TOKENIZER_BYTES))
    except ValueError as error:
        raise CheckpointError(f"cannot be read: {error}", where=str(path)) from None
    compared = 0

    def counted() -> Iterator[str]:
        nonlocal compared
        own = _lines(texts) if texts else iter(())
        probes = probe_texts(count, [token.content for token in data.added])
        for text in itertools.chain(own, probes, piece_texts(original, _MAX_PIECES)):
            compared += 1
            yield text

    different = list(differences(original, rebuilt, counted()))
    return compared, different


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", newline="\n") as handle:
            for line in handle:
                yield line.removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None
