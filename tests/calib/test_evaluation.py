"""Evaluation by parts, two models on the same answers, and the conditions of a CI job."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score, log_loss

from layactl.calib.bootstrap import Bootstrap
from layactl.calib.calibrator import recorded, uncalibrated
from layactl.calib.collect import collect
from layactl.calib.comparison import PairedComparison, compare_files, holm, mcnemar
from layactl.calib.curves import confusions, reliability, risk_coverage, wilson
from layactl.calib.evaluation import DEFINITIONS, Evaluation, Selection, evaluate
from layactl.calib.judged import judge_answers
from layactl.calib.logits import LogitsFile
from layactl.calib.requirement import parse_requirement
from layactl.calib.scorer import EngineScorer
from layactl.errors import InputError, UsageError
from layactl.gguf_file.reader import GgufFile
from layactl.labelled.gold import Gold
from layactl.labelled.labelled_file import read_labelled
from layactl.reporting.act_gate import ActGate, GateRule
from tests.calib.examples import QUESTIONS, decision, jsonl
from tests.calib.golden import GOLDEN
from tests.calib.simulated import answer, answers, logits_file, member, record, scores

FEW = Bootstrap(50)


def mixed() -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        *answers(rng, 120, 1.5, options=4, tags={"lang": "en"}),
        *(
            replace(a, member=member(500 + i, i % 3))
            for i, a in enumerate(answers(rng, 60, 1.5, options=2, type="noul", question="n"))
        ),
        *(
            replace(a, member=member(900 + i))
            for i, a in enumerate(answers(rng, 19, 1.0, options=3, type="score", question="s"))
        ),
    ]


def evaluated(items: list[Any], **selection: Any) -> Evaluation:
    found = logits_file(items)
    return evaluate(found, Selection(uncalibrated(), **selection), FEW)


def test_every_part_of_enough_answers_is_told_apart():
    found = evaluated(mixed())
    assert [(part.name, part.answers) for part in found.parts] == [
        ("all", 199),
        ("type=choice", 120),
        ("type=noul", 60),
        ("options=4", 120),
        ("options=2", 60),
        ("lang=en", 120),
        ("question=q", 120),
        ("question=n", 60),
        ("group=g0", 20),
        ("group=g1", 20),
        ("group=g2", 20),
    ]
    # The parts' own numbers: what evaluating them alone gives.
    alone = evaluated([item for item in mixed() if item.type == "noul"])
    assert found.part("type=noul").metrics == alone.parts[0].metrics  # type: ignore[union-attr]


def test_a_part_that_is_everything_is_still_named():
    assert evaluated(answers(np.random.default_rng(0), 30, 1.0)).part("type=choice") is not None


def test_one_group_alone_has_numbers_without_an_interval():
    accuracy = evaluated(mixed()).part("group=g0").metrics["accuracy"]  # type: ignore[union-attr]
    assert accuracy.value is not None and accuracy.low is None


def test_the_split_decides_what_is_judged():
    items = [
        replace(item, split="eval" if i < 40 else "fit")
        for i, item in enumerate(answers(np.random.default_rng(0), 100, 1.0))
    ]
    assert [evaluated(items, split=split).parts[0].answers for split in ("all", "eval", "fit")] == [100, 40, 60]
    with pytest.raises(InputError, match="the fit split holds no answers"):
        evaluated(items[:40], split="fit")


def test_router_candidates_are_told_apart_by_kind_and_name():
    found = evaluated(scores(np.random.default_rng(0), 200, 1, 0, per_task=2))
    assert [part.name for part in found.parts] == ["all", "kind=local", "candidate=c0", "candidate=c1"]
    assert found.parts[0].clusters == 100


def test_every_metric_has_its_definition():
    assert set(evaluated(mixed()).parts[0].metrics) == set(DEFINITIONS["decision"])
    assert set(evaluated(scores(np.random.default_rng(0), 50, 1, 0)).parts[0].metrics) == set(DEFINITIONS["router"])


@pytest.mark.parametrize("items", [mixed(), scores(np.random.default_rng(0), 60, 1, 0)], ids=["decisions", "router"])
def test_a_result_is_json_without_nan(items: list[Any]):
    value = json.loads(json.dumps(evaluated(items).to_json(), allow_nan=False))
    assert value["format"] == "layactl.calib-eval/1"
    assert sum(b["count"] for b in value["reliability"]["all"]) == len(items)


def test_the_curve_of_risk_and_coverage_counts_ties_together():
    curve = risk_coverage(np.array([0.9, 0.9, 0.8, 0.6]), np.array([1.0, 0.0, 1.0, 0.0]))
    assert curve.coverage == [0.5, 0.75, 1.0]
    assert curve.risk == pytest.approx([0.5, 1 / 3, 0.5])
    assert curve.thresholds == [0.9, 0.8, 0.6]
    assert curve.aurc == pytest.approx(0.5 * 0.5 + 0.25 / 3 + 0.25 * 0.5)


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    rng = np.random.default_rng(0)
    p = rng.random(5000)
    curve = risk_coverage(p, (rng.random(5000) < p).astype(float))
    assert len(curve.coverage) == 200
    assert (curve.coverage[0], curve.coverage[-1]) == (1 / 5000, 1.0)


def test_reliability_intervals_are_wilsons():
    for share, count in ((0.0, 5), (0.3, 10), (1.0, 40), (0.55, 400)):
        expected = stats.binomtest(round(share * count), count).proportion_ci(0.95, "wilson")
        assert wilson(round(share * count) / count, count) == pytest.approx((expected.low, expected.high), abs=1e-9)
    bins = reliability(np.array([0.05, 0.95, 0.96]), np.array([0.0, 1.0, 0.0]))
    assert [b.count for b in bins] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert (bins[9].mean, bins[9].share) == (pytest.approx(0.955), 0.5)


def test_confusion_counts_gold_against_what_was_said():
    items = [answer([2, 0, 0], 0, 0), answer([2, 0, 0], 1, 1), answer([0, 0, 3], 1, 2)]
    [found] = confusions(items, judge_answers(items, lambda _: 1.0))
    assert found.counts == [[1, 0, 0], [1, 0, 1], [0, 0, 0]]
    # A question whose options change has no one matrix.
    items.append(answer([1, 0], 0, 3))
    assert confusions(items, judge_answers(items, lambda _: 1.0)) == []


# Two models.


def pair(noise: float, **fields: Any) -> tuple[LogitsFile, LogitsFile]:
    """A file, and another whose logits are the same with noise."""
    rng = np.random.default_rng(7)
    items = answers(rng, 300, 1.0, **fields)
    other = [replace(i, logits=tuple(z + float(rng.normal(0, noise)) for z in i.logits)) for i in items]
    return logits_file(items), logits_file(other)


def compared(first: LogitsFile, *others: LogitsFile) -> list[PairedComparison]:
    plain = Selection(uncalibrated())
    return compare_files((first, plain), [(other, plain) for other in others], FEW)


def test_the_paired_difference_is_that_of_the_two_evaluations():
    first, second = pair(2.0)
    [found] = compared(first, second)
    whole, plain = found.parts[0], Selection(uncalibrated())
    a, b = (evaluate(f, plain, FEW).parts[0].metrics for f in (first, second))
    for metric, delta in whole.delta.items():
        if delta.value is not None:
            assert delta.value == pytest.approx((b[metric].value or 0) - (a[metric].value or 0), abs=1e-12)
    right = [np.array([int(np.argmax(i.logits)) == i.gold.label for i in f.answers]) for f in (first, second)]
    assert (whole.only_first, whole.only_second) == (
        int((right[0] & ~right[1]).sum()),
        int((right[1] & ~right[0]).sum()),
    )
    assert whole.p == pytest.approx(stats.binomtest(whole.only_first, whole.only_first + whole.only_second).pvalue)


@pytest.mark.parametrize(("only_first", "only_second", "p"), GOLDEN["mcnemar"])
def test_mcnemars_p_is_the_exact_one(only_first: int, only_second: int, p: float):
    assert mcnemar(only_first, only_second) == pytest.approx(p, rel=1e-12)


@pytest.mark.parametrize(
    ("p", "adjusted"),
    [
        # Holm's steps by hand: times 4, 3, 2, 1 and never below the one before.
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.5, 0.9], [1.0, 1.0]),
        ([0.03], [0.03]),
        ([], []),
    ],
)
def test_holms_correction(p: list[float], adjusted: list[float]):
    assert holm(p) == pytest.approx(adjusted)


def test_holm_rejects_what_the_closed_test_of_bonferroni_rejects():
    """Its definition: a hypothesis falls when every set of hypotheses that holds it does."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = (rng.random(4) ** 3).tolist()
        closed = [
            max(
                min(1.0, len(family) * min(p[j] for j in family))
                for size in range(1, 5)
                for family in itertools.combinations(range(4), size)
                if i in family
            )
            for i in range(4)
        ]
        assert holm(p) == pytest.approx(closed)


