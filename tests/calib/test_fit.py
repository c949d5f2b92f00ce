"""A fit is proved on answers it has not seen, refused where it proves nothing, and written where a model reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layactl as package
from layactl.calib.calibrator import from_fit, from_spec, parse, recorded, uncalibrated
from layactl.calib.fit import DECISION_MINIMUMS, Fit, Minimums
from layactl.calib.logits import LogitsFile, read_logits
from layactl.calib.result_file import write_result
from layactl.calib.spec_update import updated_spec
from layactl.calib.tables import fit_tables
from layactl.errors import InputError, SpecError
from tests.calib.examples import candidate, decision, jsonl, outcomes
from tests.calib.simulated import answers, fit_of, halves, logits_file, member, scores


def test_an_overconfident_model_is_better_after_and_says_so():
    made = fit_of(halves(answers(np.random.default_rng(1), 3000, 2.5)))
    held_out, in_sample = made.comparisons
    assert (held_out.split, in_sample.split) == ("eval", "fit")
    assert made.block["temperature"]["choice"]["*"] == pytest.approx(2.5, rel=0.1)
    for metric in ("ece", "nll", "brier"):
        assert held_out.delta[metric].excludes_zero and (held_out.delta[metric].value or 0) < 0
    assert held_out.before["accuracy"].value == held_out.after["accuracy"].value
    assert (held_out.after["ece"].value or 1) < (held_out.before["ece"].value or 0) / 4


def test_a_model_that_was_calibrated_stays_so_without_a_convincing_difference():
    made = fit_of(halves(answers(np.random.default_rng(2), 2000, 1.0)))
    assert not made.comparisons[0].delta["nll"].excludes_zero
    assert not made.comparisons[0].delta["accuracy"].excludes_zero


def test_a_router_is_fitted_and_judged():
    made = fit_of(halves(scores(np.random.default_rng(3), 4500, 0.5, -1.0)))
    assert made.platt is not None
    assert (made.platt.a, made.platt.b) == pytest.approx((0.5, -1.0), abs=0.15)
    assert made.block == {"method": "platt", "a": made.platt.a, "b": made.platt.b}
    assert (made.comparisons[0].delta["nll"].value or 0) < 0
    # A rising sigmoid ranks as the logits do.
    assert made.comparisons[0].delta["auc"].value == pytest.approx(0.0, abs=1e-12)


def test_the_result_marks_what_is_in_sample_and_names_what_it_is_of():
    made = fit_of(halves(answers(np.random.default_rng(1), 600, 1.5))).to_json()
    assert [part["in_sample"] for part in made["quality"]] == [False, True]
    assert (made["format"], made["kind"]) == ("layactl.calib-fit/1", "decision")
    assert made["engine"]["model"] == "simulated"
    assert made["bootstrap"]["resamples"] == 100
    json.dumps(made, allow_nan=False)


REFUSALS: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "two engines": (
        halves(answers(np.random.default_rng(0), 600, 1.0)),
        {"engines": [{"kernels": "onednn"}, {"kernels": "reference"}]},
        "2 engine identities, which differ in kernels",
    ),
    "one named, one not": (
        halves(answers(np.random.default_rng(0), 600, 1.0)),
        {"engines": [{"kernels": "onednn"}, None]},
        "differ in whether they name one",
    ),
    "too few to fit": (halves(answers(np.random.default_rng(0), 90, 1.0)), {}, "the fit split holds 60 answers"),
    "too few to judge": (halves(answers(np.random.default_rng(0), 200, 1.0)), {}, "the eval split holds 66 answers"),
    "nothing held out": (
        [replace(item, split="fit") for item in answers(np.random.default_rng(0), 900, 1.0)],
        {},
        "the eval split holds 0 answers",
    ),
    "too few candidates": (halves(scores(np.random.default_rng(0), 1200, 1, 0)), {}, "the fit split holds 800 answers"),
    "too few judged candidates": (
        [
            replace(s, split="eval" if i < 150 else "fit")
            for i, s in enumerate(scores(np.random.default_rng(0), 2000, 1, 0))
        ],
        {},
        "the eval split holds 150 answers",
    ),
    "hardly a failure": (halves(scores(np.random.default_rng(0), 1800, 0.1, 5)), {}, "fewer than 50 of one"),
    "no logits": (
        [replace(s, logit=None) for s in halves(scores(np.random.default_rng(0), 1800, 1, 0))],
        {},
        "the candidates have no logits",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_fit_that_would_prove_nothing_is_refused(name: str):
    items, fields, message = REFUSALS[name]
    with pytest.raises(InputError, match=message):
        fit_of(items, **fields)


def test_one_outcome_alone_cannot_be_fitted_whatever_the_minimum():
    items = [replace(s, outcome=1) for s in halves(scores(np.random.default_rng(0), 60, 1, 0))]
    with pytest.raises(InputError, match="0 failures: fewer than 1 of one, which no sigmoid can be fitted to"):
        fit_of(items, Minimums(examples=1, per_class=0, held_out=1, cell=0))


# What is in force before.


def test_recorded_temperatures_and_platt_are_what_the_engine_applied():
    items = [replace(item, temperature=1.76) for item in answers(np.random.default_rng(0), 3, 1.0)]
    found = recorded(logits_file(items, engines=[{"calibration": "cal-1"}]))
    assert (found.version, found.temperature(items[0])) == ("cal-1", 1.76)
    routed = recorded(
        logits_file(scores(np.random.default_rng(0), 2, 1, 0), engines=[{"router_calibration": [2, 0.5]}])
    )
    assert (routed.version, routed.platt) == ("platt", (2.0, 0.5))


@pytest.mark.parametrize(
    "engine", [None, {}, {"calibration": 3, "router_calibration": ["a", 1]}, {"router_calibration": [1]}]
)
def test_an_engine_that_says_nothing_sound_is_taken_as_uncalibrated(engine: dict[str, Any] | None):
    for items in (answers(np.random.default_rng(0), 2, 1.0), scores(np.random.default_rng(0), 2, 1, 0)):
        found = recorded(logits_file(items, engines=[engine]))
        assert (found.version, found.platt) == ("none", (1.0, 0.0))
    assert found.probability(scores(np.random.default_rng(0), 1, 1, 0)[0]) > 0


def spec_file(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"spec_version": 1, "layout": "laya"} | fields))
    return path


def test_a_spec_gives_its_calibration_and_a_silent_one_keeps_what_was_recorded(tmp_path: Path):
    items = [replace(item, temperature=1.76) for item in answers(np.random.default_rng(0), 2, 1.0)]
    found = logits_file(items)
    block = {"method": "temperature", "temperature": {"all": 1.5}}
    assert from_spec(spec_file(tmp_path, calibration=block), found).temperature(items[0]) == 1.5
    assert from_spec(spec_file(tmp_path), found).temperature(items[0]) == 1.76
    assert from_spec(spec_file(tmp_path, calibration=None), found).temperature(items[0]) == 1.0
    assert uncalibrated().temperature(items[0]) == 1.0
    with pytest.raises(SpecError, match="only laya has a calibration here"):
        from_spec(spec_file(tmp_path, layout="clef"), found)


def test_a_fit_file_gives_what_was_fitted(tmp_path: Path):
    items = halves(answers(np.random.default_rng(1), 600, 1.5))
    made = fit_of(items)
    path = tmp_path / "fit.json"
    write_result(path, made.to_json())
    assert from_fit(path, made.logits).temperature(items[0]) == made.block["temperature"]["choice"]["*"]


SOUND_FIT = {
    "format": "layactl.calib-fit/1",
    "kind": "decision",
    "engine": {"model": "simulated", "kernels": "reference"},
    "calibration": {"method": "temperature", "temperature": {"choice": 1.5}},
    "split": {"heldout_frac": 0.3, "resplit": False, "fitted_on": ["0" * 32]},
}
BROKEN_FITS: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "not valid JSON"),
    "a list": ([], "is no fit"),
    "another format": (SOUND_FIT | {"format": "x"}, "is no fit: its format is 'x'"),
    "no kind": (SOUND_FIT | {"kind": None}, "kind is missing"),
    "another kind": (SOUND_FIT | {"kind": "router"}, "fits router logits"),
    "another engine": (SOUND_FIT | {"engine": {}}, "another engine"),
    "no block": (SOUND_FIT | {"calibration": None}, "calibration is missing"),
    "a broken block": (
        SOUND_FIT | {"calibration": {"method": "temperature", "temperature": {"choice": -1}}},
        "must be positive",
    ),
    "no split": (SOUND_FIT | {"split": None}, "split is missing"),
    "a share above one": (SOUND_FIT | {"split": {"heldout_frac": 2}}, r"split\.heldout_frac must be between 0 and 1"),
    "fitted on nothing": (
        SOUND_FIT | {"split": {"heldout_frac": 0.3, "resplit": False, "fitted_on": []}},
        r"split\.fitted_on must hold",
    ),
}


@pytest.mark.parametrize("name", BROKEN_FITS)
def test_a_broken_fit_file_is_refused_by_name(tmp_path: Path, name: str):
    value, message = BROKEN_FITS[name]
    path = tmp_path / "fit.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    with pytest.raises((InputError, SpecError), match=message):
        from_fit(path, logits_file(answers(np.random.default_rng(0), 2, 1.0)))


# The spec.


def router_fit(**engine: Any) -> Fit:
    return fit_of(halves(scores(np.random.default_rng(3), 1800, 0.9, 0.1)), engines=[engine] if engine else [None])


@pytest.mark.parametrize(
    ("reported", "pinned"),
    [
        ("reference", "reference"),
        ("onednn", "onednn"),
        ("cpu", "default"),
        ("cpu+blas", "blas"),
        ("cpu+repack", "repack"),
        ("cpu+repack+blas", "repack+blas"),
    ],
)
def test_the_spec_pins_the_kernels_of_the_logits(reported: str, pinned: str):
    text, notes = updated_spec(router_fit(kernels=reported), None)
    assert json.loads(text)["plan"] == {"kernels": pinned}
    assert notes == []


@pytest.mark.parametrize("engine", [{}, {"kernels": "cuda"}, {"kernels": 7}])
def test_kernels_nobody_knows_are_not_pinned_and_that_is_said(engine: dict[str, Any]):
    text, notes = updated_spec(router_fit(**engine), None)
    assert "plan" not in json.loads(text)
    assert notes == ["the logits do not say which kernels computed them; plan.kernels stays as it is"]


def test_all_else_of_the_spec_stays(tmp_path: Path):
    base = {
        "model_id": "m",
        "calibration": {"method": "temperature", "temperature": {"choice": {"11+": 9.0}}, "version": "old"},
        "plan": {"name": "packed", "kernels": "auto"},
        "router": {"max_card_tokens": 300},
    }
    path = spec_file(tmp_path, **base)
    changed = json.loads(updated_spec(router_fit(kernels="onednn"), path)[0])
    assert changed["router"]["max_card_tokens"] == 300 and changed["router"]["calibration"]["method"] == "platt"
    assert changed["plan"] == {"name": "packed", "kernels": "onednn"}
    assert changed["calibration"] == base["calibration"]
    fitted = fit_of(halves(answers(np.random.default_rng(1), 600, 1.5)))
    changed = json.loads(updated_spec(fitted, path)[0])
    # An old bucket beside new temperatures would win over them.
    assert changed["calibration"] == fitted.block
    assert changed["router"] == base["router"]


def test_a_required_calibration_stays_required_and_complete(tmp_path: Path):
    path = spec_file(tmp_path, calibration={"method": "temperature", "required": True, "temperature": {"all": 1.0}})
    fitted = fit_of(halves(answers(np.random.default_rng(1), 600, 1.5)))
    assert json.loads(updated_spec(fitted, path)[0])["calibration"]["required"] is True


SHIPPED = {"noul": {"1-2": 1.43, "*": 1.1}, "choice": {"11+": 9.0, "*": 1.3}}


@pytest.mark.parametrize(("fitted_type", "options"), [("noul", 2), ("choice", 4), ("score", 3)])
def test_types_that_were_not_fitted_keep_the_temperatures_of_the_base(tmp_path: Path, fitted_type: str, options: int):
    block = {"method": "temperature", "temperature": SHIPPED | {"all": 0.9}}
    path = spec_file(tmp_path, calibration=block)
    fitted = fit_of(halves(answers(np.random.default_rng(1), 600, 2.5, options=options, type=fitted_type)))
    text, _ = updated_spec(fitted, path)
    before, after = (parse(spec, "a test").calibration for spec in (path.read_text(), text))
    for question_type in ("noul", "choice", "score"):
        for count in (2, 4, 12):
            old, new = (c.temperature_for(question_type, count) for c in (before, after))
            assert new == (fitted.block["temperature"][fitted_type]["*"] if question_type == fitted_type else old)


def test_what_the_base_applies_outside_the_clamp_stays_as_it_was_applied(tmp_path: Path):
    block = {"method": "temperature", "clamp": [0.1, 20.0], "temperature": {"choice": 9.0, "score": 30.0}}
    path = spec_file(tmp_path, calibration=block)
    fitted = fit_of(halves(answers(np.random.default_rng(1), 600, 2.5, options=2, type="noul")))
    changed = parse(updated_spec(fitted, path)[0], "a test").calibration
    assert (changed.temperature_for("choice", 4), changed.temperature_for("score", 4)) == (9.0, 20.0)


def test_types_whose_base_is_not_known_are_named(tmp_path: Path):
    fitted = fit_of(halves(answers(np.random.default_rng(1), 600, 2.5)))
    for said in (fitted.warnings[0], fitted.to_json()["warnings"][0], fit_tables(fitted)[0].note):
        assert said.startswith(
            "score, noul: no answers, 'all' of the other types speaks for them; what the model ships"
        )


@pytest.mark.parametrize(("items", "why"), [(400, "too few"), (900, "all logits are equal, any T is as likely")])
def test_a_fit_without_a_single_temperature_is_refused(items: int, why: str):
    found = halves(answers(np.random.default_rng(1), items, 1.5, spread=1.0 if items == 400 else 0.0))
    with pytest.raises(InputError, match=f"no temperature can be fitted to its .* answers: {why}"):
        fit_of(found, replace(DECISION_MINIMUMS, cell=300))


def test_equal_logits_beside_others_fall_back_to_the_wider_temperature():
    rng = np.random.default_rng(1)
    flat = [replace(a, member=member(9000 + i)) for i, a in enumerate(answers(rng, 300, 1.0, spread=0.0, type="score"))]
    made = fit_of(halves([*answers(rng, 600, 1.5), *flat]))
    cell = next(cell for cell in made.cells if cell.type == "score")
    assert cell.fit is None and "any T is as likely" in cell.why
    assert "score" not in made.block["temperature"]


def test_a_bare_calibration_is_no_spec_to_put_one_into(tmp_path: Path):
    path = tmp_path / "calibration.json"
    path.write_text('{"temperature": 1.5}')
    with pytest.raises(SpecError, match="bare calibration"):
        updated_spec(router_fit(kernels="onednn"), path)


# The command, over a model.


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory, gguf_for: Callable[..., Path]) -> tuple[Path, Path, LogitsFile]:
    """(model, its logits over 60 labelled decisions): a private copy of the model, to stamp."""
    from layactl.calib.collect import collect
    from layactl.calib.scorer import EngineScorer
    from layactl.gguf_file.reader import GgufFile
    from layactl.labelled.labelled_file import read_labelled

    folder = tmp_path_factory.mktemp("fit")
    model = Path(shutil.copy(gguf_for(), folder / "model.gguf"))
    records = [
        decision(
            i, state=f"Ticket {i}", gold={"refund": i % 2 == 0, "team": ["billing", "tech"][i % 2], "urgency": i % 3}
        )
        for i in range(60)
    ]
    data = read_labelled(jsonl(folder / "data.jsonl", records))
    collect(data, EngineScorer(package.load(model), GgufFile(model)), folder / "logits.jsonl")
    return model, folder / "logits.jsonl", read_logits(folder / "logits.jsonl")


SMALL = ("--min-examples", 30, "--min-eval", 10, "--min-count", 20, "--resamples", 50)


def test_fit_stamps_the_model_which_then_answers_with_it(
    tmp_path: Path, cli: Callable[..., Any], collected: tuple[Path, Path, LogitsFile]
):
    model, logits, found = collected
    own = Path(shutil.copy(model, tmp_path / "model.gguf"))
    done = cli(
        "calib", "fit", logits, "-o", tmp_path / "fit.json", "--spec-out", tmp_path / "new.json", "--stamp", own, *SMALL
    )
    assert done.code == 0, done.err
    block = json.loads(done.out.splitlines()[-1])
    assert "held out" in done.out and "IN SAMPLE" in done.out
    stamped = package.load(own)
    assert stamped.spec.text == (tmp_path / "new.json").read_text()
    for question_type, buckets in block["temperature"].items():
        for bucket, temperature in buckets.items():
            assert stamped.spec.calibration.temperature[question_type][bucket] == temperature
    assert stamped.spec.plan.kernels == found.one_engine()["kernels"]  # type: ignore[index]
    # A gate that is certified for the fit is a gate for the stamped model.
    gate = tmp_path / "gate.json"
    assert cli("calib", "threshold", logits, "--fit", tmp_path / "fit.json", "--alpha", 0.9, "-o", gate).code == 0
    asks = ("--ask", "refund=noul: Asks for money back?", "--min-confidence", gate)
    assert cli("decide", "-m", own, "Ticket", *asks).code == 0
    before = cli("decide", "-m", model, "Ticket", *asks)
    assert before.code == 2 and "was certified with calibration cal-" in before.err
    # The stamped file is no longer the one the logits came from.
    again = cli("calib", "fit", logits, "--stamp", own, *SMALL)
    assert again.code == 2 and "is not the file that the logits came from" in again.err


def test_a_stamp_that_cannot_be_leaves_no_file_behind(
    tmp_path: Path, cli: Callable[..., Any], collected: tuple[Path, Path, LogitsFile]
):
    other = Path(shutil.copy(collected[0], tmp_path / "other.gguf"))
    with other.open("ab") as handle:
        handle.write(b"0")
    fit, spec = tmp_path / "fit.json", tmp_path / "spec.json"
    done = cli("calib", "fit", collected[1], "-o", fit, "--spec-out", spec, "--stamp", other, *SMALL)
    assert done.code == 2 and "is not the file that the logits came from" in done.error_lines[0]
    assert not fit.exists() and not spec.exists()


def test_a_stamp_keeps_what_the_model_ships_for_types_that_were_not_asked(
    tmp_path: Path, cli: Callable[..., Any], collected: tuple[Path, Path, LogitsFile]
):
    own = Path(shutil.copy(collected[0], tmp_path / "model.gguf"))
    before = package.load(own).spec.calibration
    lines = [json.loads(line) for line in collected[1].read_text().splitlines()]
    for line in lines:
        line["answers"] = {"refund": line["answers"]["refund"]}
    logits = jsonl(tmp_path / "nouls.jsonl", lines)
    done = cli("calib", "fit", logits, "-o", tmp_path / "fit.json", "--stamp", own, *SMALL)
    assert done.code == 0 and "choice, score: no answers, the temperatures of the base stay" in done.out
    after = package.load(own).spec.calibration
    for question_type, count in (("choice", 2), ("choice", 4), ("choice", 12), ("score", 3), ("score", 8)):
        assert after.temperature_for(question_type, count) == before.temperature_for(question_type, count)
    assert json.loads((tmp_path / "fit.json").read_text())["calibration"]["temperature"] == after.temperature


def test_fit_prints_its_result_as_one_record(cli: Callable[..., Any], collected: tuple[Path, Path, LogitsFile]):
    done = cli("calib", "fit", collected[1], "--format", "json", *SMALL)
    assert json.loads(done.out)["format"] == "layactl.calib-fit/1"
    assert done.out.count("\n") == 1


def test_fit_refuses_to_replace_what_it_reads(cli: Callable[..., Any], collected: tuple[Path, Path, LogitsFile]):
    before = collected[1].read_bytes()
    assert cli("calib", "fit", collected[1], "-o", collected[1], *SMALL).code == 2
    assert collected[1].read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--before", "1"], "must be two numbers"),
        (["--before", "1,x"], "must be two numbers"),
        (["--before", "nan,0"], "must be two numbers"),
        (["--heldout-frac", "1.5"], "must be between 0 and 1"),
        (["--min-eval", "-1"], "must not be negative"),
    ],
)
def test_wrong_options_are_one_line(tmp_path: Path, cli: Callable[..., Any], options: list[str], message: str):
    path = jsonl(tmp_path / "o.jsonl", [outcomes(i, candidates=[candidate(logit=1.0)]) for i in range(3)])
    done = cli("calib", "fit", path, *options)
    assert done.code == 2
    assert message in done.error_lines[0]


def test_before_is_for_routers(cli: Callable[..., Any], collected: tuple[Path, Path, LogitsFile]):
    assert "goes with router outcomes" in cli("calib", "fit", collected[1], "--before", "1,0").err
