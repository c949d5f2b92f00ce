"""Rules that need no model, on the split a model is judged on: a router that a pass rate beats is found out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from layactl.calib.baselines import Baselines, baselines
from layactl.calib.bootstrap import Bootstrap
from layactl.calib.card_features import CardFeatures, pass_rate
from layactl.calib.logits import LabelledScore
from layactl.calib.result_file import write_result
from layactl.errors import InputError, UsageError
from tests.calib.examples import SCHEMA, candidate, card, jsonl, outcomes
from tests.calib.simulated import answers, fit_of, halves, logits_file, member, record

FEW = Bootstrap(200)


def check(skill: str, passed: int, total: int) -> dict[str, Any]:
    return {"skill": skill, "status": "measured", "passed": passed, "total": total}


def telling_cards(n: int = 900, *, engine: float = 0.0) -> list[LabelledScore]:
    """Outcomes that follow the card's pass rate; logits that follow them as well with weight `engine`, else noise."""
    rng = np.random.default_rng(8)
    made = []
    for i in range(n):
        passed, kind = int(rng.integers(0, 21)), ("local", "api")[int(rng.integers(2))]
        rate = (passed + 1) / 22
        outcome = int(rng.random() < rate)
        logit = float(rng.normal() + engine * (2 * outcome - 1))
        made.append(
            LabelledScore(
                member(i // 3), f"c{i % 3}", card(passed, 20, kind), outcome, logit, "eval" if i % 9 < 3 else "fit"
            )
        )
    return made


def named(found: Baselines, name: str) -> Any:
    return next(baseline for baseline in found.found if baseline.name == name)


def test_a_router_worse_than_the_cards_pass_rate_is_named():
    found = baselines(logits_file(telling_cards()), FEW)
    assert found.reference == "engine-platt"
    assert [baseline.name for baseline in found.found] == [
        "base-rate",
        "pass-rate",
        "pass-rate-platt",
        "logreg",
        "engine-raw",
        "engine-platt",
    ]
    assert set(found.better()) >= {"pass-rate", "pass-rate-platt", "logreg"}


def test_a_router_that_knows_more_than_the_card_is_not_beaten():
    found = baselines(logits_file(telling_cards(engine=3.0)), FEW)
    assert found.better() == []
    assert named(found, "pass-rate").delta["nll"].excludes_zero


def test_each_rule_is_what_it_says():
    items = telling_cards()
    fitted, held = ([s for s in items if s.split == split] for split in ("fit", "eval"))
    y = [s.outcome for s in held]
    found = baselines(logits_file(items), Bootstrap(0))
    rate = np.mean([s.outcome for s in fitted])
    assert named(found, "base-rate").metrics["nll"].value == pytest.approx(log_loss(y, np.full(len(y), rate)))
    rates = [pass_rate(s.card) for s in held]
    assert named(found, "pass-rate").metrics["brier"].value == pytest.approx(brier_score_loss(y, rates))
    raw = 1 / (1 + np.exp(-np.array([s.logit for s in held], float)))
    assert named(found, "engine-raw").metrics["nll"].value == pytest.approx(log_loss(y, raw))
    features = CardFeatures.of([s.card for s in fitted])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, tol=1e-8, max_iter=10_000))
    model.fit(features.matrix([s.card for s in fitted]), [s.outcome for s in fitted])
    p = model.predict_proba(features.matrix([s.card for s in held]))[:, 1]
    assert named(found, "logreg").metrics["nll"].value == pytest.approx(log_loss(y, p), rel=1e-6)


def test_a_pass_rate_is_pooled_over_measured_checks_and_never_certain():
    checks = [check("a", 8, 10), check("b", 0, 8), {"skill": "c", "status": "missing"}]
    assert pass_rate({"checks": checks}) == 9 / 20
    assert pass_rate({}) == 0.5
    assert pass_rate({"checks": [check("a", 5, 5)]}) == 6 / 7


def test_features_have_a_column_for_what_the_fit_split_knows_and_none_for_the_rest():
    known = [
        {"schema": SCHEMA, "kind": "local", "checks": [check("sums", 9, 10), check("mail", 1, 10)]},
        {"schema": SCHEMA, "kind": "api", "checks": []},
    ]
    features = CardFeatures.of(known)
    assert (features.kinds, features.skills) == (("api", "local"), ("mail", "sums"))
    local, api = features.matrix(known)
    assert local.tolist() == pytest.approx(
        [0.0, np.log(2 / 10), np.log(10 / 2), np.log(21), 2, 0, np.log(2 / 10), np.log(10 / 2), 0, 1]
    )
    assert api.tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    other = features.matrix([{"kind": "human", "checks": [check("dance", 1, 1), {"skill": "x", "status": "missing"}]}])
    # An unknown skill counts only in the pooled numbers, an unknown kind as none.
    assert other[0].tolist() == pytest.approx([np.log(2)] * 3 + [np.log(2), 1, 1, np.log(2), np.log(2), 0, 0])


