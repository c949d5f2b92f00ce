"""The `laya` dialect of a GGUF read back: shape, tokenizer data, calibration and weights.

Checks at load are the specification's: a key that the forward pass depends on is required, never guessed.
"""

from __future__ import annotations

from layactl.core.model_shape import HeadShape, Limits, ModelShape
from layactl.core.tensor_table import tensor_specs
from layactl.core.tokenizer import (
    BYTELEVEL_BPE,
    EMBEDDED,
    METASPACE,
    METASPACE_BPE,
    AddedToken,
    SpecialIds,
    TokenizerData,
)
from layactl.gguf_file import names
from layactl.gguf_file.model_file import (
    QUESTION_TYPES,
    MappedWeights,
    ModelFile,
    check_shape,
    choose_max_len,
    encoder_shape,
    read_special_ids,
    read_vocabulary,
    shipped_calibration,
)
from layactl.gguf_file.reader import GgufFile

DIALECT = "laya"
CALIBRATION_VERSION = "gguf:laya.temperature"

# What the fork's loader assumes for keys its first converters did not write.
_DEFAULT_MAX_LEN, _DEFAULT_HEAD_MAX_LEN = 1024, 256
# Special ids of the multilingual vocabulary, for metaspace files that do not name them.
_METASPACE_IDS = {names.BOS_TOKEN_ID: 2, names.SEP_TOKEN_ID: 1, names.MASK_TOKEN_ID: 4}
# A piece of every metaspace vocabulary (byte fallback).
_FIRST_BYTE = "<0x00>"


def read_model(file: GgufFile, max_len: int | None = None) -> ModelFile:
    """max_len: the sequence limit of a file that stores none.

    Raises GgufError for keys and tensors that are missing or wrong, UsageError for a max_len that cannot be had.
    """
    shape = _shape(file, max_len)
    return ModelFile(
        file=file,
        dialect=DIALECT,
        shape=shape,
        tokenizer=_tokenizer(file, shape.encoder.vocab_size),
        calibration=shipped_calibration(file, *shipped_temperatures(file), CALIBRATION_VERSION),
        weights=MappedWeights(file, tensor_specs(shape)),
    )


def _shape(file: GgufFile, max_len: int | None) -> ModelShape:
    encoder = encoder_shape(
        file, lambda key: key, layers=file.integer(names.BLOCK_COUNT), ffn=file.integer(names.FEED_FORWARD_LENGTH)
    )
    stored = file.integer(names.MAX_LEN) if names.MAX_LEN in file.keys else None
    shape = ModelShape(
        encoder=encoder,
        head=HeadShape(
            hidden=encoder.hidden,
            layers=file.integer(names.HEAD_LAYERS),
            act_classes=file.integer(names.ACT_CLASSES),
            question_types=file.integer(names.N_QTYPE),
        ),
        limits=Limits(
            max_len=choose_max_len(max_len, stored, _DEFAULT_MAX_LEN, encoder.context_length),
            head_max_len=file.integer(names.HEAD_MAX_LEN, _DEFAULT_HEAD_MAX_LEN),
        ),
    )
    check_shape(file, shape)
    if shape.head.question_types != len(QUESTION_TYPES):
        raise file.error(f"is {shape.head.question_types}, not {len(QUESTION_TYPES)}", names.N_QTYPE)
    if shape.head.act_classes < 1:
        raise file.error("is 0, but the laya dialect stores an act head", names.ACT_CLASSES)
    return shape


def shipped_temperatures(file: GgufFile) -> tuple[list[float], dict[str, float]]:
    """As the checkpoint ships them: one a question type, and those of buckets such as "choice:3-5"."""
    temperatures = file.numbers(names.TEMPERATURE)
    if len(temperatures) != len(QUESTION_TYPES):
        raise file.error(f"holds {len(temperatures)} temperatures, not {len(QUESTION_TYPES)}", names.TEMPERATURE)
    if names.TEMPERATURE_BUCKETS not in file.keys and names.TEMPERATURE_VALUES not in file.keys:
        return temperatures, {}
    buckets, values = file.texts(names.TEMPERATURE_BUCKETS), file.numbers(names.TEMPERATURE_VALUES)
    if len(buckets) != len(values):
        raise file.error(f"{len(buckets)} buckets but {len(values)} values", names.TEMPERATURE_BUCKETS)
    return temperatures, dict(zip(buckets, values, strict=True))


def _tokenizer(file: GgufFile, vocab_size: int) -> TokenizerData:
    family = file.text(names.LAYA_TOKENIZER, METASPACE_BPE)
    if family not in (METASPACE_BPE, BYTELEVEL_BPE, EMBEDDED):
        raise file.error(f"is {family!r:.60}; only {METASPACE_BPE} and {BYTELEVEL_BPE} are known", names.LAYA_TOKENIZER)
    normalizer = file.text(names.LAYA_NORMALIZER, "none")
    if normalizer not in ("nfc", "none"):
        raise file.error(f"is {normalizer!r:.60}; only nfc and none are known", names.LAYA_NORMALIZER)
    flags = _added_flags(file)

    def added_token(token_id: int, text: str, control: bool) -> AddedToken:
        if not control and family == METASPACE_BPE:
            # The converters spell a run of U+2581 as spaces; no piece of this family holds a real space.
            text = text.replace(" ", METASPACE)
        flag = flags.get(token_id, 0)
        lstrip, normalized = bool(flag & names.FLAG_LSTRIP), bool(flag & names.FLAG_NORMALIZED)
        return AddedToken(token_id, text, control, lstrip, normalized)

    pieces, added = read_vocabulary(file, vocab_size, added_token)
    if names.LAYA_TOKENIZER not in file.keys and _FIRST_BYTE not in pieces:
        # As the first converters (llama.cpp pull request #29363) would have written an English checkpoint.
        raise file.error(
            f"key is missing, which stands for {METASPACE_BPE}, but no piece is a byte", names.LAYA_TOKENIZER
        )
    return TokenizerData(
        family=family,
        pieces=pieces,
        merges=[] if family == EMBEDDED else file.texts(names.MERGES),
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


def _special_ids(file: GgufFile, family: str, pieces: list[str | None]) -> SpecialIds:
    special = read_special_ids(file, pieces, _METASPACE_IDS if family == METASPACE_BPE else {})
    marker = file.integer(names.MARKER_TOKEN_ID)
    if marker != special.mask:
        raise file.error(f"is {marker}, but the mask token is {special.mask}", names.MARKER_TOKEN_ID)
    return special
