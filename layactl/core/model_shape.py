"""Hyperparameters of a model: what the encoder and the head look like, and how long a sequence may be."""

from __future__ import annotations

from dataclasses import dataclass

# Beyond these nothing published comes near, and a damaged number would only ask for absurd amounts of memory.
MAX_LAYERS = 65_536
MAX_VOCAB = 2**24
MAX_WIDTH = 2**20
MAX_COUNT = 2**31 - 1
# CLS, SEP, one option's marker, SEP: nothing shorter holds a question.
MIN_MAX_LEN = 4
# A GGUF holds these numbers as float32.
MIN_FLOAT, MAX_FLOAT = 1e-30, 1e30


@dataclass(frozen=True)
class EncoderShape:
    """A ModernBERT encoder (transformers `ModernBertConfig`).

    local_attention: width in tokens of the sliding window; key j is visible to query i of a sliding layer when
    abs(i - j) <= local_attention // 2. Layer n attends globally when n % global_every == 0.
    """

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    ffn: int
    context_length: int
    norm_eps: float
    global_theta: float
    local_theta: float
    local_attention: int
    global_every: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def is_global(self, layer: int) -> bool:
        return layer % self.global_every == 0


@dataclass(frozen=True)
class HeadShape:
    """The decision head: `layers` transformer layers over the encoder's width, a scorer, an act head.

    act_classes: outputs of the act head (0 = the file has none).
    """

    hidden: int
    layers: int
    act_classes: int
    question_types: int = 3

    @property
    def heads(self) -> int:
        # The reference's own rule (common.DecisionModel): it does not follow the encoder's head count.
        return max(1, self.hidden // 64)


@dataclass(frozen=True)
class Limits:
    """Token budgets of one sequence: max_len in all, head_max_len for question and options."""

    max_len: int
    head_max_len: int


@dataclass(frozen=True)
class ModelShape:
    encoder: EncoderShape
    head: HeadShape
    limits: Limits


def shape_problem(shape: ModelShape) -> tuple[str, str] | None:
    """The first thing about a shape that no forward pass could use: (field, message), or None."""
    encoder, head, limits = shape.encoder, shape.head, shape.limits
    checks = (
        ("vocab_size", 1 <= encoder.vocab_size <= MAX_VOCAB, f"{encoder.vocab_size} tokens"),
        ("hidden_size", 1 <= encoder.hidden <= MAX_WIDTH, f"width {encoder.hidden}"),
        ("num_hidden_layers", 1 <= encoder.layers <= MAX_LAYERS, f"{encoder.layers} layers"),
        ("num_attention_heads", 1 <= encoder.heads <= encoder.hidden, f"{encoder.heads} heads"),
        ("intermediate_size", 1 <= encoder.ffn <= MAX_WIDTH, f"width {encoder.ffn}"),
        ("max_position_embeddings", 1 <= encoder.context_length <= MAX_COUNT, f"{encoder.context_length} positions"),
        ("norm_eps", MIN_FLOAT <= encoder.norm_eps < 1, f"{encoder.norm_eps}"),
        ("global_rope_theta", MIN_FLOAT <= encoder.global_theta <= MAX_FLOAT, f"{encoder.global_theta}"),
        ("local_rope_theta", MIN_FLOAT <= encoder.local_theta <= MAX_FLOAT, f"{encoder.local_theta}"),
        ("local_attention", 1 <= encoder.local_attention <= MAX_COUNT, f"{encoder.local_attention} tokens"),
        ("global_attn_every_n_layers", 1 <= encoder.global_every <= MAX_COUNT, f"{encoder.global_every}"),
        ("head_layers", 0 <= head.layers <= MAX_LAYERS, f"{head.layers} layers"),
        ("act_costs", 0 <= head.act_classes <= 4096, f"{head.act_classes} act classes"),
        ("max_len", MIN_MAX_LEN <= limits.max_len <= 2**20, f"{limits.max_len} tokens"),
        ("head_max_len", 1 <= limits.head_max_len <= 2**20, f"{limits.head_max_len} tokens"),
    )
    for field, sound, found in checks:
        if not sound:
            return field, f"{field} is out of range: {found}"
    if encoder.hidden % encoder.heads or encoder.head_dim % 2:
        return "num_attention_heads", (
            f"hidden_size {encoder.hidden} does not divide into {encoder.heads} heads of an even width"
        )
    if head.hidden % head.heads:
        return "hidden_size", f"hidden_size {head.hidden} does not divide into the decision head's {head.heads} heads"
    return None