def test_without_logits_the_rules_are_still_compared():
    found = baselines(logits_file([replace(s, logit=None) for s in telling_cards()]), FEW)
    assert found.reference == "pass-rate-platt"
    assert found.skipped == dict.fromkeys(("engine-raw", "engine-platt"), "the file has no logits")


def test_cards_that_are_all_alike_leave_their_rule_out():
    found = baselines(logits_file([replace(s, card=card()) for s in telling_cards(engine=1.0)]), FEW)
    assert "all equal" in found.skipped["pass-rate-platt"]
    assert named(found, "logreg").metrics["auc"].value == 0.5


def test_decisions_are_held_against_chance_and_habit():
    items = [
        replace(a, split="eval" if i % 3 == 0 else "fit")
        for i, a in enumerate(answers(np.random.default_rng(0), 600, 1.0))
    ]
    biased = [
        replace(a, gold=replace(a.gold, label=0, probabilities=(1.0, 0.0, 0.0, 0.0))) if i % 2 else a
        for i, a in enumerate(items)
    ]
    found = baselines(logits_file(biased), FEW)
    assert (found.reference, [b.name for b in found.found]) == ("engine", ["uniform", "prior", "engine"])
    assert named(found, "uniform").metrics["nll"].value == pytest.approx(np.log(4))
    held, fitted = ([a for a in biased if a.split == split] for split in ("eval", "fit"))
    counts = np.bincount([a.gold.label for a in fitted], minlength=4) + 1
    expected = np.mean([-np.log((counts / counts.sum())[a.gold.label]) for a in held])
    assert named(found, "prior").metrics["nll"].value == pytest.approx(expected)


REFUSED: dict[str, tuple[list[Any], dict[str, Any], type[Exception], str]] = {
    "nothing held out": (
        [replace(s, split="fit") for s in telling_cards()],
        {},
        InputError,
        "the eval split holds no answers",
    ),
    "nothing to fit": (
        [replace(s, split="eval") for s in telling_cards()],
        {},
        InputError,
        "the fit split holds no answers",
    ),
    "one outcome": ([replace(s, outcome=1) for s in telling_cards()], {}, InputError, "the same outcome"),
    "two engines": (telling_cards(), {"engines": [{"a": 1}, {"a": 2}]}, InputError, "2 engine identities"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_refused(name: str):
    items, fields, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        baselines(logits_file(items, **fields), FEW)


def test_an_unknown_reference_is_wrong_usage():
    with pytest.raises(UsageError, match="no baseline is called oracle"):
        baselines(logits_file(telling_cards()), FEW, "oracle")


def test_the_command_fails_a_router_that_is_beaten(tmp_path: Path, cli: Callable[..., Any]):
    records = []
    for i, s in enumerate(telling_cards()):
        records.append(
            outcomes(i, candidates=[candidate(card=s.card, outcome=s.outcome, logit=s.logit)], split=s.split)
        )
    path = jsonl(tmp_path / "logits.jsonl", records)
    done = cli("calib", "baselines", path, "--resamples", 200, "--fail-if-beaten", "-o", tmp_path / "b.json")
    assert done.code == 1
    assert done.out.splitlines()[-1].startswith("engine-platt is beaten by pass-rate")
    assert json.loads((tmp_path / "b.json").read_text())["better_than_reference"][0] == "pass-rate"
    assert (
        cli("calib", "baselines", path, "--resamples", 200, "--reference", "pass-rate-platt", "--fail-if-beaten").code
        == 0
    )


def test_the_command_holds_rules_against_a_fit(tmp_path: Path, cli: Callable[..., Any]):
    items = halves(answers(np.random.default_rng(1), 900, 2.5))
    logits = jsonl(tmp_path / "logits.jsonl", map(record, items))
    made = fit_of(items)
    write_result(tmp_path / "fit.json", made.to_json())
    found = {}
    for options in ((), ("--fit", tmp_path / "fit.json")):
        value = json.loads(cli("calib", "baselines", logits, "--format", "json", "--resamples", 0, *options).out)
        engine = next(b for b in value["baselines"] if b["name"] == value["reference"])
        found[bool(options)] = engine["metrics"]["nll"]["value"]
    held_out = made.comparisons[0]
    assert found == {False: held_out.before["nll"].value, True: held_out.after["nll"].value}
