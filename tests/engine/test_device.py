"""Devices: the CPU unless asked otherwise, no silent change of place, and one arithmetic on all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import layactl
from layactl.engine import device as device_module
from layactl.engine import model as model_module
from layactl.engine.decider import never, render
from layactl.engine.device import choose_device
from layactl.errors import ModelLoadError, UsageError
from layactl.kernels.choose import choose_kernels

QUESTION = {"q": {"type": "choice", "instructions": "Which?", "criteria": ["a", "b", "c"]}}


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that these devices are there."""

    def pretend(*names: str) -> None:
        monkeypatch.setattr(device_module, "_is_there", lambda name: name in names)

    return pretend


@pytest.mark.parametrize(
    "asked, there, chosen",
    [
        ("cpu", ("cuda",), "cpu"),
        ("cuda", ("cuda", "mps"), "cuda"),
        ("mps", ("mps",), "mps"),
        ("auto", ("cuda", "mps"), "cuda"),
        ("auto", ("mps",), "mps"),
        ("auto", (), "cpu"),
    ],
)
def test_auto_takes_the_first_that_is_there_and_says_where_it_falls_back(asked, there, chosen, present):
    present(*there)
    found, notes = choose_device(asked)
    assert found == chosen
    assert bool(notes) == (asked == "auto" and chosen == "cpu")


@pytest.mark.parametrize("asked", ["cuda", "mps"])
def test_a_device_that_was_asked_for_by_name_is_there_or_the_load_fails(asked: str, present, gguf_for):
    present()
    with pytest.raises(ModelLoadError, match=f"no device '{asked}'"):
        layactl.load(gguf_for(), device=asked)


def test_another_name_is_wrong_usage(gguf_for):
    with pytest.raises(UsageError, match="'tpu'") as caught:
        layactl.load(gguf_for(), device="tpu")
    assert caught.value.hint == "devices: cpu, cuda, mps, auto"


def test_on_a_device_the_kernels_of_the_cpu_are_refused():
    with pytest.raises(ModelLoadError, match="on the CPU only"):
        choose_kernels("auto", "onednn", device="meta")


def test_a_device_that_does_not_multiply_is_found_by_the_probe():
    # A device of torch that holds shapes and no numbers.
    with pytest.raises(ModelLoadError, match="cannot be used"):
        choose_kernels("auto", device="meta")


def test_auto_falls_back_where_the_device_fails_and_a_name_does_not(present, gguf_for, monkeypatch):
    present("cuda")

    def broken(*args: object, device: str = "cpu", **options: object):
        if device != "cpu":
            raise RuntimeError("CUDA out of memory\nmore")
        return choose_kernels(*args, device=device, **options)

    monkeypatch.setattr(model_module, "choose_kernels", broken)
    model = layactl.load(gguf_for(), device="auto")
    assert model.forward.device == "cpu"
    assert any("CUDA out of memory" in note for note in model.notes)
    with pytest.raises(ModelLoadError, match="cuda: CUDA out of memory"):
        layactl.load(gguf_for(), device="cuda")


def test_the_forward_pass_mixes_no_tensor_of_the_cpu_with_those_of_the_device(gguf_for, model_for, monkeypatch):
    """torch's device `meta` holds shapes only, and refuses an operation that meets a tensor of the CPU as any device
    would.
    """
    import torch

    from layactl.engine.forward import ForwardPass
    from layactl.gguf_file.dialect import read_model
    from layactl.gguf_file.reader import GgufFile
    from layactl.kernels.reference import ReferenceKernels
    from layactl.layouts.laya import LAYA

    model = model_for()
    sequences = render(model, model.parse({"state": "a few words " * 12, "questions": QUESTION})).sequences
    loaded = read_model(GgufFile(gguf_for()), None)
    places: list[str] = []
    # What is read at the end; there are no numbers to read.
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: places.append(self.device.type) or [0.0] * len(self))
    forward = ForwardPass(loaded.weights, loaded.shape, LAYA, ReferenceKernels("meta"))
    outputs = forward.run(sequences, never)
    assert set(places) == {"meta"} and len(outputs) == 1
    with pytest.raises(RuntimeError):
        forward._encode([sequences[0].ids]) + torch.zeros(len(sequences[0].ids), 1)
