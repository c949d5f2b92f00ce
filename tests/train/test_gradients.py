"""Logits, losses and every gradient, against the reference's module in float64, dropout off."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint_factory import HEADLESS, TINY_MULTILINGUAL, WIDE, write_checkpoint

from layactl.checkpoint.folder import read_checkpoint
from layactl.train.batches import collate
from layactl.train.examples import read_split, text_side
from layactl.train.loss import policy_loss, proper_reward, soft_cross_entropy
from layactl.train.network import DecisionNetwork
from layactl.train.run import load_network
from layactl.train.settings import RlcdSettings
from tests.train.data import decision, write

pytestmark = pytest.mark.reference
common = pytest.importorskip("laya.common")

# Longer than the window of the sliding layers, and of different lengths, so that padding and window both matter.
PADDING = (" and so on" * 12, "", " or not" * 5)


@pytest.fixture(params=["tiny-multilingual", "wide", "headless"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    recipes = {"tiny-multilingual": TINY_MULTILINGUAL, "wide": WIDE, "headless": HEADLESS}
    write_checkpoint(replace(recipes[request.param], matrix_dtype="F32"), tmp_path / request.param)
    return tmp_path / request.param


def reference_of(folder: Path) -> torch.nn.Module:
    from safetensors.torch import load_file

    config = json.loads((folder / "rl_agent_config.json").read_text())
    model = common.build_model(config, str(folder / "encoder"), pretrained=False)
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    model = model.double().eval()
    # What goes into its act head is cast to float32, whatever the weights are.
    model.act_head.float()
    return model


def test_every_gradient_is_the_references(checkpoint: Path, tmp_path: Path):
    base = read_checkpoint(checkpoint)
    records = [decision("g", n) for n in range(3)]
    for record, more in zip(records, PADDING, strict=True):
        record["state"] += more
    split = read_split("train", [write(tmp_path / "d.jsonl", records)], text_side(base), "allow")
    batch = collate(split.examples, 0)
    batch = replace(batch, targets=batch.targets.double())
    ours, theirs = load_network(base, 0.0).double(), reference_of(checkpoint)

    found = ours(batch)
    expected = theirs(batch.ids, batch.present.long(), batch.markers, batch.options, batch.type_ids)
    for network, (logits, act_logits) in ((ours, found), (theirs, expected)):
        loss = soft_cross_entropy(logits.double(), batch.targets).mean()
        loss = loss + act_logits.double().square().mean()
        torch.manual_seed(5)
        noise_loss = policy_loss(logits.double(), batch.targets, batch.type_ids, batch.options, 0.3, RlcdSettings())
        (loss + noise_loss.mean()).backward()
        assert all(p.grad is not None for p in network.parameters())

    # It casts its logits too.
    torch.testing.assert_close(found[0].float(), expected[0].float(), rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1].float(), expected[1].float(), rtol=0, atol=1e-5)
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    assert set(gradients) == {name for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        wanted = gradients[name].double()
        # A shift of all logits changes no loss: the gradient of the scorer's last bias is nothing but rounding.
        scale = float(wanted.abs().max())
        assert scale > 1e-6 or name == "scorer.3.bias", name
        torch.testing.assert_close(
            parameter.grad, wanted, rtol=0, atol=2e-5 * scale + 1e-7, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("spherical", [0.0, 0.5])
@pytest.mark.parametrize("ranked", [0.0, 1.0])
def test_the_reward_is_the_references(spherical: float, ranked: float):
    torch.manual_seed(1)
    options = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]], dtype=torch.bool)
    type_ids = torch.tensor([2, 1, 1, 0])
    reports = torch.softmax(torch.randn(5, 4, 4).masked_fill(~options, -1e4), -1)
    targets = torch.softmax(torch.randn(4, 4).masked_fill(~options, -1e4), -1)
    found = proper_reward(reports, targets, type_ids, options, spherical=spherical, ranked=ranked)
    expected = common.proper_reward(reports, targets, type_ids, options, w_sph=spherical, w_rps=ranked)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_network_has_the_parameters_of_the_checkpoint(checkpoint: Path):
    base = read_checkpoint(checkpoint)
    network = DecisionNetwork(base.shape, 0.1)
    assert {name: tuple(p.shape) for name, p in network.named_parameters()} == {
        name: tensor.shape for name, tensor in base.tensors.items()
    }
