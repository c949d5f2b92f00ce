"""What the `llama.cpp` dialect calls things: tensors, temperature buckets, the prompt (conversion/bert.py of llama.cpp
b11434).
"""

from __future__ import annotations

import re
from dataclasses import replace

from layactl.core.model_shape import EncoderShape, HeadShape, ModelShape
from layactl.core.tensor_table import TensorSpec, tensor_specs

DECISION_TYPE = "laya"
# Always float32: the stock converter keeps it so.
TYPE_EMBEDDINGS = "token_types.weight"
# tokenizer.ggml.pre by family.
BYTELEVEL_PRE, METASPACE_PRE = "modern-bert", "mmbert"

# Names of the laya dialect -> names of this one, by prefix. Head blocks follow the encoder's.
_HEAD_BLOCK = re.compile(r"head\.(\d+)\.")
_PREFIXES = {"type_emb.": "token_types.", "scorer.0.": "cls.norm.", "scorer.1.": "cls.", "scorer.3.": "cls.output."}


def without_act_head(shape: ModelShape) -> ModelShape:
    """The part of a model that this dialect holds."""
    return replace(shape, head=replace(shape.head, act_classes=0))


def block_widths(encoder: EncoderShape, head: HeadShape) -> list[int]:
    """The MLP width of every block: feed_forward_length."""
    return [encoder.ffn] * encoder.layers + [4 * head.hidden] * head.layers


def llama_cpp_specs(shape: ModelShape) -> list[TensorSpec]:
    """The tensors of a model without an act head, by this dialect's names, in the order of the checkpoint's names."""
    specs = [replace(spec, gguf=_tensor_name(spec.gguf, shape.encoder.layers)) for spec in tensor_specs(shape)]
    return sorted(specs, key=lambda spec: spec.checkpoint)


def _tensor_name(name: str, encoder_layers: int) -> str:
    if block := _HEAD_BLOCK.match(name):
        return f"blk.{encoder_layers + int(block[1])}.{name[block.end() :]}"
    for prefix, renamed in _PREFIXES.items():
        if name.startswith(prefix):
            return renamed + name.removeprefix(prefix)
    return name


def bucket_name(name: str) -> str:
    """`choice:3-5` -> `choice.3_5`, `choice:11+` -> `choice.11`."""
    return name.replace(":", ".").replace("-", "_").rstrip("+")


def checkpoint_bucket(name: str) -> str:
    """`choice.3_5` -> `choice:3-5`, `choice.11` -> `choice:11+`: a lone number is open-ended from 3 on, because the
    reference has no bucket of one count but 2.
    """
    kind, _, counts = name.partition(".")
    if counts.isdecimal() and int(counts) > 2:
        counts += "+"
    return f"{kind}:{counts.replace('_', '-')}"


def systemone_template(cls: str, sep: str, mask: str) -> str:
    """The Jinja prompt: how stock llama.cpp builds the sequence that `layouts.laya.prompt` builds here."""

    def text(name: str) -> str:
        return "{{ " + name + " if " + name + " is string else " + name + " | tojson }}"

    description = text("o.description")
    option = (
        "{% if type == 'choice' %}{{ o.key }}{% if o.description %}: " + description + "{% endif %}"
        "{% elif type == 'score' %}level {{ o.key }}: " + description + "{% else %}{{ o.key }}: "
        "{% if o.description %}" + description + "{% elif o.key == 'true' %}yes, the statement holds"
        "{% else %}no, the statement does not hold{% endif %}{% endif %}"
    )
    options = "{% for o in options %}" + mask + " " + option + "{% endfor %}"
    return f"{cls}{{{{ type }}}} question: {text('instructions')}{sep}{options}{sep}{text('state')}{sep}"