def test_all_tests_of_all_files_are_one_family():
    first, second = pair(2.0, tags={"lang": "en"})
    one, two = compared(first, second), compared(first, second, second)
    assert [part.name for part in one[0].parts if part.p is not None] == ["all", "type=choice", "lang=en"]
    p = one[0].parts[0].p or 0
    assert one[0].parts[0].holm == pytest.approx(min(1.0, 3 * p))
    assert two[0].parts[0].holm == pytest.approx(min(1.0, 6 * p))


def test_only_what_both_hold_is_compared_and_the_rest_counted():
    first, second = pair(1.0)
    part = replace(second, answers=list(reversed(second.answers[50:])))
    [found] = compared(first, part)
    assert (found.parts[0].answers, found.unmatched) == (250, 50)
    [whole] = compared(replace(first, answers=first.answers[50:]), replace(second, answers=second.answers[50:]))
    assert found.parts[0].delta == whole.parts[0].delta


def test_files_that_disagree_or_share_nothing_are_refused():
    first, second = pair(1.0)
    other_gold = [replace(a, gold=replace(a.gold, label=(a.gold.label + 1) % 4)) for a in second.answers]
    with pytest.raises(InputError, match="has other options or another gold"):
        compared(first, replace(second, answers=other_gold))
    with pytest.raises(InputError, match="shares no answers"):
        compared(first, replace(second, answers=[replace(a, question="z") for a in second.answers]))
    with pytest.raises(InputError, match="holds router logits"):
        compared(first, logits_file(scores(np.random.default_rng(0), 10, 1, 0)))


