"""The keys of a `llama.cpp` dialect file, in the order of stock `convert_hf_to_gguf.py` (llama.cpp b11434)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import gguf

from layactl.convert.tokenizer_keys import add_special_ids, vocabulary
from layactl.core.model_shape import ModelShape
from layactl.core.tokenizer import BYTELEVEL_BPE, METASPACE, METASPACE_BPE, TokenizerData
from layactl.gguf_file import names
from layactl.gguf_file.llama_cpp_names import (
    BYTELEVEL_PRE,
    DECISION_TYPE,
    METASPACE_PRE,
    block_widths,
    bucket_name,
    systemone_template,
)
from layactl.gguf_file.model_file import QUESTION_TYPES

_PRE = {BYTELEVEL_BPE: BYTELEVEL_PRE, METASPACE_BPE: METASPACE_PRE}
_POOLING = {"mean": gguf.PoolingType.MEAN, "cls": gguf.PoolingType.CLS}


@dataclass(frozen=True)
class LlamaCppModel:
    """What a file of this dialect says about a model, from a checkpoint or from a file of the laya dialect.

    add_general: writes general.*; temperatures, by_options: as the checkpoint ships them; pooling: the encoder
    config's classifier_pooling, which no decision reads; more: keys that layactl adds to the dialect's own.
    """

    add_general: Callable[[gguf.GGUFWriter], None]
    file_type: int
    shape: ModelShape
    tokenizer: TokenizerData
    temperatures: Sequence[float]
    by_options: Mapping[str, float]
    pooling: str = ""
    more: Mapping[str, str | int] = field(default_factory=dict)


def add_llama_cpp_keys(writer: gguf.GGUFWriter, model: LlamaCppModel) -> None:
    """general.*, modern-bert.* and tokenizer.*."""
    key, encoder, head = names.llama_cpp_key, model.shape.encoder, model.shape.head
    model.add_general(writer)
    writer.add_uint32(key(names.BLOCK_COUNT), encoder.layers + head.layers)
    writer.add_uint32(key(names.CONTEXT_LENGTH), encoder.context_length)
    writer.add_uint32(key(names.EMBEDDING_LENGTH), encoder.hidden)
    writer.add_array(key(names.FEED_FORWARD_LENGTH), block_widths(encoder, head))
    writer.add_uint32(key(names.HEAD_COUNT), encoder.heads)
    writer.add_float32(key(names.ROPE_FREQ_BASE), encoder.global_theta)
    writer.add_float32(key(names.ROPE_FREQ_BASE_SWA), encoder.local_theta)
    # The stock converter takes the second from layer_norm_eps, which the reference does not read.
    writer.add_float32(key(names.NORM_EPS), encoder.norm_eps)
    writer.add_float32(key(names.LAYER_NORM_EPS), encoder.norm_eps)
    writer.add_uint32(names.FILE_TYPE, model.file_type)
    writer.add_bool(key(names.CAUSAL), False)
    if model.pooling in _POOLING:
        writer.add_uint32(names.CLASSIFIER_POOLING, _POOLING[model.pooling])
    writer.add_uint32(key(names.SLIDING_WINDOW), encoder.local_attention)
    writer.add_uint32(key(names.SLIDING_WINDOW_PATTERN), encoder.global_every)
    writer.add_string(key(names.ROPE_SCALING_TYPE), "none")
    writer.add_uint32(key(names.VOCAB_SIZE), encoder.vocab_size)
    writer.add_string(key(names.HIDDEN_ACTIVATION), "gelu")
    writer.add_string(names.DECISION_TYPE, DECISION_TYPE)
    writer.add_uint32(names.DECISION_BLOCK_COUNT, head.layers)
    writer.add_uint32(names.DECISION_HEAD_TOKENS, model.shape.limits.head_max_len)
    for kind, temperature in zip(QUESTION_TYPES, model.temperatures, strict=True):
        writer.add_float32(names.DECISION_TEMPERATURE + kind, temperature)
    for bucket, temperature in model.by_options.items():
        writer.add_float32(names.DECISION_TEMPERATURE + bucket_name(bucket), temperature)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_tokenizer(writer, model.tokenizer)
    for name, value in model.more.items():
        if isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_uint32(name, value)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: TokenizerData) -> None:
    # What the stock converter reads from the families' post-processor, [CLS] A [SEP] B [SEP].
    writer.add_bool(names.ADD_BOS, True)
    writer.add_bool(names.ADD_EOS, True)
    writer.add_bool(names.ADD_SEP, False)
    tokens, types = vocabulary(tokenizer)
    if tokenizer.family == METASPACE_BPE:
        # Runs of U+2581 are added tokens that no ordinary text matches; the stock converter makes them normal ones.
        for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
            if kind == names.TYPE_USER_DEFINED and not token.strip(" "):
                tokens[token_id], types[token_id] = METASPACE * len(token), names.TYPE_NORMAL
    writer.add_string(names.TOKENIZER_MODEL, "gpt2")
    writer.add_string(names.TOKENIZER_PRE, _PRE[tokenizer.family])
    writer.add_array(names.TOKENS, tokens)
    writer.add_array(names.TOKEN_TYPES, types)
    writer.add_array(names.MERGES, list(tokenizer.merges))
    special = tokenizer.special
    add_special_ids(writer, special)
    writer.add_uint32(names.TOKEN_TYPE_COUNT, len(QUESTION_TYPES))
    cls, sep, mask = (str(tokenizer.pieces[token_id]) for token_id in (special.cls, special.sep, special.mask))
    writer.add_string(names.SYSTEMONE_TEMPLATE, systemone_template(cls, sep, mask))
    writer.add_array(names.CHAT_TEMPLATES, [names.SYSTEMONE_TEMPLATE.rpartition(".")[2]])
