"""What both dialects share when a GGUF becomes a model: the result, its weights, and the parts read alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from layactl.core.calibration import Calibration, reference_calibration
from layactl.core.model_shape import MIN_MAX_LEN, EncoderShape, ModelShape, shape_problem
from layactl.core.tensor_table import UNUSED_TENSORS, TensorSpec
from layactl.core.tokenizer import AddedToken, SpecialIds, TokenizerData
from layactl.core.weights import FloatArray
from layactl.errors import UsageError
from layactl.gguf_file import names
from layactl.gguf_file.reader import GgufFile

QUESTION_TYPES = ("choice", "score", "noul")


@dataclass(frozen=True)
class ModelFile:
    """Everything a model is made of, from one file.

    dialect: "laya" or "llama.cpp"; notes: what the user should know about what the file does not hold.
    """

    file: GgufFile
    dialect: str
    shape: ModelShape
    tokenizer: TokenizerData
    calibration: Calibration
    weights: MappedWeights
    notes: tuple[str, ...] = ()


class MappedWeights:
    """Implements `core.weights.Weights` over a mapped file that holds the given tensors, and no others."""

    def __init__(self, file: GgufFile, specs: Iterable[TensorSpec]) -> None:
        """Raises GgufError for a tensor that is missing, unknown, or of another shape."""
        self._file = file
        self._names = {}
        for spec in specs:
            tensor = file.tensors.get(spec.gguf)
            if tensor is None:
                raise file.error("tensor is missing", spec.gguf)
            # gguf keeps or drops dimensions of 1 (scorer.3.weight is (1, d) here, (d,) elsewhere).
            if _squeezed(tensor.shape) != _squeezed(spec.shape):
                raise file.error(f"tensor has shape {tensor.shape}, not {spec.shape}", spec.gguf)
            self._names[spec.checkpoint] = spec.gguf
        if unknown := sorted(set(file.tensors) - set(self._names.values()) - set(UNUSED_TENSORS)):
            raise file.error("tensor has no place in this model", unknown[0])

    def __getitem__(self, name: str) -> FloatArray:
        values = self._file.floats(self._names[name])
        # Its values are the caller's now; the mapped ones are read once.
        self._file.give_back(self._names[name])
        return values

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor in the file."""
        return self._file.tensors[self._names[name]].nbytes

    def rows(self, name: str, ids: Sequence[int]) -> FloatArray:
        return self._file.floats(self._names[name], ids)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def encoder_shape(
    file: GgufFile, key: Callable[[str], str], *, layers: int, ffn: int, global_every: int | None = None
) -> EncoderShape:
    """The encoder's keys, which differ between the dialects by a prefix.

    key: a key of the laya dialect -> the same of this file; global_every: what an absent pattern key stands for
    (None: it must be there). Raises GgufError naming the key.
    """
    for name, known in ((names.HIDDEN_ACTIVATION, "gelu"), (names.ROPE_SCALING_TYPE, "none")):
        if (found := file.text(key(name), known)) != known:
            raise file.error(f'is {found!r:.60}; only "{known}" is known', key(name))
    return EncoderShape(
        vocab_size=file.integer(key(names.VOCAB_SIZE)),
        hidden=file.integer(key(names.EMBEDDING_LENGTH)),
        layers=layers,
        heads=file.integer(key(names.HEAD_COUNT)),
        ffn=ffn,
        context_length=file.integer(key(names.CONTEXT_LENGTH)),
        norm_eps=file.number(key(names.NORM_EPS)),
        global_theta=file.number(key(names.ROPE_FREQ_BASE)),
        local_theta=file.number(key(names.ROPE_FREQ_BASE_SWA)),
        local_attention=file.integer(key(names.SLIDING_WINDOW)),
        global_every=file.integer(key(names.SLIDING_WINDOW_PATTERN), global_every),
    )


def check_shape(file: GgufFile, shape: ModelShape) -> ModelShape:
    """The shape, or the GgufError of the first thing about it that cannot be run."""
    if problem := shape_problem(shape):
        raise file.error(problem[1])
    return shape


def choose_max_len(chosen: int | None, stored: int | None, default: int, context_length: int) -> int:
    """The sequence limit: what the file stores, else what the caller chooses, else the default.

    Raises UsageError for a choice that the file has made already or that the encoder has no positions for.
    """
    if chosen is None:
        return default if stored is None else stored
    if stored is not None:
        raise UsageError(f"the file stores a limit of its own, {stored} tokens", where="max_len")
    if not MIN_MAX_LEN <= chosen <= context_length:
        raise UsageError(f"must be between {MIN_MAX_LEN} and {context_length}, not {chosen}", where="max_len")
    return chosen


def shipped_calibration(
    file: GgufFile, temperatures: Sequence[float], by_options: Mapping[str, float], version: str
) -> Calibration:
    """The calibration in a file's own keys; by_options: named as a checkpoint names them, "choice:3-5".

    Raises GgufError for a temperature that is not a finite number.
    """
    if bad := [t for t in (*temperatures, *by_options.values()) if not math.isfinite(t)]:
        raise file.error(f"temperature {bad[0]} is not a finite number", version.partition(":")[2])
    return reference_calibration(temperatures, by_options, QUESTION_TYPES, version)


def read_vocabulary(
    file: GgufFile, vocab_size: int, added_token: Callable[[int, str, bool], AddedToken]
) -> tuple[list[str | None], list[AddedToken]]:
    """The pieces by id (None for fillers) and the added tokens.

    added_token: makes one of its id, its text in the file, and whether it is a control token. Raises GgufError.
    """
    tokens, types = file.texts(names.TOKENS), file.integers(names.TOKEN_TYPES)
    if len(tokens) != len(types):
        raise file.error(f"{len(tokens)} tokens but {len(types)} types", names.TOKEN_TYPES)
    if len(tokens) > vocab_size:
        raise file.error(f"{len(tokens)} tokens but token_embd has {vocab_size} rows", names.TOKENS)
    pieces: list[str | None] = []
    added: list[AddedToken] = []
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind == names.TYPE_UNUSED:
            pieces.append(None)
        elif kind in (names.TYPE_NORMAL, names.TYPE_BYTE):
            pieces.append(token)
        elif kind in (names.TYPE_CONTROL, names.TYPE_USER_DEFINED):
            added.append(added_token(token_id, token, kind == names.TYPE_CONTROL))
            pieces.append(added[-1].content)
        else:
            raise file.error(f"token {token_id} has unknown type {kind}", names.TOKEN_TYPES)
    return pieces, added


def read_special_ids(
    file: GgufFile, pieces: Sequence[str | None], defaults: Mapping[str, int] | None = None
) -> SpecialIds:
    """Ids of the structural tokens. defaults: ids for keys that may be absent. Raises GgufError naming the key."""

    def named(key: str) -> int:
        token_id = file.integer(key, (defaults or {}).get(key))
        if token_id >= len(pieces) or pieces[token_id] is None:
            raise file.error(f"id {token_id} is outside the vocabulary of {len(pieces)}", key)
        return token_id

    def optional(key: str) -> int | None:
        return named(key) if key in file.keys else None

    return SpecialIds(
        cls=named(names.BOS_TOKEN_ID),
        sep=named(names.SEP_TOKEN_ID),
        mask=named(names.MASK_TOKEN_ID),
        pad=optional(names.PAD_TOKEN_ID),
        unk=optional(names.UNK_TOKEN_ID),
    )