def test_routers_are_compared_candidate_by_candidate():
    items = scores(np.random.default_rng(0), 200, 1, 0, per_task=2)
    better = [replace(s, logit=4.0 * s.outcome - 2.0) for s in items]
    [found] = compared(logits_file(items), logits_file(better))
    assert found.parts[0].only_first == 0 and found.parts[0].only_second > 20
    assert (found.parts[0].p or 1) < 1e-6


# Conditions.


@pytest.mark.parametrize(
    ("text", "failing"),
    [
        ("ece>0.0", True),
        ("ece > 1", False),
        ("accuracy<1", True),
        ("accuracy<=0.001", False),
        ("accuracy[type=noul]<1", True),
        ("accuracy[lang=fr]<1", True),  # no such part
        ("score_mae>5", False),
        ("aurc>0.0001", True),
        ("aurc>1", False),
        ("score_mae[type=noul]>5", True),  # not defined there
        ("nll>=1e9", False),
    ],
)
def test_a_condition_that_holds_or_is_not_defined_fails(text: str, failing: bool):
    assert bool(parse_requirement(text, False).failures(evaluated(mixed()), [])) is failing


@pytest.mark.parametrize(("sign", "failing"), [(">", False), (">=", True), ("<", False), ("<=", True)])
def test_a_condition_at_its_limit_is_read_to_the_letter(sign: str, failing: bool):
    perfect = evaluated([answer([1, 0], 0, i) for i in range(20)])
    assert bool(parse_requirement(f"accuracy{sign}1", False).failures(perfect, [])) is failing


