"""The `laya` dialect of a GGUF read back: shape, tokenizer data, calibration and weights.

Checks at load are the specification's: a key that the forward pass depends on is required, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layactl.core.calibration import Calibration, reference_calibration
from layactl.core.model_shape import EncoderShape, HeadShape, Limits, ModelShape, shape_problem
from layactl.core.tensor_table import UNUSED_TENSORS, tensor_specs
from layactl.core.tokenizer import (
    BYTELEVEL_BPE,
    EMBEDDED,
    METASPACE,
    METASPACE_BPE,
    AddedToken,
    SpecialIds,
    TokenizerData,
)
from layactl.core.weights import FloatArray
from layactl.errors import GgufError, ModelLoadError
from layactl.gguf_file import names
from layactl.gguf_file.reader import GgufFile

QUESTION_TYPES = ("choice", "score", "noul")
CALIBRATION_VERSION = "gguf:laya.temperature"

# What the fork's loader assumes for keys its first converters did not write.
_DEFAULT_MAX_LEN, _DEFAULT_HEAD_MAX_LEN = 1024, 256
# Special ids of the multilingual vocabulary, for metaspace files that do not name them.
_METASPACE_CLS, _METASPACE_SEP, _METASPACE_MASK = 2, 1, 4


@dataclass(frozen=True)
class ModelFile:
    """Everything a model is made of, from one file."""

    file: GgufFile
    shape: ModelShape
    tokenizer: TokenizerData
    calibration: Calibration
    weights: MappedWeights


class MappedWeights:
    """Implements `core.weights.Weights` over a mapped file."""

    def __init__(self, file: GgufFile, gguf_names: dict[str, str]) -> None:
        self._file = file
        self._names = gguf_names

    def __getitem__(self, name: str) -> FloatArray:
        return self._file.floats(self._names[name])

    def rows(self, name: str, ids: Sequence[int]) -> FloatArray:
        return self._file.floats(self._names[name], ids)


def read_model(file: GgufFile) -> ModelFile:
    """Raises GgufError for keys and tensors that are missing or wrong, ModelLoadError for what cannot be run."""
    architecture = file.text(names.ARCHITECTURE, "")
    if architecture != names.LAYA_ARCHITECTURE or names.BLOCK_COUNT not in file.keys:
        raise GgufError(
            f"is not a Laya GGUF (general.architecture is {architecture!r}, and the laya.* keys are not there)"
            if names.BLOCK_COUNT not in file.keys
            else f"is not a Laya GGUF (general.architecture is {architecture!r})",
            where=str(file.path),
            hint="convert the official checkpoint: layactl convert CHECKPOINT -o OUT.gguf",
        )
    if names.DECISION_SPEC in file.keys:
        raise ModelLoadError("carries a decision.spec, which this version does not read yet", where=str(file.path))
    shape = _shape(file)
    return ModelFile(
        file=file,
        shape=shape,
        tokenizer=_tokenizer(file, shape.encoder.vocab_size),
        calibration=_calibration(file),
        weights=_weights(file, shape),
    )


def _shape(file: GgufFile) -> ModelShape:
    activation = file.text(names.HIDDEN_ACTIVATION)
    if activation != "gelu":
        raise file.error(f'is {activation!r}; only "gelu" is known', names.HIDDEN_ACTIVATION)
    hidden = file.integer(names.EMBEDDING_LENGTH)
    shape = ModelShape(
        encoder=EncoderShape(
            vocab_size=file.integer(names.VOCAB_SIZE),
            hidden=hidden,
            layers=file.integer(names.BLOCK_COUNT),
            heads=file.integer(names.HEAD_COUNT),
            ffn=file.integer(names.FEED_FORWARD_LENGTH),
            context_length=file.integer(names.CONTEXT_LENGTH),
            norm_eps=file.number(names.NORM_EPS),
            global_theta=file.number(names.ROPE_FREQ_BASE),
            local_theta=file.number(names.ROPE_FREQ_BASE_SWA),
            local_attention=file.integer(names.SLIDING_WINDOW),
            global_every=file.integer(names.SLIDING_WINDOW_PATTERN),
        ),
        head=HeadShape(
            hidden=hidden,
            layers=file.integer(names.HEAD_LAYERS),
            act_classes=file.integer(names.ACT_CLASSES),
            question_types=file.integer(names.N_QTYPE),
        ),
        limits=Limits(
            max_len=file.integer(names.MAX_LEN, _DEFAULT_MAX_LEN),
            head_max_len=file.integer(names.HEAD_MAX_LEN, _DEFAULT_HEAD_MAX_LEN),
        ),
    )
    if problem := shape_problem(shape):
        raise file.error(problem[1])
    if shape.head.question_types != len(QUESTION_TYPES):
        raise file.error(f"is {shape.head.question_types}, not {len(QUESTION_TYPES)}", names.N_QTYPE)
    if shape.head.act_classes < 1:
        raise file.error("is 0, but the laya dialect stores an act head", names.ACT_CLASSES)
    return shape


def _weights(file: GgufFile, shape: ModelShape) -> MappedWeights:
    specs = tensor_specs(shape)
    for spec in specs:
        tensor = file.tensors.get(spec.gguf)
        if tensor is None:
            raise file.error("tensor is missing", spec.gguf)
        # gguf keeps or drops dimensions of 1 (scorer.3.weight is (1, d) here, (d,) elsewhere).
        if _squeezed(tensor.shape) != _squeezed(spec.shape):
            raise file.error(f"tensor has shape {tensor.shape}, not {spec.shape}", spec.gguf)
    if unknown := sorted(set(file.tensors) - {spec.gguf for spec in specs} - set(UNUSED_TENSORS)):
        raise file.error("tensor has no place in this model", unknown[0])
    return MappedWeights(file, {spec.checkpoint: spec.gguf for spec in specs})


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def _calibration(file: GgufFile) -> Calibration:
    temperatures = file.numbers(names.TEMPERATURE)
    if len(temperatures) != len(QUESTION_TYPES):
        raise file.error(f"holds {len(temperatures)} temperatures, not {len(QUESTION_TYPES)}", names.TEMPERATURE)
    buckets: dict[str, float] = {}
    if names.TEMPERATURE_BUCKETS in file.keys or names.TEMPERATURE_VALUES in file.keys:
        bucket_names, values = file.texts(names.TEMPERATURE_BUCKETS), file.numbers(names.TEMPERATURE_VALUES)
        if len(bucket_names) != len(values):
            raise file.error(f"{len(bucket_names)} buckets but {len(values)} values", names.TEMPERATURE_BUCKETS)
        buckets = dict(zip(bucket_names, values, strict=True))
    if bad := [t for t in (*temperatures, *buckets.values()) if not t < float("inf") or t != t]:
        raise file.error(f"temperature {bad[0]} is not a finite number", names.TEMPERATURE)
    return reference_calibration(temperatures, buckets, QUESTION_TYPES, CALIBRATION_VERSION)


def _tokenizer(file: GgufFile, vocab_size: int) -> TokenizerData:
    family = file.text(names.LAYA_TOKENIZER, METASPACE_BPE)
    if family not in (METASPACE_BPE, BYTELEVEL_BPE, EMBEDDED):
        raise file.error(f"is {family!r}; only {METASPACE_BPE} and {BYTELEVEL_BPE} are known", names.LAYA_TOKENIZER)
    normalizer = file.text(names.LAYA_NORMALIZER, "none")
    if normalizer not in ("nfc", "none"):
        raise file.error(f"is {normalizer!r}; only nfc and none are known", names.LAYA_NORMALIZER)
    tokens, types = file.texts(names.TOKENS), file.integers(names.TOKEN_TYPES)
    if len(tokens) != len(types):
        raise file.error(f"{len(tokens)} tokens but {len(types)} types", names.TOKEN_TYPES)
    if len(tokens) > vocab_size:
        raise file.error(f"{len(tokens)} tokens but token_embd has {vocab_size} rows", names.TOKENS)
    flags = _added_flags(file)
    pieces: list[str | None] = []
    added: list[AddedToken] = []
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind == names.TYPE_UNUSED:
            pieces.append(None)
            continue
        if kind in (names.TYPE_CONTROL, names.TYPE_USER_DEFINED):
            if kind == names.TYPE_USER_DEFINED and family == METASPACE_BPE:
                # The converters spell a run of U+2581 as spaces; no piece of this family holds a real space.
                token = token.replace(" ", METASPACE)
            flag = flags.get(token_id, 0)
            added.append(
                AddedToken(
                    token_id,
                    token,
                    control=kind == names.TYPE_CONTROL,
                    lstrip=bool(flag & names.FLAG_LSTRIP),
                    normalized=bool(flag & names.FLAG_NORMALIZED),
                )
            )
        elif kind not in (names.TYPE_NORMAL, names.TYPE_BYTE):
            raise file.error(f"token {token_id} has unknown type {kind}", names.TOKEN_TYPES)
        pieces.append(token)
    return TokenizerData(
        family=family,
        pieces=pieces,
        merges=file.texts(names.MERGES) if names.MERGES in file.keys else [],
        added=added,
        special=_special_ids(file, family, pieces),
        normalizer=normalizer,
        huggingface_json=file.text(names.HUGGINGFACE_JSON) if family == EMBEDDED else None,
    )


def _added_flags(file: GgufFile) -> dict[int, int]:
    if names.LAYA_ADDED_TOKENS not in file.keys:
        return {}
    pairs = file.integers(names.LAYA_ADDED_TOKENS)
    if len(pairs) % 2:
        raise file.error("holds an odd number of values, not (id, flags) pairs", names.LAYA_ADDED_TOKENS)
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _special_ids(file: GgufFile, family: str, pieces: Sequence[str | None]) -> SpecialIds:
    metaspace = family == METASPACE_BPE

    def named(key: str, fallback: int | None) -> int:
        token_id = file.integer(key, fallback)
        if token_id >= len(pieces) or pieces[token_id] is None:
            raise file.error(f"id {token_id} is outside the vocabulary of {len(pieces)}", key)
        return token_id

    def optional(key: str) -> int | None:
        return named(key, None) if key in file.keys else None

    special = SpecialIds(
        cls=named(names.BOS_TOKEN_ID, _METASPACE_CLS if metaspace else None),
        sep=named(names.SEP_TOKEN_ID, _METASPACE_SEP if metaspace else None),
        mask=named(names.MASK_TOKEN_ID, _METASPACE_MASK if metaspace else None),
        pad=optional(names.PAD_TOKEN_ID),
        unk=optional(names.UNK_TOKEN_ID),
    )
    marker = file.integer(names.MARKER_TOKEN_ID)
    if marker != special.mask:
        raise file.error(f"is {marker}, but the mask token is {special.mask}", names.MARKER_TOKEN_ID)
    return special
