"""GGUF keys of both dialects, shared by writers and readers.

Tensor names: core.tensor_table (`laya`), gguf_file.llama_cpp_names (`llama.cpp`).
"""

from __future__ import annotations

LAYA_ARCHITECTURE = "laya"

ARCHITECTURE = "general.architecture"
ALIGNMENT = "general.alignment"
NAME = "general.name"
SIZE_LABEL = "general.size_label"
FILE_TYPE = "general.file_type"
QUANTIZATION_VERSION = "general.quantization_version"
SOURCE_SHA256 = "layactl.source.sha256"
RECIPE = "layactl.recipe"

BLOCK_COUNT = "laya.block_count"
CONTEXT_LENGTH = "laya.context_length"
EMBEDDING_LENGTH = "laya.embedding_length"
FEED_FORWARD_LENGTH = "laya.feed_forward_length"
HEAD_COUNT = "laya.attention.head_count"
CAUSAL = "laya.attention.causal"
ROPE_FREQ_BASE = "laya.rope.freq_base"
ROPE_FREQ_BASE_SWA = "laya.rope.freq_base_swa"
# The key name is historical: both norms are LayerNorms.
NORM_EPS = "laya.attention.layer_norm_rms_epsilon"
LAYER_NORM_EPS = "laya.attention.layer_norm_epsilon"
SLIDING_WINDOW = "laya.attention.sliding_window"
SLIDING_WINDOW_PATTERN = "laya.attention.sliding_window_pattern"
ROPE_SCALING_TYPE = "laya.rope.scaling.type"
VOCAB_SIZE = "laya.vocab_size"
HIDDEN_ACTIVATION = "laya.hidden_activation"
HEAD_LAYERS = "laya.head_layers"
N_QTYPE = "laya.n_qtype"
MAX_LEN = "laya.max_len"
HEAD_MAX_LEN = "laya.head_max_len"
TEMPERATURE = "laya.temperature"
ACT_CLASSES = "laya.act_classes"
TEMPERATURE_BUCKETS = "laya.temperature_by_options.buckets"
TEMPERATURE_VALUES = "laya.temperature_by_options.values"
MARKER_TOKEN_ID = "laya.marker_token_id"

TOKENIZER_MODEL = "tokenizer.ggml.model"
TOKENIZER_PRE = "tokenizer.ggml.pre"
TOKENS = "tokenizer.ggml.tokens"
TOKEN_TYPES = "tokenizer.ggml.token_type"
MERGES = "tokenizer.ggml.merges"
BOS_TOKEN_ID = "tokenizer.ggml.bos_token_id"
EOS_TOKEN_ID = "tokenizer.ggml.eos_token_id"
SEP_TOKEN_ID = "tokenizer.ggml.seperator_token_id"
MASK_TOKEN_ID = "tokenizer.ggml.mask_token_id"
UNK_TOKEN_ID = "tokenizer.ggml.unknown_token_id"
PAD_TOKEN_ID = "tokenizer.ggml.padding_token_id"
ADD_BOS = "tokenizer.ggml.add_bos_token"
ADD_EOS = "tokenizer.ggml.add_eos_token"
ADD_SEP = "tokenizer.ggml.add_sep_token"
HUGGINGFACE_JSON = "tokenizer.huggingface.json"

LAYA_TOKENIZER = "decision.laya.tokenizer"
LAYA_NORMALIZER = "decision.laya.normalizer"
LAYA_ADDED_TOKENS = "decision.laya.added_tokens"
DECISION_SPEC = "decision.spec"
# Mirrors of the spec, for readers that skip its JSON.
SPEC_VERSION = "decision.spec_version"
SPEC_LAYOUT = "decision.layout"
SPEC_MODEL_ID = "decision.model_id"
SPEC_MODEL_VERSION = "decision.model_version"

# Flags of decision.laya.added_tokens.
FLAG_LSTRIP, FLAG_NORMALIZED = 1, 2

# tokenizer.ggml.token_type
TYPE_NORMAL, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE = 1, 3, 4, 5, 6

# The llama.cpp dialect keeps the encoder keys above under another prefix (llama_cpp_key) and adds these.
LLAMA_CPP_ARCHITECTURE = "modern-bert"
CLASSIFIER_POOLING = "modern-bert.classifier.pooling_type"
DECISION_TYPE = "modern-bert.decision.type"
DECISION_BLOCK_COUNT = "modern-bert.decision.block_count"
DECISION_HEAD_TOKENS = "modern-bert.decision.max_head_tokens"
DECISION_TEMPERATURE = "modern-bert.decision.temperature."
TOKEN_TYPE_COUNT = "tokenizer.ggml.token_type_count"
CHAT_TEMPLATES = "tokenizer.chat_templates"
SYSTEMONE_TEMPLATE = "tokenizer.chat_template.systemone"


def llama_cpp_key(key: str) -> str:
    """laya.block_count -> modern-bert.block_count."""
    return key.replace(LAYA_ARCHITECTURE, LLAMA_CPP_ARCHITECTURE, 1)