def test_a_condition_on_the_difference_looks_at_every_other_file():
    first, second = pair(5.0)
    evaluation, found = evaluate(first, Selection(uncalibrated()), FEW), compared(first, second, first)
    assert len(parse_requirement("delta.accuracy<-0.01", True).failures(evaluation, found)) == 1
    assert parse_requirement("delta.accuracy<-0.99", True).failures(evaluation, found) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ece",
        "ece=1",
        "ece>",
        "ece>x",
        "ece>nan",
        "quality>1",
        "ece[type>1",
        "delta.ece>1",
        "ece>1 or 2",
        "ece>inf",
        "ece>1e999",
        "ece>1_0",
        "ece>\uff11",
    ],
)
def test_a_condition_that_says_nothing_is_wrong_usage(text: str):
    with pytest.raises(UsageError):
        parse_requirement(text, False)


def test_a_gate_of_routers_is_none_for_decisions():
    gate = ActGate([GateRule(0.5)], kind="router")
    with pytest.raises(UsageError, match="is a gate for router confidences"):
        evaluated(mixed(), gate=gate)


def test_a_slice_may_hold_any_bracket():
    found = parse_requirement("accuracy[group=a[1]>2]<0.9", False)
    assert (found.slice, found.sign, found.limit) == ("group=a[1]>2", "<", 0.9)


def test_a_gate_sees_unrounded_confidences_whatever_is_printed():
    """As `decide --round N --min-confidence X` acts."""
    gate = ActGate([GateRule(0.7)])
    items = [answer([math.log(p), math.log(1 - p)], 0, i) for i, p in enumerate([0.695, 0.699, 0.701] * 10)]
    for digits in (None, 1):
        coverage = evaluated(items, gate=gate, digits=digits).parts[0].metrics["coverage"].value
        assert coverage == pytest.approx(1 / 3)
    routed = [replace(s, logit=math.log(0.699 / 0.301)) for s in scores(np.random.default_rng(0), 30, 1, 0)]
    assert evaluated(routed, gate=gate, digits=1).parts[0].metrics["coverage"].value == 0.0


def test_questions_of_one_option_are_left_out_and_counted(tmp_path: Path, cli: Callable[..., Any]):
    wrong = [record(answer([3, 0], 1, i, split="eval")) for i in range(40)]
    idle = [record(answer([1], 0, 100 + i, split="eval")) for i in range(60)]
    path = jsonl(tmp_path / "logits.jsonl", [*wrong, *idle])
    value = json.loads(cli("calib", "eval", path, "--format", "json", "--resamples", 0).out)
    assert (value["slices"][0]["answers"], value["logits"]["one_option"]) == (40, 60)
    assert value["slices"][0]["metrics"]["accuracy"]["value"] == 0.0
    assert "60 answers to questions of one option are left out" in cli("calib", "eval", path, "--resamples", 0).err
    alone = cli("calib", "threshold", jsonl(tmp_path / "idle.jsonl", idle), "--by", "all")
    assert alone.code == 1 and "holds no labelled answers but to 60 questions of one option" in alone.error_lines[0]


def test_tables_say_what_their_numbers_do_not(tmp_path: Path, cli: Callable[..., Any]):
    soft = [record(answer([3, 0], 1, i, gold=Gold(1, (0.6, 0.4)), split="eval")) for i in range(20)]
    path = jsonl(tmp_path / "logits.jsonl", soft)
    spec = tmp_path / "spec.json"
    block = {"method": "temperature", "temperature": {"choice": 5.0, "noul": 1.5}}
    spec.write_text(json.dumps({"spec_version": 1, "layout": "laya", "calibration": block}))
    done = cli("calib", "eval", path, "--spec", spec, "--resamples", 0)
    assert "the temperature of choice with * options is clamped to 5: treat as uncalibrated" in done.out
    assert "noul" not in done.out
    assert "20 clusters are fewer than 30: the intervals are too narrow" in done.out
    assert "20 answers of the file have soft gold" in done.out
    assert "20 answers have soft gold whose label is not its most probable option" in done.err
    certified = cli("calib", "threshold", path, "--spec", spec, "--split", "all").out
    assert (
        "is clamped to 5: treat as uncalibrated" in certified and "20 answers of the file have soft gold" in certified
    )


# The command.


