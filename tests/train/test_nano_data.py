"""The data of laya-nano: the same everywhere, readable as labelled data, and no split knows another's sentences."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from nano_data import build
from nano_data.draw import SPLITS, Draw
from nano_data.scene import LANGUAGES, Scene

from layactl.labelled.decisions import read_decisions
from layactl.labelled.outcomes import read_outcomes
from tests.conftest import CHECKPOINTS

FAMILIES = {family.name: family for family in build.all_families()}
SCENES = 12


def scenes(name: str, split: str, language: str) -> list[Scene]:
    return [FAMILIES[name].make(Draw(f"test/{name}/{language}/{n}", split, language)) for n in range(SCENES)]


def test_there_are_enough_families_of_enough_domains():
    assert len(FAMILIES) >= 12
    assert len({family.domain for family in FAMILIES.values()}) >= 6
    assert sum(family.domain == build.HELD_OUT_DOMAIN for family in FAMILIES.values()) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_no_split_says_what_another_says(name: str, monkeypatch: pytest.MonkeyPatch):
    """Each phrasing, of states and of questions, belongs to one split."""
    said: dict[str, set[tuple[str, str]]] = defaultdict(set)
    original = Draw.pick

    def pick(self: Draw, purpose: str, values):
        value = original(self, purpose, values)
        if sys._getframe(1).f_code is Draw.say.__code__:
            said[self.split].add((self.language, value))
        return value

    monkeypatch.setattr(Draw, "pick", pick)
    for split in SPLITS:
        for language in LANGUAGES:
            scenes(name, split, language)
    for split in SPLITS:
        assert said[split], split
        for other in SPLITS:
            if other != split:
                assert not said[split] & said[other]


def test_files_are_read_as_labelled_data(tmp_path: Path):
    counts = build.write_files(tmp_path, 0.03)
    found = {path.stem: path for path in tmp_path.iterdir()}
    records = {name: read_decisions(found[name]) for name in ("train", "dev", "heldout")}
    outcomes = {name: read_outcomes(found[f"{name}-router"]) for name in ("train", "dev", "heldout")}
    assert {f"{name}.jsonl": len(part) for name, part in records.items()}.items() <= counts.items()
    assert all(record.refusal is None for part in records.values() for record in part)
    assert {record.tags["lang"] for record in records["train"]} == set(LANGUAGES)
    health = [r for part in records.values() for r in part if r.tags["workflow"] == "clinic"]
    assert health
    assert {record.member.stated for record in health} == {"eval"}
    assert {record.member.stated for record in records["heldout"]} == {"fit", "eval"}
    assert all(2 <= len(task.candidates) <= 4 for part in outcomes.values() for task in part)
    states = {name: {json.dumps(record.state) for record in part} for name, part in records.items()}
    assert not states["train"] & states["dev"]
    assert not (states["train"] | states["dev"]) & states["heldout"]


@pytest.mark.parametrize("name", [name for name, f in FAMILIES.items() if f.domain != build.HELD_OUT_DOMAIN])
def test_no_answer_is_nearly_always_right(name: str):
    right: dict[str, Counter[str]] = defaultdict(Counter)
    for n in range(300):
        scene = FAMILIES[name].make(Draw(f"balance/{n}", "train", LANGUAGES[n % 4]))
        for question, gold in scene.gold.items():
            right[question][str(gold["label"])] += 1
        for candidate in (scene.router or {}).get("candidates", ()):
            right["router"][str(candidate["outcome"])] += 1
    for question, labels in right.items():
        if (total := sum(labels.values())) >= 50:
            assert max(labels.values()) <= 0.72 * total, (question, labels)


def test_every_question_type_and_soft_gold_are_there():
    types: Counter[str] = Counter()
    soft = 0
    for name in FAMILIES:
        for scene in scenes(name, "train", "en"):
            types.update(question["type"] for question in scene.questions.values())
            soft += sum("probabilities" in gold for gold in scene.gold.values())
    assert min(types[kind] for kind in ("choice", "score", "noul")) > 0.15 * sum(types.values())
    assert soft > 0.05 * sum(types.values())


def test_the_files_are_the_same_whatever_the_hash_seed(tmp_path: Path):
    digests = []
    for seed in ("0", "1"):
        command = [sys.executable, str(CHECKPOINTS / "make_nano_data.py"), str(tmp_path / seed), "--scale", "0.1"]
        subprocess.run(command, env={"PYTHONHASHSEED": seed}, check=True, capture_output=True)
        digests.append({p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (tmp_path / seed).iterdir()})
    assert digests[0] == digests[1]
    assert len(digests[0]) == 6
