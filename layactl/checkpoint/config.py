"""rl_agent_config.json and encoder/config.json -> the model's shape and its temperatures.

Both spellings of a ModernBERT config are read: transformers 4 (global_rope_theta, local_rope_theta) and transformers 5
(rope_parameters by layer type). Where the reference would quietly fall back to a default that changes the numbers, the
field is required here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from layactl.core.json_fields import JsonObject
from layactl.core.model_shape import MAX_FLOAT, EncoderShape, HeadShape, Limits, ModelShape, shape_problem
from layactl.errors import CheckpointError

_FULL, _SLIDING = "full_attention", "sliding_attention"
_DEFAULT_HEAD_LAYERS, _DEFAULT_MAX_LEN, _DEFAULT_HEAD_MAX_LEN = 2, 512, 192


@dataclass(frozen=True)
class AgentConfig:
    """rl_agent_config.json. temperature: [choice, score, noul]; both temperature fields as shipped, unclamped."""

    head_layers: int
    limits: Limits
    act_classes: int
    temperature: tuple[float, ...]
    temperature_by_options: dict[str, float]


def read_agent_config(config: JsonObject) -> AgentConfig:
    layout = config.get("option_layout")
    if layout not in (None, "sequential"):
        raise config.error("option_layout", f"is {layout!r:.60}; only sequential options are understood")
    temperature = config.values.get("temperature", [1.0, 1.0, 1.0])
    if not isinstance(temperature, list) or len(temperature) != 3:
        raise config.error("temperature", "must be a list of 3 numbers: choice, score, noul")
    buckets = config.object("temperature_by_options", {})
    return AgentConfig(
        head_layers=config.integer("head_layers", _DEFAULT_HEAD_LAYERS),
        limits=Limits(
            max_len=config.integer("max_len", _DEFAULT_MAX_LEN),
            head_max_len=config.integer("head_max_len", _DEFAULT_HEAD_MAX_LEN),
        ),
        act_classes=len(config.object("act_costs", {}).values) + 1,
        temperature=tuple(_temperature(config, f"temperature[{i}]", t) for i, t in enumerate(temperature)),
        temperature_by_options={name: _temperature(buckets, name, t) for name, t in buckets.values.items()},
    )


def _temperature(config: JsonObject, key: str, value: Any) -> float:
    temperature = config.as_number(key, value)
    if abs(temperature) > MAX_FLOAT:
        raise config.error(key, f"must be a finite number that a float32 holds, not {value!r:.60}")
    return temperature


def read_model_shape(encoder: JsonObject, agent: AgentConfig) -> ModelShape:
    hidden = encoder.integer("hidden_size")
    layers = encoder.integer("num_hidden_layers")
    _check_architecture(encoder)
    global_theta, local_theta = _rope_thetas(encoder)
    shape = ModelShape(
        encoder=EncoderShape(
            vocab_size=encoder.integer("vocab_size"),
            hidden=hidden,
            layers=layers,
            heads=encoder.integer("num_attention_heads"),
            ffn=encoder.integer("intermediate_size"),
            context_length=encoder.integer("max_position_embeddings"),
            norm_eps=_norm_eps(encoder),
            global_theta=global_theta,
            local_theta=local_theta,
            local_attention=encoder.integer("local_attention"),
            global_every=_global_every(encoder, layers),
        ),
        head=HeadShape(hidden=hidden, layers=agent.head_layers, act_classes=agent.act_classes),
        limits=agent.limits,
    )
    if problem := shape_problem(shape):
        raise CheckpointError(problem[1], where=encoder.where)
    return shape


def _check_architecture(encoder: JsonObject) -> None:
    model_type = encoder.text("model_type")
    if model_type != "modernbert":
        raise encoder.error("model_type", f"is {model_type!r:.60}; only modernbert encoders are understood")
    activation = encoder.text("hidden_activation", "gelu")
    if activation != "gelu":
        raise encoder.error("hidden_activation", f'is {activation!r:.60}; only "gelu" is understood')
    for key in ("norm_bias", "attention_bias", "mlp_bias"):
        if encoder.get(key) not in (None, False):
            raise encoder.error(key, "must be false: an encoder with biases is not understood")
    if encoder.get("rope_scaling") is not None:
        raise encoder.error("rope_scaling", "is set; scaled RoPE is not understood")


def _norm_eps(encoder: JsonObject) -> float:
    # transformers reads norm_eps; layer_norm_eps is a copy some configs carry along.
    if encoder.get("norm_eps") is None:
        return encoder.number("layer_norm_eps", 1e-5)
    return encoder.number("norm_eps")


def _rope_thetas(encoder: JsonObject) -> tuple[float, float]:
    if encoder.get("rope_parameters") is None:
        return encoder.number("global_rope_theta"), encoder.number("local_rope_theta")
    parameters = encoder.object("rope_parameters")
    thetas = []
    for layer_type in (_FULL, _SLIDING):
        layer = parameters.object(layer_type)
        kind = layer.text("rope_type", "default")
        if kind != "default":
            raise layer.error("rope_type", f"is {kind!r:.60}; scaled RoPE is not understood")
        thetas.append(layer.number("rope_theta"))
    return thetas[0], thetas[1]


def _global_every(encoder: JsonObject, layers: int) -> int:
    """Every how many layers one is global, from the number, the list of layer types, or both when they agree."""
    if encoder.get("layer_types") is None:
        return encoder.integer("global_attn_every_n_layers")
    types = encoder.items("layer_types")
    if len(types) != layers:
        raise encoder.error("layer_types", f"lists {len(types)} layers, but num_hidden_layers is {layers}")
    if unknown := [t for t in types if t not in (_FULL, _SLIDING)]:
        raise encoder.error("layer_types", f"holds {unknown[0]!r:.60}")
    if encoder.get("global_attn_every_n_layers") is not None:
        every = encoder.integer("global_attn_every_n_layers")
    else:
        full = [n for n, kind in enumerate(types) if kind == _FULL]
        every = full[1] if len(full) > 1 else max(layers, 1)
    if every < 1 or types != [_SLIDING if n % every else _FULL for n in range(layers)]:
        raise encoder.error("layer_types", f"is not one global layer in every {every}")
    return every