@pytest.fixture(scope="module")
def logits(
    tmp_path_factory: pytest.TempPathFactory, gguf_for: Callable[..., Path], model_for: Callable[..., Any]
) -> Path:
    folder = tmp_path_factory.mktemp("eval")
    golds = [{"refund": i % 2 == 0, "team": ["billing", "tech"][i % 2], "urgency": i % 3} for i in range(24)]
    records = [decision(i, state=f"Ticket {i}", gold=gold, lang="en") for i, gold in enumerate(golds)]
    data = read_labelled(jsonl(folder / "data.jsonl", records))
    collect(data, EngineScorer(model_for(), GgufFile(gguf_for())), folder / "logits.jsonl")
    return folder / "logits.jsonl"


def test_the_numbers_judged_are_the_numbers_printed(
    cli: Callable[..., Any], logits: Path, model_for: Callable[..., Any]
):
    """Accuracy and log loss by scikit-learn, over the answers as the model gives them."""
    done = cli("calib", "eval", logits, "--format", "json", "--resamples", 10)
    slices = {part["slice"]: part["metrics"] for part in json.loads(done.out)["slices"]}
    said, p_team, p_refund = [], [], []
    for i in range(24):
        given = model_for().decide(f"Ticket {i}", QUESTIONS)["answers"]
        said.append(given["team"]["choice"])
        p_team.append([given["team"]["probabilities"][key] for key in ("3", "billing", "tech")])
        p_refund.append(given["refund"]["noul"])
    gold = [["billing", "tech"][i % 2] for i in range(24)]
    assert slices["question=team"]["accuracy"]["value"] == accuracy_score(gold, said)
    expected = log_loss(gold, p_team, labels=["3", "billing", "tech"])
    assert slices["question=team"]["nll"]["value"] == pytest.approx(expected, rel=1e-12)
    truth = [i % 2 == 0 for i in range(24)]
    assert slices["type=noul"]["nll"]["value"] == pytest.approx(log_loss(truth, p_refund), rel=1e-12)


@pytest.mark.parametrize(
    ("conditions", "code", "verdict"),
    [
        (["accuracy<0"], 0, "PASS 1 condition"),
        (["accuracy<0", "ece>0"], 1, "FAIL ece>0: it is "),
        (["accuracy[type=rank]<0"], 1, "FAIL accuracy[type=rank]<0: no slice type=rank"),
        (["nonsense"], 2, ""),
    ],
)
def test_a_ci_job_fails_by_its_conditions(
    cli: Callable[..., Any], logits: Path, conditions: list[str], code: int, verdict: str
):
    options = [word for condition in conditions for word in ("--fail-if", condition)]
    done = cli("calib", "eval", logits, "--resamples", 10, *options)
    assert done.code == code
    assert verdict in (done.out.splitlines() or [""])[-1]


def test_the_result_goes_to_a_file_and_never_over_an_input(tmp_path: Path, cli: Callable[..., Any], logits: Path):
    assert cli("calib", "eval", logits, "-o", tmp_path / "e.json", "--resamples", 0, "--against", logits).code == 0
    value = json.loads((tmp_path / "e.json").read_text())
    assert value["against"][0]["slices"][0]["mcnemar"] == {"only_first": 0, "only_second": 0, "p": 1.0, "holm": 1.0}
    assert cli("calib", "eval", logits, "-o", logits).code == 2
    assert cli("calib", "eval", logits, "--uncalibrated", "--spec", logits).code == 2


def test_recorded_and_uncalibrated_differ_where_the_model_has_temperatures(cli: Callable[..., Any], logits: Path):
    found = []
    for options in ([], ["--uncalibrated"]):
        done = cli("calib", "eval", logits, "--format", "json", "--resamples", 0, *options)
        value = json.loads(done.out)
        found.append((value["calibration"]["version"], value["slices"][0]["metrics"]["nll"]["value"]))
    assert [version for version, _ in found] == ["gguf:laya.temperature", "none"]
    assert found[0][1] != found[1][1]


def test_recorded_uses_the_temperature_of_each_answer():
    items = [replace(i, temperature=2.0) for i in answers(np.random.default_rng(0), 40, 1.0)]
    found = logits_file(items)
    assert (
        evaluate(found, Selection(recorded(found)), FEW).parts[0]
        == evaluate(found, Selection(replace(uncalibrated(), temperature=lambda _: 2.0)), FEW).parts[0]
    )
