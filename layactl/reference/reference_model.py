"""The reference (package laya, PyTorch) over a checkpoint: the answers and raw outputs that layactl is held to.

Whatever would make it compute something other than the float32 model on the CPU is refused, so that no number of it
can be a reference by mistake.
"""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from layactl.checkpoint.folder import read_checkpoint
from layactl.core.model_shape import EncoderShape
from layactl.engine.threads import set_threads
from layactl.errors import ModelLoadError
from layactl.reference.private_copy import private_copy

LAYA_VERSION = "0.3.21"
PACKAGES = ("laya", "torch", "transformers", "tokenizers", "numpy")
_HINT = "pip install 'layactl[reference]'"
# float32 against the same formula in double: a theta that is another one shows far above this.
_FREQUENCY_TOLERANCE = 1e-5


@dataclass(frozen=True)
class ReferenceQuestion:
    """One question as the reference read and answered it.

    ids: token ids; markers: position of each option's marker; options: its count of options ("options"), how many
    stayed distinct ("options_distinct") and the cap forced on each ("tokens_per_option"); logits, act_logits: raw, of
    the question run alone and unpadded; answer: as JSON would show it, rounded to four digits.
    """

    ids: list[int]
    markers: list[int]
    options: dict[str, int | None]
    logits: list[float]
    act_logits: list[float]
    answer: dict[str, Any]


@dataclass(frozen=True)
class ReferenceResponse:
    """What the reference made of a request. questions: by id, empty when `refusal` says why there are none."""

    questions: dict[str, ReferenceQuestion] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    refusal: str | None = None


class ReferenceModel:
    """A laya Agent on the CPU in float32, over a private copy of a checkpoint.

    agent: the Agent itself; threads: of the forward pass, in force for the whole process; notes: what the reference
    warned about while it loaded.
    """

    def __init__(self, checkpoint: Path, scratch: Path, *, threads: int | None = None) -> None:
        """scratch: a folder for the copy, which must last as long as the model.

        Raises ModelLoadError (the reference is not installed, is another version, or would not compute in float32 on
        the CPU), CheckpointError, OutputError.
        """
        agent_type = _import_reference("laya.agent").Agent
        shape = read_checkpoint(checkpoint, embed_tokenizer=True).shape
        copy = private_copy(checkpoint, scratch)
        self.threads = set_threads(threads)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self.agent = agent_type(str(copy), device="cpu")
            except Exception as error:  # whatever a foreign loader raises
                raise ModelLoadError(
                    f"the reference does not load it: {type(error).__name__}: {error}", where=str(checkpoint)
                ) from error
        self.notes = [text for text in (str(warning.message) for warning in caught) if text.startswith("laya")]
        refuse_reduced_precision()
        _refuse_other_arithmetic(self.agent)
        refuse_other_rope(self.agent.model.encoder, shape.encoder, str(checkpoint))

    def reduce_precision(self) -> None:
        """Go on in bfloat16 autocast, as its CPU option LAYA_CPU_AMP=bf16 would: for timing only, and never asked."""
        import torch

        self.agent.dtype = torch.bfloat16
        self.agent.amp_enabled = True

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens around it."""
        ids: list[int] = self.agent.tok(text, add_special_tokens=False)["input_ids"]
        return ids

    def ask(self, state: Any, questions: dict[str, Any], *, limits: tuple[int, int] | None = None) -> ReferenceResponse:
        """Answers as its users get them (all questions in one padded batch), raw outputs of each question alone.

        limits: (max_len, head_max_len) in place of the checkpoint's own. Raises ModelLoadError.
        """
        refuse_reduced_precision()
        budgets = {} if limits is None else dict(zip(("max_len", "head_max_len"), limits, strict=True))
        try:
            result = self.agent.system_one(state, questions, **budgets)
        except (ValueError, TypeError) as error:
            return ReferenceResponse(refusal=f"{type(error).__name__}: {error}")
        # Labels that are no strings become the keys that a client sees.
        answers = json.loads(json.dumps(result["answers"]))
        found = {}
        for question_id, item in self.sequences(state, questions, limits=limits).items():
            logits, act_logits = self.forward(item)
            found[question_id] = ReferenceQuestion(
                ids=item["ids"],
                markers=item["markers"],
                options=item["options"],
                logits=logits,
                act_logits=act_logits,
                answer=answers[question_id],
            )
        return ReferenceResponse(found, result["usage"])

    def sequences(
        self, state: Any, questions: dict[str, Any], *, limits: tuple[int, int] | None = None
    ) -> dict[str, dict[str, Any]]:
        """The reference's own items by question id, of questions that it accepts: {"ids", "markers", "qtype", ...}."""
        internal = {question_id: self.agent._to_internal(item) for question_id, item in questions.items()}
        items = self.agent._encode_state(state, list(internal), internal, *(limits or ()))
        return dict(zip(internal, items, strict=True))

    def forward(self, item: dict[str, Any]) -> tuple[list[float], list[float]]:
        """(logits, act logits) of one item, unpadded and raw."""
        import torch

        batch = import_module("laya.common").collate_items([[item]], self.agent.tok.pad_token_id)
        inputs = ("input_ids", "attention_mask", "marker_pos", "marker_mask", "qtype")
        with torch.inference_mode():
            logits, act_logits = self.agent.model(*(batch[name] for name in inputs))
        return logits[0].tolist(), act_logits[0].tolist()


