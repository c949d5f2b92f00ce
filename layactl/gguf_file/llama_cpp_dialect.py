"""The `llama.cpp` dialect read back: what stock `convert_hf_to_gguf.py` writes for a Laya checkpoint and ggml-org
publishes.

It holds no act head (answers then have no `action`), no max_len, and temperatures as the checkpoint ships them.
"""

from __future__ import annotations

from layactl.core.calibration import Calibration
from layactl.core.model_shape import HeadShape, Limits, ModelShape
from layactl.core.tokenizer import BYTELEVEL_BPE, METASPACE, METASPACE_BPE, AddedToken, TokenizerData
from layactl.errors import ModelLoadError
from layactl.gguf_file import names
from layactl.gguf_file.llama_cpp_names import (
    BYTELEVEL_PRE,
    DECISION_TYPE,
    METASPACE_PRE,
    block_widths,
    checkpoint_bucket,
    llama_cpp_specs,
)
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

DIALECT = "llama.cpp"
CALIBRATION_VERSION = f"gguf:{names.DECISION_TEMPERATURE.rstrip('.')}"

_FAMILIES = {BYTELEVEL_PRE: BYTELEVEL_BPE, METASPACE_PRE: METASPACE_BPE}
# What stock llama.cpp takes an absent key for: its converter writes the pattern only where the config spells it as a
# number, and every published checkpoint has this one.
_DEFAULT_GLOBAL_EVERY = 3
# In the prompt of every Laya checkpoint, and not in that of a Julia checkpoint, which has the same tensors.
_LAYA_PROMPT = "level {{ o.key }}: "


def read_model(file: GgufFile, max_len: int | None = None) -> ModelFile:
    """max_len: the sequence limit, which no file of this dialect stores; default: the context length.

    Raises GgufError for keys and tensors that are missing or wrong, ModelLoadError for another model's prompt,
    UsageError for a max_len that cannot be had.
    """
    if (found := file.text(names.DECISION_TYPE)) != DECISION_TYPE:
        raise file.error(f"is {found!r:.60}; only {DECISION_TYPE!r} is known", names.DECISION_TYPE)
    if names.SYSTEMONE_TEMPLATE in file.keys and _LAYA_PROMPT not in file.text(names.SYSTEMONE_TEMPLATE):
        raise ModelLoadError(
            "asks its questions in another prompt than Laya's (a Julia checkpoint?), which this version cannot run",
            where=str(file.path),
        )
    shape = _shape(file, max_len)
    limit = f"the file stores no max_len; its context length is used, {shape.limits.max_len} (--max-len sets another)"
    return ModelFile(
        file=file,
        dialect=DIALECT,
        shape=shape,
        tokenizer=_tokenizer(file, shape.encoder.vocab_size),
        calibration=_calibration(file),
        weights=MappedWeights(file, llama_cpp_specs(shape)),
        notes=(limit,) if max_len is None else (),
    )


def _shape(file: GgufFile, max_len: int | None) -> ModelShape:
    key = names.llama_cpp_key
    head_layers, blocks = file.integer(names.DECISION_BLOCK_COUNT), file.integer(key(names.BLOCK_COUNT))
    widths = file.integers(key(names.FEED_FORWARD_LENGTH))
    if head_layers >= blocks:
        raise file.error(f"{head_layers} of {blocks} blocks leave no encoder", names.DECISION_BLOCK_COUNT)
    if len(widths) != blocks:
        raise file.error(f"holds {len(widths)} widths, not {blocks}", key(names.FEED_FORWARD_LENGTH))
    layers = blocks - head_layers
    encoder = encoder_shape(file, key, layers=layers, ffn=widths[0], global_every=_DEFAULT_GLOBAL_EVERY)
    head = HeadShape(hidden=encoder.hidden, layers=head_layers, act_classes=0)
    if widths != block_widths(encoder, head):
        raise file.error("is not one width in the encoder and 4 d in the head", key(names.FEED_FORWARD_LENGTH))
    if encoder.heads != head.heads:
        raise file.error(
            f"is {encoder.heads}, which this dialect gives the head's blocks too, but Laya's head has {head.heads}",
            key(names.HEAD_COUNT),
        )
    limits = Limits(
        max_len=choose_max_len(max_len, None, encoder.context_length, encoder.context_length),
        head_max_len=file.integer(names.DECISION_HEAD_TOKENS),
    )
    return check_shape(file, ModelShape(encoder, head, limits))


def _calibration(file: GgufFile) -> Calibration:
    prefix = names.DECISION_TEMPERATURE
    stored = {key.removeprefix(prefix): file.number(key) for key in file.keys if key.startswith(prefix)}
    temperatures = [stored.pop(kind, 1.0) for kind in QUESTION_TYPES]
    by_options = {checkpoint_bucket(name): temperature for name, temperature in stored.items()}
    return shipped_calibration(file, temperatures, by_options, CALIBRATION_VERSION)


def _tokenizer(file: GgufFile, vocab_size: int) -> TokenizerData:
    pre = file.text(names.TOKENIZER_PRE)
    if pre not in _FAMILIES:
        raise file.error(f"is {pre!r:.60}; only {' and '.join(_FAMILIES)} are known", names.TOKENIZER_PRE)
    family = _FAMILIES[pre]
    mask = file.integer(names.MASK_TOKEN_ID)

    def added_token(token_id: int, text: str, control: bool) -> AddedToken:
        if family == METASPACE_BPE:
            # The stock converter spells U+2581 as a space in user-defined tokens.
            return AddedToken(token_id, text if control else text.replace(" ", METASPACE), control)
        return AddedToken(token_id, text, control, lstrip=token_id == mask, normalized=not control)

    pieces, added = read_vocabulary(file, vocab_size, added_token)
    if family == METASPACE_BPE:
        # Runs of U+2581 are added tokens that the stock converter calls normal: no text but a literal run gives one,
        # and BPE never does, because every U+2581 begins a word.
        known = {token.id for token in added}
        added += [
            AddedToken(token_id, piece, control=False)
            for token_id, piece in enumerate(pieces)
            if piece and len(piece) > 1 and token_id not in known and not piece.strip(METASPACE)
        ]
        added.sort(key=lambda token: token.id)
    return TokenizerData(
        family=family,
        pieces=pieces,
        merges=file.texts(names.MERGES),
        added=added,
        special=read_special_ids(file, pieces),
        normalizer="nfc" if family == BYTELEVEL_BPE else "none",
    )
