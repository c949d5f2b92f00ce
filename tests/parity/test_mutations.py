"""The golden files notice every mistake that has been made, or could be made, in porting the reference.

Each mutation breaks one rule in-process and must make one check fail by name; a check that fails by accident, or a
golden file that lacks the question which tells two rules apart, shows here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import layactl
from layactl.core import calibration, encoder, rope, tokenizer
from layactl.core.model_shape import EncoderShape, ModelShape
from layactl.engine import decider, request
from layactl.gguf_file.laya_dialect import MappedWeights
from layactl.kernels import choose, reference
from layactl.layouts.interface import StateTokens
from layactl.layouts.laya import LayaLayout, answer, head, prompt, question

from .comparison import Comparison
from .conftest import COMMITTED
from .golden_file import Golden, golden_path, read_golden

Patch = Callable[[pytest.MonkeyPatch], None]
MULTILINGUAL, ENGLISH = COMMITTED


@pytest.fixture(scope="module")
def goldens() -> dict[str, Golden]:
    return {name: read_golden(golden_path(name)) for name in COMMITTED}


# -- the encoder ----------------------------------------------------------------------------------------------------


def flipped_rope(patch: pytest.MonkeyPatch) -> None:
    """(a, b) turned by -angle is (b, a) turned by +angle, swapped back."""
    original = rope.Rope.rotate

    def rotate(self: rope.Rope, x: Any) -> Any:
        half = x.shape[-1] // 2
        return original(self, x.roll(half, -1)).roll(half, -1)

    patch.setattr(rope.Rope, "rotate", rotate)


def interleaved_rope(patch: pytest.MonkeyPatch) -> None:
    """Pairs (0, 1), (2, 3), ... instead of (0, n/2), (1, n/2 + 1), ..."""
    original = rope.Rope.rotate

    def rotate(self: rope.Rope, x: Any) -> Any:
        *rest, width = x.shape
        turned = original(self, x.reshape(*rest, width // 2, 2).transpose(-1, -2).reshape(x.shape))
        return turned.reshape(*rest, 2, width // 2).transpose(-1, -2).reshape(x.shape)

    patch.setattr(rope.Rope, "rotate", rotate)


def exclusive_window(patch: pytest.MonkeyPatch) -> None:
    """abs(i - j) < half instead of <=."""
    original = reference.window_mask
    patch.setattr(reference, "window_mask", lambda tokens, half: original(tokens, half - 1))


def no_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reference, "window_mask", lambda tokens, half: None)


def causal(patch: pytest.MonkeyPatch) -> None:
    _patch_torch(patch, reference, scaled_dot_product_attention=lambda attend: partial(_causal, attend))


def _causal(attend: Callable[..., Any], *tensors: Any, attn_mask: Any) -> Any:
    import torch

    tokens = tensors[0].shape[-2]
    past = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    return attend(*tensors, attn_mask=past if attn_mask is None else past & attn_mask)


def shifted_global_layers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EncoderShape, "is_global", lambda self, layer: (layer + 1) % self.global_every == 0)


def swapped_thetas(patch: pytest.MonkeyPatch) -> None:
    _patch_shape(patch, lambda shape: replace(shape, global_theta=shape.local_theta, local_theta=shape.global_theta))


def smaller_norm_eps(patch: pytest.MonkeyPatch) -> None:
    _patch_shape(patch, lambda shape: replace(shape, norm_eps=1e-12))


def normed_layer_0(patch: pytest.MonkeyPatch) -> None:
    original = encoder.Encoder.__init__

    def init(self: encoder.Encoder, *arguments: Any) -> None:
        original(self, *arguments)
        self._layers[0]._attn_norm = self._embedding_norm

    patch.setattr(encoder.Encoder, "__init__", init)


def swapped_geglu_halves(patch: pytest.MonkeyPatch) -> None:
    original = MappedWeights.__getitem__

    def read(self: MappedWeights, name: str) -> Any:
        values = original(self, name)
        if name.endswith("mlp.Wi.weight"):
            half = len(values) // 2
            values[:half], values[half:] = values[half:].copy(), values[:half].copy()
        return values

    patch.setattr(MappedWeights, "__getitem__", read)


def tanh_gelu(patch: pytest.MonkeyPatch) -> None:
    _patch_torch(patch, reference, gelu=lambda gelu: partial(gelu, approximate="tanh"))
    # The probe at load would refuse such kernels before any answer.
    patch.setattr(choose, "flaw", lambda kernels: None)


# -- the head -------------------------------------------------------------------------------------------------------


def gelu_head(patch: pytest.MonkeyPatch) -> None:
    from torch import Tensor
    from torch.nn.functional import gelu

    patch.setattr(Tensor, "relu_", lambda x: gelu(x))


def tanh_gelu_scorer(patch: pytest.MonkeyPatch) -> None:
    _patch_torch(patch, head, gelu=lambda gelu: partial(gelu, approximate="tanh"))


def encoder_heads_in_the_head(patch: pytest.MonkeyPatch) -> None:
    original = LayaLayout.build_head

    def build(self: LayaLayout, weights: Any, shape: ModelShape, kernels: Any) -> Any:
        same = SimpleNamespace(**asdict(shape.head), heads=shape.encoder.heads)
        return original(self, weights, replace(shape, head=same), kernels)

    patch.setattr(LayaLayout, "build_head", build)


def wrong_type_embedding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prompt, "QUESTION_TYPES", ("score", "noul", "choice"))


def act_features_of_the_calibrated_logits(patch: pytest.MonkeyPatch) -> None:
    original = head._act_features
    patch.setattr(head, "_act_features", lambda logits: original(logits / 1.3))


def act_features_of_one_option(patch: pytest.MonkeyPatch) -> None:
    """Without a second option, its probability taken for 1 instead of 0."""
    original = head._act_features

    def features(logits: Any) -> Any:
        values = original(logits)
        if len(logits) == 1:
            values[1] = 0.0
        return values

    patch.setattr(head, "_act_features", features)


# -- the answer -----------------------------------------------------------------------------------------------------


def next_temperature_bucket(patch: pytest.MonkeyPatch) -> None:
    """2, 5 and 10 options counted to the bucket above."""
    original = calibration.find_bucket
    patch.setattr(calibration, "find_bucket", lambda buckets, options: original(buckets, options + 1))


def no_temperature_buckets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calibration, "find_bucket", lambda buckets, options: "*")


def unclamped_temperature(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calibration.Calibration, "clamped", lambda self, temperature: temperature)


def swapped_noul(patch: pytest.MonkeyPatch) -> None:
    original = answer.softmax
    patch.setattr(answer, "softmax", lambda logits, temperature: original(logits, temperature)[::-1])


def confidence_in_bits(patch: pytest.MonkeyPatch) -> None:
    original = calibration.entropy_confidence
    patch.setattr(calibration, "entropy_confidence", lambda p: 1 - (1 - original(p)) / math.log(2))


# -- the sequence ---------------------------------------------------------------------------------------------------


def list_state_cut_from_the_right(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decider, "StateTokens", lambda ids, from_left: StateTokens(ids, False))


def every_state_cut_from_the_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decider, "StateTokens", lambda ids, from_left: StateTokens(ids, True))


def no_space_before_options(patch: pytest.MonkeyPatch) -> None:
    original = prompt.build_sequence

    def build(tok: tokenizer.Tokenizer, *arguments: Any) -> Any:
        bare = SimpleNamespace(
            special=tok.special, mask_text=tok.mask_text, encode=lambda text: tok.encode(text.removeprefix(" "))
        )
        return original(bare, *arguments)

    patch.setattr(prompt, "build_sequence", build)


def mask_text_kept_in_the_state(patch: pytest.MonkeyPatch) -> None:
    class Kept(str):
        def replace(self, *arguments: Any) -> str:
            return str(self)

    original = request.Request
    patch.setattr(request, "Request", lambda state_text, **rest: original(state_text=Kept(state_text), **rest))


def mask_text_kept_in_the_question(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prompt, "_unmask", lambda tok, text: text)


def mask_text_dropped(patch: pytest.MonkeyPatch) -> None:
    """Replaced by nothing instead of a space."""
    patch.setattr(prompt, "_unmask", lambda tok, text: text.replace(tok.mask_text, ""))


def escaped_json(patch: pytest.MonkeyPatch) -> None:
    """Structured values with \\u00e9 instead of é."""
    from json import dumps

    patch.setattr("layactl.core.strict_json.dumps", dumps)


def falsy_description_dropped(patch: pytest.MonkeyPatch) -> None:
    """0, false, [] taken for no description."""
    original = question._noul_options
    patch.setattr(
        question,
        "_noul_options",
        lambda descriptions, words: original({key: value or None for key, value in descriptions.items()}, words),
    )


def first_noul_key_wins(patch: pytest.MonkeyPatch) -> None:
    original = question._noul_descriptions

    def descriptions(criteria: Any, where: str) -> Any:
        return original(dict(reversed(criteria.items())) if isinstance(criteria, dict) else criteria, where)

    patch.setattr(question, "_noul_descriptions", descriptions)


def _constant(module: Any, name: str, value: int) -> Patch:
    return lambda patch: patch.setattr(module, name, value)


# -- the tokenizer --------------------------------------------------------------------------------------------------


def no_nfc(patch: pytest.MonkeyPatch) -> None:
    _patch_tokenizer(patch, lambda data: replace(data, normalizer="none"))


def no_lstrip(patch: pytest.MonkeyPatch) -> None:
    _patch_tokenizer(patch, lambda data: replace(data, added=[replace(token, lstrip=False) for token in data.added]))


def no_normalized(patch: pytest.MonkeyPatch) -> None:
    _patch_tokenizer(patch, lambda data: replace(data, added=[replace(t, normalized=False) for t in data.added]))


def no_user_defined_tokens(patch: pytest.MonkeyPatch) -> None:
    _patch_tokenizer(patch, lambda data: replace(data, added=[token for token in data.added if token.control]))


MUTATIONS: dict[str, tuple[Patch, str, tuple[str, ...]]] = {
    "RoPE turns the other way": (flipped_rope, "logits", COMMITTED),
    "RoPE pairs neighbours": (interleaved_rope, "logits", COMMITTED),
    "the window excludes its edge": (exclusive_window, "logits", COMMITTED),
    "every layer sees everything": (no_window, "logits", COMMITTED),
    "attention sees the past only": (causal, "logits", COMMITTED),
    "the global layers are one off": (shifted_global_layers, "logits", COMMITTED),
    # The multilingual family has one theta.
    "global and local theta swapped": (swapped_thetas, "logits", (ENGLISH,)),
    "norm eps 1e-12": (smaller_norm_eps, "logits", COMMITTED),
    "layer 0 has a norm": (normed_layer_0, "logits", COMMITTED),
    "GeGLU halves swapped": (swapped_geglu_halves, "logits", COMMITTED),
    "tanh GELU in the encoder": (tanh_gelu, "logits", COMMITTED),
    "GELU for ReLU in the head": (gelu_head, "logits", COMMITTED),
    "tanh GELU in the scorer": (tanh_gelu_scorer, "logits", COMMITTED),
    "the encoder's head count in the head": (encoder_heads_in_the_head, "logits", COMMITTED),
    "another type's embedding": (wrong_type_embedding, "logits", COMMITTED),
    "act features of calibrated logits": (act_features_of_the_calibrated_logits, "act logits", COMMITTED),
    "act features of one option": (act_features_of_one_option, "act logits", COMMITTED),
    # The multilingual family is uncalibrated.
    "the temperature bucket above": (next_temperature_bucket, "answer", (ENGLISH,)),
    "no temperature buckets": (no_temperature_buckets, "answer", (ENGLISH,)),
    "a temperature below the clamp": (unclamped_temperature, "answer", (ENGLISH,)),
    "noul is P(false)": (swapped_noul, "answer", COMMITTED),
    "confidence in bits": (confidence_in_bits, "answer", COMMITTED),
    "a list state cut from the right": (list_state_cut_from_the_right, "ids", COMMITTED),
    "every state cut from the left": (every_state_cut_from_the_left, "ids", COMMITTED),
    "no space before an option": (no_space_before_options, "ids", COMMITTED),
    "the mask's text kept in the state": (mask_text_kept_in_the_state, "ids", COMMITTED),
    "the mask's text kept in a question": (mask_text_kept_in_the_question, "ids", COMMITTED),
    "the mask's text dropped": (mask_text_dropped, "ids", COMMITTED),
    "JSON escapes": (escaped_json, "ids", COMMITTED),
    "falsy descriptions dropped": (falsy_description_dropped, "ids", COMMITTED),
    "the first noul key wins": (first_noul_key_wins, "ids", COMMITTED),
    "options keep 49 tokens": (_constant(prompt, "OPTION_TOKENS", 49), "ids", COMMITTED),
    "the head spares 15 tokens": (_constant(prompt, "_SPARE_TOKENS", 15), "ids", COMMITTED),
    "the head spares 17 tokens": (_constant(prompt, "_SPARE_TOKENS", 17), "ids", COMMITTED),
    "options cut to 3 tokens": (_constant(prompt, "_MIN_OPTION_TOKENS", 3), "ids", COMMITTED),
    "the head cut to 7 tokens": (_constant(prompt, "_MIN_HEAD_TOKENS", 7), "ids", COMMITTED),
    # The metaspace family has no such normalizer and no such flags.
    "no NFC": (no_nfc, "ids", (ENGLISH,)),
    "lstrip lost": (no_lstrip, "texts", (ENGLISH,)),
    "normalized lost": (no_normalized, "texts", (ENGLISH,)),
    "user-defined tokens lost": (no_user_defined_tokens, "ids", COMMITTED),
}
TABLE = [pytest.param(family, *row[:2], id=f"{family}: {name}") for name, row in MUTATIONS.items() for family in row[2]]


@pytest.mark.parametrize(("family", "mutate", "check"), TABLE)
def test_a_mutation_fails_its_check(
    family: str,
    mutate: Patch,
    check: str,
    goldens: dict[str, Golden],
    gguf_of: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = gguf_of(family, "f32")
    mutate(monkeypatch)
    comparison = Comparison(layactl.load(path, kernels="reference")).compare_texts(goldens[family].texts)
    for case, outcome in goldens[family].requests:
        if comparison.failed()[check]:
            break
        comparison.compare(case, outcome)
    assert comparison.failed()[check], f"went unnoticed; other checks: {comparison.failed()}"


@pytest.mark.parametrize("family", COMMITTED)
def test_without_a_mutation_no_check_fails(
    family: str, goldens: dict[str, Golden], gguf_of: Callable[[str, str], Path]
) -> None:
    assert (
        Comparison(layactl.load(gguf_of(family, "f32"), kernels="reference")).compare_golden(goldens[family]).failed()
        == {}
    )


def _patch_torch(patch: pytest.MonkeyPatch, module: Any, **changes: Callable[[Any], Any]) -> None:
    """Give one module other functions than torch.nn.functional's, made of those."""
    functional = module.F
    names = ("layer_norm", "linear", "scaled_dot_product_attention", "gelu", "pad")
    functions = {name: getattr(functional, name) for name in names}
    changed = {name: change(functions[name]) for name, change in changes.items()}
    patch.setattr(module, "F", SimpleNamespace(**functions | changed))


def _patch_shape(patch: pytest.MonkeyPatch, change: Callable[[EncoderShape], EncoderShape]) -> None:
    original = encoder.Encoder.__init__

    def init(self: encoder.Encoder, weights: Any, shape: EncoderShape, *rest: Any) -> None:
        original(self, weights, change(shape), *rest)

    patch.setattr(encoder.Encoder, "__init__", init)


def _patch_tokenizer(
    patch: pytest.MonkeyPatch, change: Callable[[tokenizer.TokenizerData], tokenizer.TokenizerData]
) -> None:
    original = tokenizer._rebuild
    patch.setattr(tokenizer, "_rebuild", lambda data: original(change(data)))
