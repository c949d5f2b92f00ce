"""The keys of a `laya` dialect file, in the order of the fork's converter."""

from __future__ import annotations

import gguf

from layactl.checkpoint.folder import Checkpoint
from layactl.convert.tokenizer_keys import add_special_ids, vocabulary
from layactl.core.tokenizer import BYTELEVEL_BPE, TokenizerData
from layactl.gguf_file import names


def add_laya_keys(
    writer: gguf.GGUFWriter,
    checkpoint: Checkpoint,
    metadata: gguf.Metadata,
    file_type: gguf.LlamaFileType,
    source_sha256: str,
) -> None:
    """general.*, laya.*, tokenizer.* and the source digest."""
    encoder, head, agent = checkpoint.shape.encoder, checkpoint.shape.head, checkpoint.agent
    writer.add_type(gguf.GGUFType.MODEL)
    metadata.set_gguf_meta_model(writer)
    writer.add_uint32(names.BLOCK_COUNT, encoder.layers)
    writer.add_uint32(names.CONTEXT_LENGTH, encoder.context_length)
    writer.add_uint32(names.EMBEDDING_LENGTH, encoder.hidden)
    writer.add_uint32(names.FEED_FORWARD_LENGTH, encoder.ffn)
    writer.add_uint32(names.HEAD_COUNT, encoder.heads)
    writer.add_bool(names.CAUSAL, False)
    writer.add_float32(names.ROPE_FREQ_BASE, encoder.global_theta)
    writer.add_float32(names.ROPE_FREQ_BASE_SWA, encoder.local_theta)
    writer.add_float32(names.NORM_EPS, encoder.norm_eps)
    writer.add_float32(names.LAYER_NORM_EPS, encoder.norm_eps)
    writer.add_uint32(names.FILE_TYPE, file_type)
    writer.add_uint32(names.SLIDING_WINDOW, encoder.local_attention)
    writer.add_uint32(names.SLIDING_WINDOW_PATTERN, encoder.global_every)
    writer.add_string(names.ROPE_SCALING_TYPE, "none")
    writer.add_uint32(names.VOCAB_SIZE, encoder.vocab_size)
    writer.add_string(names.HIDDEN_ACTIVATION, "gelu")
    writer.add_uint32(names.HEAD_LAYERS, head.layers)
    writer.add_uint32(names.N_QTYPE, head.question_types)
    writer.add_uint32(names.MAX_LEN, checkpoint.shape.limits.max_len)
    writer.add_uint32(names.HEAD_MAX_LEN, checkpoint.shape.limits.head_max_len)
    writer.add_key_value(
        names.TEMPERATURE, list(agent.temperature), gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.FLOAT32
    )
    writer.add_uint32(names.ACT_CLASSES, head.act_classes)
    if agent.temperature_by_options:
        writer.add_array(names.TEMPERATURE_BUCKETS, list(agent.temperature_by_options))
        writer.add_key_value(
            names.TEMPERATURE_VALUES,
            list(agent.temperature_by_options.values()),
            gguf.GGUFValueType.ARRAY,
            gguf.GGUFValueType.FLOAT32,
        )
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_tokenizer(writer, checkpoint.tokenizer)
    writer.add_string(names.SOURCE_SHA256, source_sha256)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: TokenizerData) -> None:
    tokens, types = vocabulary(tokenizer)
    writer.add_string(names.TOKENIZER_MODEL, "gpt2")
    writer.add_string(names.TOKENIZER_PRE, "modern-bert")
    writer.add_array(names.TOKENS, tokens)
    writer.add_array(names.TOKEN_TYPES, types)
    if tokenizer.merges:
        writer.add_array(names.MERGES, list(tokenizer.merges))
    add_special_ids(writer, tokenizer.special)
    for key in (names.ADD_BOS, names.ADD_EOS, names.ADD_SEP):
        writer.add_bool(key, True)
    writer.add_uint32(names.MARKER_TOKEN_ID, tokenizer.special.mask)
    writer.add_string(names.LAYA_TOKENIZER, tokenizer.family)
    if tokenizer.family == BYTELEVEL_BPE:
        writer.add_string(names.LAYA_NORMALIZER, tokenizer.normalizer)
    flags = [value for token in tokenizer.added for value in (token.id, _flags(token.lstrip, token.normalized))]
    if tokenizer.family == BYTELEVEL_BPE or any(flags[1::2]):
        writer.add_key_value(names.LAYA_ADDED_TOKENS, flags, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32)
    if tokenizer.huggingface_json is not None:
        writer.add_string(names.HUGGINGFACE_JSON, tokenizer.huggingface_json)


def _flags(lstrip: bool, normalized: bool) -> int:
    return names.FLAG_LSTRIP * lstrip | names.FLAG_NORMALIZED * normalized
