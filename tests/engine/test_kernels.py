"""Kernels: each block of the forward pass against its plain form in double, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import layactl
from layactl.core.arithmetic import AttentionWeights, Kernels
from layactl.core.rope import Rope
from layactl.errors import ModelLoadError
from layactl.kernels import choose, probe
from layactl.kernels.attention import BAND, attend, attend_rows
from layactl.kernels.onednn import OneDnnBf16Kernels, OneDnnKernels
from layactl.kernels.reference import ReferenceKernels
from layactl.kernels.row_bits import row_bits
from layactl.parity.shipped import shipped
from layactl.parity.tiers import read_tiers
from layactl.reporting.identity import host

WIDTH, HEADS, HALF_WINDOW = 48, 3, 8
AVX512 = "avx512f" in host()["instruction_sets"]
# Measured: 6e-7 and 7e-3.
TOLERANCE = {"f32": 5e-6, "bf16": 3e-2}
# torch says by itself on which processors it multiplies bfloat16.
BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
KERNELS: dict[str, Callable[[], Kernels]] = {
    name: make for name, make in choose._HERE.items() if BF16 or make is not OneDnnBf16Kernels
}


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return KERNELS[request.param]()


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


def attention_weights(bias: bool) -> AttentionWeights:
    scale = np.float32(WIDTH**-0.5)
    return AttentionWeights(
        random(3 * WIDTH, WIDTH, seed=1) * scale * 2,
        random(3 * WIDTH, seed=2) if bias else None,
        random(WIDTH, WIDTH, seed=3) * scale,
        random(WIDTH, seed=4) if bias else None,
    )


def plain_attention(
    x: torch.Tensor, weights: AttentionWeights, rope: Rope | None, half_window: int | None
) -> torch.Tensor:
    """One sequence, in double, with a mask over the whole square."""

    def dense(x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
        return F.linear(x, torch.from_numpy(weight).double(), None if bias is None else torch.from_numpy(bias).double())

    tokens = len(x)
    qkv = dense(x.double(), weights.qkv, weights.qkv_bias).view(tokens, 3, HEADS, WIDTH // HEADS)
    query, key, value = qkv.permute(1, 2, 0, 3)
    if rope is not None:
        query, key = rope.rotate(query), rope.rotate(key)
    scores = query @ key.transpose(1, 2) / (WIDTH // HEADS) ** 0.5
    if half_window is not None:
        position = torch.arange(tokens)
        scores = scores.masked_fill((position[:, None] - position).abs() > half_window, float("-inf"))
    attended = (scores.softmax(-1) @ value).transpose(0, 1).reshape(tokens, WIDTH)
    return dense(attended, weights.out, weights.out_bias)


# Around the window, around a band, and past several: where the last band is one row, whole, or one row short.
LENGTHS = (1, 2, HALF_WINDOW, HALF_WINDOW + 1, BAND, BAND + 2 * HALF_WINDOW, BAND + 2 * HALF_WINDOW + 1, 2 * BAND + 1)


@pytest.mark.parametrize("tokens", [*LENGTHS, 3 * BAND, 4 * BAND - 1, 150])
@pytest.mark.parametrize("half_window", [HALF_WINDOW, None])
@pytest.mark.parametrize("turned", [True, False])
def test_attention_is_the_plain_one(tokens: int, half_window: int | None, turned: bool, kernels: Kernels):
    rope = Rope(10_000.0, WIDTH // HEADS) if turned else None
    weights, x = attention_weights(bias=not turned), torch.from_numpy(random(tokens, WIDTH))
    before = x.clone()
    found = kernels.make_attention(weights, HEADS, rope, half_window)(x, [tokens])
    assert error(found, plain_attention(x, weights, rope, half_window)) < TOLERANCE[kernels.precision]
    assert torch.equal(x, before)


def test_sequences_behind_each_other_do_not_see_each_other(kernels: Kernels):
    weights, rope, lengths = attention_weights(bias=False), Rope(10_000.0, WIDTH // HEADS), [5, 70, 1, 33]
    attention = kernels.make_attention(weights, HEADS, rope, HALF_WINDOW)
    x = torch.from_numpy(random(sum(lengths), WIDTH))
    exact = torch.cat([plain_attention(part, weights, rope, HALF_WINDOW) for part in x.split(lengths)])
    assert error(attention(x, lengths), exact) < TOLERANCE[kernels.precision]


def test_chosen_rows_are_rows_of_the_whole(kernels: Kernels):
    weights, lengths = attention_weights(bias=True), [9, 40]
    attention = kernels.make_attention(weights, HEADS)
    x, rows = torch.from_numpy(random(49, WIDTH)), [0, 3, 8, 9, 9 + 39]
    whole = torch.cat([plain_attention(part, weights, None, None) for part in x.split(lengths)])
    found = attention(x, lengths, rows)
    assert found.shape == (5, WIDTH)
    assert error(found, whole[rows]) < TOLERANCE[kernels.precision]


@pytest.mark.skipif(not AVX512, reason="elsewhere nobody measured")
@pytest.mark.parametrize("heads", [1, 12])
@pytest.mark.parametrize("half_window", [HALF_WINDOW, None])
def test_attention_has_the_same_bits_with_any_number_of_threads(
    heads: int, half_window: int | None, threads: Callable[[int], None]
):
    """Few tokens or read rows, and one head alone, are what MKL otherwise multiplies in another order (Zen 4)."""
    for tokens in (5, 9, 20, 33, 150, 300):
        qkv = torch.from_numpy(random(tokens, 3, heads, 64))
        found = []
        for count in (1, 2, 3, 4):
            threads(count)
            attended = [attend(qkv[:, :2], qkv[:, 2], half_window)]
            found.append(attended + [attend_rows(qkv[:, :2], qkv[:, 2], range(rows)) for rows in (1, 2, 3, 4)])
        assert all(torch.equal(one, other) for others in found[1:] for one, other in zip(found[0], others, strict=True))


def test_the_gated_mlp_is_the_plain_one(kernels: Kernels):
    up, down, x = random(2 * 56, WIDTH, seed=1), random(WIDTH, 56, seed=2), torch.from_numpy(random(37, WIDTH))
    inner, gate = F.linear(x.double(), torch.from_numpy(up).double()).chunk(2, dim=-1)
    exact = F.linear(F.gelu(inner) * gate, torch.from_numpy(down).double())
    assert error(kernels.make_gated_mlp(up, down)(x), exact) < TOLERANCE[kernels.precision]


def filled(kernels: Kernels) -> Kernels:
    """With the weights of a layer."""
    kernels.make_attention(AttentionWeights(random(3 * WIDTH, WIDTH), None, random(WIDTH, WIDTH), None), HEADS)
    kernels.make_gated_mlp(random(2 * 56, WIDTH), random(WIDTH, 56))
    return kernels


@pytest.mark.skipif(not AVX512, reason="other kernels may tell apart what these do not")
def test_a_row_among_many_has_the_bits_that_it_has_among_few():
    kernels = filled(OneDnnKernels())
    bits = {rows: kernels.row_bits(rows) for rows in (2, 3, 17, 64, 100, 512)}
    assert len(set(bits.values())) == 1 and None not in bits.values()


def test_of_plain_torch_nothing_is_known_about_its_rows():
    assert filled(ReferenceKernels()).row_bits(64) is None


def test_rows_that_depend_on_their_place_or_number_are_found_out():
    def by_place(x: torch.Tensor) -> torch.Tensor:
        out = x * 2
        out[len(x) // 2 :] += 1e-6 * x[len(x) // 2 :]
        return out

    def by_number(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if len(x) < 33 else x * 2 + 1e-6 * x

    exact = [(WIDTH, lambda x: x * 2)]
    assert row_bits(exact, 8, torch.float32) == row_bits(exact, 64, torch.float32)
    assert row_bits([*exact, (WIDTH, by_place)], 8, torch.float32) is None
    assert row_bits([(WIDTH, by_number)], 8, torch.float32) != row_bits([(WIDTH, by_number)], 64, torch.float32)
    assert row_bits([(WIDTH, by_number)], 8, torch.float32) == row_bits([(WIDTH, by_number)], 32, torch.float32)


# -- choosing ---------------------------------------------------------------------------------------------------------


def test_every_kernel_here_passes_its_probe(kernels: Kernels):
    assert probe.flaw(kernels) is None


class Broken(ReferenceKernels):
    """Adds to the last output of a product what a wrong last register block would."""

    def make_linear(self, weight: Any, bias: Any) -> Any:
        product = super().make_linear(weight, bias)

        def run(x: torch.Tensor) -> torch.Tensor:
            out = product(x).clone()
            out[-1, -1] += 0.5
            return out

        return run


class Absent(ReferenceKernels):
    def make_linear(self, weight: Any, bias: Any) -> Any:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")


class NotANumber(ReferenceKernels):
    def make_linear(self, weight: Any, bias: Any) -> Any:
        return lambda x: torch.full((len(x), len(weight)), float("nan"))


class WithoutGate(ReferenceKernels):
    def make_gated_mlp(self, up: Any, down: Any) -> Any:
        raise NotImplementedError("Could not run 'mkldnn::_linear_pointwise.binary' with arguments from ...")


class NotANumberAtTheGate(ReferenceKernels):
    def make_gated_mlp(self, up: Any, down: Any) -> Any:
        return lambda x: torch.full((len(x), len(down)), float("nan"))


class OtherGelu(ReferenceKernels):
    """The approximation with tanh."""

    def make_gated_mlp(self, up: Any, down: Any) -> Any:
        expand, contract = self.make_linear(up, None), self.make_linear(down, None)

        def mlp(x: torch.Tensor) -> torch.Tensor:
            inner, gate = expand(x).chunk(2, dim=-1)
            return contract(F.gelu(inner, approximate="tanh") * gate)

        return mlp


FLAWED = {
    "wrong": (Broken, "their products are off by"),
    "not there": (Absent, "torch cannot run them here"),
    "not finite": (NotANumber, "off by nan"),
    "gate not there": (WithoutGate, "torch cannot run them here"),
    "gate not finite": (NotANumberAtTheGate, "off by nan"),
    "another GELU": (OtherGelu, "their products are off by"),
}


@pytest.mark.parametrize("name", FLAWED)
def test_a_flawed_kernel_is_not_chosen_and_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch):
    make, fragment = FLAWED[name]
    monkeypatch.setitem(choose._HERE, "onednn", make)
    chosen, _ = choose.choose_kernels("auto")
    assert type(chosen) is ReferenceKernels
    with pytest.raises(ModelLoadError) as error:
        choose.choose_kernels("auto", "onednn")
    assert fragment in error.value.message


@pytest.mark.parametrize("problem", [RuntimeError("no such operator"), NotImplementedError()])
def test_a_torch_without_the_gated_product_runs_the_reference(problem: Exception, monkeypatch: pytest.MonkeyPatch):
    class Plain:
        """The product alone, as of a torch that cannot multiply within it."""

        def __init__(self, run: Any) -> None:
            self._run = run

        def __call__(self, *arguments: Any) -> Any:
            return self._run(*arguments)

        def binary(self, *arguments: Any) -> Any:
            raise problem

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", Plain(torch.ops.mkldnn._linear_pointwise))
    assert choose.choose_kernels("auto")[0].name == "reference"
    with pytest.raises(ModelLoadError, match="torch cannot run them here"):
        choose.choose_kernels("auto", "onednn")


def test_auto_takes_the_fastest_exact_one():
    assert choose.choose_kernels("auto")[0].name == "onednn"


def test_products_of_lowered_precision_are_refused():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        if probe.flaw(ReferenceKernels()) is None:
            pytest.skip("this CPU multiplies float32 exactly whatever torch is told")
        with pytest.raises(ModelLoadError, match="does not multiply float32 matrices exactly"):
            choose.choose_kernels("auto")
    finally:
        torch.set_float32_matmul_precision(before)


# -- the whole model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_answers_say_which_kernels_made_them(name: str, gguf_for: Callable[..., Path]):
    model = layactl.load(gguf_for("tiny-english"), kernels=name)
    runtime = model.decide("text", {"q": {"type": "noul", "instructions": "Is it?"}})["runtime"]
    assert (runtime["kernels"], runtime["precision"]) == (name, "bf16" if name.endswith("bf16") else "f32")


def test_every_kernel_is_exact_or_its_tier_is_registered():
    tiers = read_tiers(shipped("tiers.json"))
    for name in KERNELS:
        precision = choose.choose_kernels("auto", name)[0].precision
        assert precision == "f32" or any(precision in row.activations for row in tiers[f"{precision}-class"].rows)
