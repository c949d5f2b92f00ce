"""The shipped laya-nano: small, read alike by the reference, and worth what its card says."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nano_data.build import records

import layactl
from layactl.checkpoint.folder import read_checkpoint
from layactl.convert.convert import convert
from layactl.engine.stamp import set_spec
from layactl.router.score import Router
from tests.conftest import CHECKPOINTS

NANO = CHECKPOINTS / "laya-nano"
DEMO = CHECKPOINTS / "demo.jsonl"


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> layactl.Model:
    path = tmp_path_factory.mktemp("nano") / "laya-nano.gguf"
    convert(NANO, path)
    set_spec(path, NANO / "decision.spec.json")
    return layactl.load(path)


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    return json.loads((NANO / "metrics.json").read_text())


def demo() -> list[dict[str, Any]]:
    return [json.loads(line) for line in DEMO.read_text(encoding="utf-8").splitlines()]


def test_it_is_small():
    tensors = read_checkpoint(NANO).tensors
    assert 1.9e6 <= sum(tensor.size for tensor in tensors.values()) <= 6e6
    assert {tensor.dtype for tensor in tensors.values()} == {"F16"}
    assert sum(path.stat().st_size for path in NANO.rglob("*") if path.is_file()) <= 12e6


@pytest.mark.reference
def test_the_reference_answers_the_same(nano: layactl.Model, tmp_path: Path):
    shutil.copytree(NANO, tmp_path / "model")
    agent = pytest.importorskip("laya.agent").Agent(str(tmp_path / "model"), device="cpu")
    for record in demo():
        if "questions" not in record:
            continue
        ours = nano.decide(record["state"], record["questions"])["answers"]
        theirs = agent.predict(record["state"], record["questions"])["answers"]
        for name, question in record["questions"].items():
            if question["type"] == "noul":
                assert ours[name]["noul"] == pytest.approx(theirs[name]["noul"], abs=2e-4)
            else:
                expected = list(theirs[name]["probabilities"].values())
                np.testing.assert_allclose(list(ours[name]["probabilities"].values()), expected, atol=2e-4)


def test_the_spec_holds_a_calibration_of_decisions_and_of_the_router(nano: layactl.Model):
    assert nano.spec.source == "gguf"
    assert nano.spec.router.platt is not None
    config = json.loads((NANO / "rl_agent_config.json").read_text())
    for kind, temperature in zip(("choice", "score", "noul"), config["temperature"], strict=True):
        assert 0.5 <= temperature <= 5
        assert nano.spec.calibration.temperature_for(kind, 8 if kind != "noul" else 2) > 0
    router = Router(nano)
    (request,) = [record for record in demo() if "candidates" in record]
    scores = {score["id"]: score for score in router.score(router.parse(request))["scores"]}
    assert all(score["calibrated"] for score in scores.values())
    assert scores["hosted/large"]["p_success"] > scores["local/small"]["p_success"] + 0.03


def test_the_card_makes_the_claims(card: dict[str, Any]):
    """Better than both rules by more than chance, calibrated, and the router better than its cards' pass rates."""
    found = card["decisions"]["all"]
    assert found["laya-nano"]["ece"][0] <= 0.05
    for rule in ("majority", "tfidf-logreg"):
        assert found[rule]["model_ahead"][1] > 0.02
    assert card["router"]["pass-rate"]["nll_behind_model"][1] > 0


def test_a_part_of_the_test_gives_what_the_card_says(nano: layactl.Model, card: dict[str, Any]):
    """Every fifth scene of every family; a fair sample is within three standard errors of the whole."""
    right: dict[str, list[bool]] = defaultdict(list)
    for n, record in enumerate(records("test", router=False)):
        if n % 5:
            continue
        answers = nano.decide(record["state"], record["questions"])["answers"]
        for name, gold in record["gold"].items():
            answer = answers[name]
            if answer["type"] == "noul":
                said: Any = str(answer["noul"] > 0.5).lower()
            elif answer["type"] == "choice":
                said = answer["choice"]
            else:
                said = int(max(answer["probabilities"], key=answer["probabilities"].get))
            right[answer["type"]].append(said == gold["label"])
    for kind, values in right.items():
        expected = card["decisions"][f"type: {kind}"]["laya-nano"]["accuracy"][0]
        assert np.mean(values) == pytest.approx(expected, abs=3 * math.sqrt(0.25 / len(values)))


@pytest.mark.full
def test_every_number_of_the_card_is_found_again():
    subprocess.run([sys.executable, str(CHECKPOINTS / "measure_nano.py")], check=True)