def versions() -> dict[str, str]:
    """What the reference's numbers depend on. Raises ModelLoadError where a package is not installed."""
    try:
        return {name: version(name) for name in PACKAGES}
    except PackageNotFoundError as error:
        raise ModelLoadError(f"the reference needs {error.name}, which is not installed", hint=_HINT) from None


def refuse_reduced_precision() -> None:
    """Refuse a process whose float32 products are not float32. Raises ModelLoadError."""
    import torch

    if torch.is_autocast_enabled("cpu"):
        raise ModelLoadError("autocast is on in this process: the reference would not compute in float32")
    # Told by a product, because the settings that lower the precision are many and differ between versions of torch.
    # The last bit of the factor is one that no shorter format holds; the sum is exact in float32 in any order.
    factor = 1.0 + 2.0**-12
    product = torch.full((64, 64), factor) @ torch.ones(64, 64)
    if product.dtype != torch.float32 or not bool((product == 64 * factor).all()):
        raise ModelLoadError(
            "torch multiplies float32 matrices in a lower precision in this process",
            hint="leave torch.set_float32_matmul_precision and torch.backends...fp32_precision at their defaults",
        )


def _refuse_other_arithmetic(agent: Any) -> None:
    """Refuse an agent that would not run the plain float32 model on the CPU."""
    import torch

    if agent.amp_enabled:
        raise ModelLoadError("the reference would compute under autocast", hint="unset LAYA_CPU_AMP")
    if agent._fast is not None or agent._compiled or agent.model.training:
        raise ModelLoadError("the reference would not run its plain forward pass")
    for name, parameter in agent.model.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ModelLoadError(f"the reference holds {name} as {kind} on {parameter.device}, not as float32 on cpu")


def refuse_other_rope(encoder: Any, shape: EncoderShape, where: str) -> None:
    """Refuse an encoder whose layers turn by other angles than the checkpoint's config says.

    Layer n must hold theta_n^(-2i/d), i = 0 .. d/2 - 1, with d the width of a head and theta_n the config's for the
    layer's kind: versions of transformers fall back to theirs where they do not know a spelling of the config.
    Raises ModelLoadError naming the layer.
    """
    buffers = dict(encoder.named_buffers())
    powers = np.arange(0, shape.head_dim, 2) / shape.head_dim
    for n in range(shape.layers):
        theta = shape.global_theta if shape.is_global(n) else shape.local_theta
        found = _inverse_frequencies(encoder, buffers, n)
        if found is None:
            raise ModelLoadError(f"encoder layer {n} of the reference shows no RoPE frequencies", where=where)
        expected = theta**-powers
        if found.shape != expected.shape or not np.allclose(found, expected, rtol=_FREQUENCY_TOLERANCE, atol=0):
            raise ModelLoadError(
                f"encoder layer {n} of the reference does not use the config's RoPE theta {theta:g}",
                where=where,
                hint="this version of transformers reads the encoder's config differently",
            )


def _inverse_frequencies(encoder: Any, buffers: dict[str, Any], n: int) -> Any:
    """The buffer that layer n reads: its own in transformers 4, in 5 one of the encoder's two, by the layer's type."""
    kind = getattr(encoder.layers[n], "attention_type", None)
    for name in (f"layers.{n}.attn.rotary_emb.inv_freq", f"rotary_emb.{kind}_inv_freq"):
        if name in buffers:
            return buffers[name].numpy()
    return None


def _import_reference(name: str) -> Any:
    """A module of the reference, of the one version that counts."""
    try:
        found = version("laya")
    except PackageNotFoundError:
        raise ModelLoadError("the reference (package laya) is not installed", hint=_HINT) from None
    if found != LAYA_VERSION:
        raise ModelLoadError(f"laya {found} is installed; the reference is laya {LAYA_VERSION}", hint=_HINT)
    # Read when transformers is imported: no TensorFlow, and no question to a hub.
    os.environ.update(USE_TF="0", HF_HUB_OFFLINE="1")
    try:
        return import_module(name)
    except ImportError as error:
        raise ModelLoadError(f"the reference cannot be imported: {error}", hint=_HINT) from error
