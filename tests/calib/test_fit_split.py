"""A calibration is judged by what it has not seen: a fit carries its split, and answers it has seen are no proof."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layactl.calib.bootstrap import Bootstrap
from layactl.calib.calibrator import from_fit, recorded
from layactl.calib.evaluation import Selection, evaluate
from layactl.calib.fit_file import fitted_split
from layactl.calib.logits import LogitsFile, read_logits
from layactl.calib.result_file import write_result
from layactl.calib.threshold import Risk, thresholds
from layactl.errors import InputError
from tests.calib.examples import candidate, jsonl, outcomes
from tests.calib.simulated import answers, fit_of, halves, record, scores

SMALL = ("--min-examples", 10, "--min-per-class", 1, "--min-eval", 10, "--min-count", 10, "--resamples", 10)


def decisions(path: Path, **fields: Any) -> Path:
    """600 records without a stated split."""
    lines = [record(item) | {"split": None} | fields for item in answers(np.random.default_rng(1), 600, 1.5)]
    return jsonl(path, lines)


def routed(path: Path) -> Path:
    items = scores(np.random.default_rng(2), 600, 0.8, 0.2)
    found = [
        outcomes(i, task=f"Task {i}.", candidates=[candidate("a", outcome=s.outcome, logit=s.logit)])
        for i, s in enumerate(items)
    ]
    return jsonl(path, found)


@pytest.mark.parametrize("make", [decisions, routed])
@pytest.mark.parametrize("options", [(), ("--heldout-frac", 0.1), ("--heldout-frac", 0.6, "--resplit")])
def test_what_was_held_out_from_a_fit_is_what_judges_it(
    tmp_path: Path, cli: Callable[..., Any], make: Callable[[Path], Path], options: tuple[Any, ...]
):
    logits, fit = make(tmp_path / "logits.jsonl"), tmp_path / "fit.json"
    made = cli("calib", "fit", logits, "-o", fit, *SMALL, *options)
    assert made.code == 0, made.err
    held_out = json.loads(fit.read_text())["quality"][0]["answers"]
    done = cli("calib", "eval", logits, "--fit", fit, "--format", "json", "--resamples", 0)
    assert done.code == 0, done.err
    value = json.loads(done.out)
    assert (value["slices"][0]["answers"], value["in_sample"]) == (held_out, 0)
    gate = json.loads(cli("calib", "threshold", logits, "--fit", fit, "--format", "json").out)
    assert (sum(part["answers"] for part in gate["gates"]), gate["in_sample"]) == (held_out, 0)
    report = json.loads(cli("calib", "report", logits, "--fit", fit, "--format", "json", "--resamples", 0).out)
    assert report["evaluation"]["slices"][0]["answers"] == held_out


@pytest.mark.parametrize("command", ["eval", "threshold", "report"])
def test_another_split_than_that_of_the_fit_is_refused_where_it_holds_what_was_fitted_on(
    tmp_path: Path, cli: Callable[..., Any], command: str
):
    logits, fit = decisions(tmp_path / "logits.jsonl"), tmp_path / "fit.json"
    assert cli("calib", "fit", logits, "-o", fit, "--heldout-frac", 0.1, *SMALL).code == 0
    done = cli("calib", command, logits, "--fit", fit, "--heldout-frac", 0.3)
    assert (done.code, done.out) == (1, "")
    assert "answers of records that" in done.error_lines[0] and "was fitted on" in done.error_lines[0]
    # What is held out of less was held out of more.
    assert cli("calib", command, logits, "--fit", fit, "--heldout-frac", 0.05).code == 0


def test_splits_stated_after_the_fit_do_not_make_a_proof_of_what_it_has_seen(tmp_path: Path, cli: Callable[..., Any]):
    logits, fit = decisions(tmp_path / "logits.jsonl"), tmp_path / "fit.json"
    assert cli("calib", "fit", logits, "-o", fit, *SMALL).code == 0
    done = cli("calib", "eval", decisions(tmp_path / "stated.jsonl", split="eval"), "--fit", fit)
    assert done.code == 1 and "was fitted on" in done.error_lines[0]
    # Equal ids of other data are no records of the fit.
    other = decisions(tmp_path / "other.jsonl", split="eval", state_sha256="e" * 64)
    assert cli("calib", "eval", other, "--fit", fit).code == 0


def test_answers_that_were_fitted_on_are_marked_in_every_table(tmp_path: Path, cli: Callable[..., Any]):
    logits, fit = decisions(tmp_path / "logits.jsonl"), tmp_path / "fit.json"
    assert cli("calib", "fit", logits, "-o", fit, *SMALL).code == 0
    for command in ("eval", "threshold"):
        done = cli("calib", command, logits, "--fit", fit, "--split", "all", "-q")
        assert done.code == 0 and "IN SAMPLE" in done.out
        assert "IN SAMPLE" not in cli("calib", command, logits, "--fit", fit, "-q").out


def test_the_interface_counts_what_was_seen(tmp_path: Path):
    items = halves(answers(np.random.default_rng(1), 600, 1.5))
    made = fit_of(items)
    write_result(tmp_path / "fit.json", made.to_json())
    calibrator = from_fit(tmp_path / "fit.json", made.logits)
    assert calibrator.fitted_on == fitted_split(made.logits).records
    whole = Selection(calibrator, "all")
    assert evaluate(made.logits, whole, Bootstrap(0)).in_sample == 400
    assert thresholds(made.logits, whole, Risk(0.4)).in_sample == 400
    assert evaluate(made.logits, Selection(calibrator, "eval"), Bootstrap(0)).in_sample == 0
    turned = [replace(item, split="eval" if item.split == "fit" else "fit") for item in items]
    with pytest.raises(InputError, match=r"the eval split holds 400 answers of records that .* was fitted on"):
        evaluate(replace(made.logits, answers=turned), Selection(calibrator, "eval"), Bootstrap(0))


@pytest.mark.parametrize("engines", [[{"router_calibration": [2, 1]}, {"router_calibration": [1, 0]}], [{}, None]])
def test_logits_of_two_engines_have_no_one_recorded_calibration(engines: list[Any], tmp_path: Path):
    items = [outcomes(i, candidates=[candidate(logit=1.0)]) for i in range(2)]
    lines = [item | ({} if engine is None else {"engine": engine}) for item, engine in zip(items, engines, strict=True)]
    found: LogitsFile = read_logits(jsonl(tmp_path / "two.jsonl", lines))
    with pytest.raises(InputError, match="2 engine identities"):
        recorded(found)


def test_a_task_in_both_splits_is_counted_as_a_state_is(tmp_path: Path):
    lines = [
        outcomes(i, task=task, split=split, candidates=[candidate(logit=1.0)])
        for i, (task, split) in enumerate([("A", "fit"), ("A", "eval"), ("B", "fit"), ("C", "eval")])
    ]
    assert read_logits(jsonl(tmp_path / "tasks.jsonl", lines)).shared_states() == 1
    lines[1]["criterion"] = "Another."
    assert read_logits(jsonl(tmp_path / "tasks.jsonl", lines)).shared_states() == 0


def test_no_output_replaces_an_input_a_sidecar_or_another_output(tmp_path: Path, cli: Callable[..., Any]):
    logits, other = decisions(tmp_path / "logits.jsonl"), decisions(tmp_path / "other.jsonl")
    fit, gate, new = tmp_path / "fit.json", tmp_path / "gate.json", tmp_path / "new"
    assert cli("calib", "fit", logits, "-o", fit, *SMALL).code == 0
    assert cli("calib", "threshold", logits, "--fit", fit, "-o", gate).code == 0
    (tmp_path / "logits.meta.json").write_text("{}")
    link = tmp_path / "link.json"
    link.symlink_to(gate)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for run, message in {
        ("eval", logits, "--against", other, "-o", other): "is the logits of --against itself",
        ("eval", logits, "--fit", fit, "-o", fit): "is the fit itself",
        ("eval", logits, "--min-confidence", gate, "-o", gate): "is the gate itself",
        ("eval", logits, "--min-confidence", gate, "-o", link): "is the gate itself",
        ("eval", logits, "-o", tmp_path / "logits.meta.json"): "is the sidecar of the logits itself",
        ("threshold", logits, "--fit", fit, "-o", fit): "is the fit itself",
        ("baselines", logits, "-o", logits): "is the logits itself",
        ("report", logits, "--min-confidence", gate, "--html", gate): "is the gate itself",
        ("report", logits, "--html", new, "-o", new): "both --html and -o would write it",
        ("report", logits, "--html", new, "-o", tmp_path / "." / "new"): "both --html and -o would write it",
        ("fit", logits, "-o", new, "--spec-out", new, *SMALL): "both --spec-out and -o would write it",
        ("fit", logits, "--spec-out", logits, *SMALL): "is the logits itself",
    }.items():
        done = cli("calib", *run)
        assert done.code == 2 and message in done.error_lines[0], (run, done.err)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
