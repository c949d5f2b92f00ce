"""tiers.json: what a tiers file must be, that published rows stay, and how derived rows come about."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layactl.errors import InputError, UsageError
from layactl.parity.answering import engine_record
from layactl.parity.derive import bound_of, check_tiers, row_from_pairs, seen_of
from layactl.parity.shipped import shipped
from layactl.parity.tiers import read_tiers

from .run_maker import ENGINE, Pair, items

SHIPPED: dict[str, Any] = json.loads(shipped("tiers.json").read_text(encoding="utf-8"))
Edit = Callable[[dict[str, Any]], object]


def edited(folder: Path, edit: Edit) -> Path:
    content = copy.deepcopy(SHIPPED)
    edit(content)
    path = folder / "tiers.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def row(content: dict[str, Any], tier: str = "f16-class", n: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = content["tiers"][tier]["rows"][n]
    return found


def test_the_shipped_file_is_what_it_says_it_is():
    tiers = read_tiers(shipped("tiers.json"))
    assert list(check_tiers(tiers, None)) == []
    assert {"strict-f32", "f16-class", "bf16-class"} <= tiers.tiers.keys()


def test_an_unknown_tier_names_the_known_ones():
    with pytest.raises(UsageError) as error:
        read_tiers(shipped("tiers.json"))["f8-class"]
    assert error.value.hint is not None and "strict-f32, f16-class, bf16-class" in error.value.hint


MALFORMED: dict[str, tuple[Edit, str]] = {
    "another schema": (lambda c: c.update(schema="x/1"), "schema is not layactl.parity-tiers/1"),
    "no version": (lambda c: c.pop("version"), "version is missing"),
    "tiers as a list": (lambda c: c.update(tiers=[]), "tiers must be an object"),
    "an unknown status": (lambda c: c["tiers"]["f16-class"].update(status="maybe"), "f16-class.status must be one of"),
    "an unknown rule": (lambda c: c["tiers"]["f16-class"].update(rule="kind"), "f16-class.rule must be one of"),
    "a registered tier without rows": (lambda c: c["tiers"]["f16-class"].update(rows=[]), "rows must hold a row"),
    "an unregistered tier with a row": (
        lambda c: c["tiers"]["f16-class"].update(status="unregistered"),
        "rows must be empty",
    ),
    "a row as text": (lambda c: c["tiers"]["f16-class"].update(rows=["x"]), "rows[0] must be an object"),
    "a missing bound": (lambda c: row(c).pop("max_abs_dp"), "rows[0].max_abs_dp is missing"),
    "a bound as text": (lambda c: row(c).update(max_abs_dp="0.5"), "max_abs_dp must be a finite number"),
    "a negative bound": (lambda c: row(c).update(max_abs_dp=-1), "max_abs_dp must not be negative"),
    "a bound of the other rule": (lambda c: row(c).update(max_abs_error=1), "max_abs_error is no field of a row"),
    "an unknown source": (lambda c: row(c).update(source="measured"), "source must be one of"),
    "a derived row without pairs": (lambda c: row(c).update(source="derived"), "pairs must name the runs"),
    "a published row with pairs": (
        lambda c: row(c).update(pairs=[{"baseline": "a", "candidate": "b", "seen": {}}]),
        "pairs must name the runs of a derived row, and only of one",
    ),
    "a pair as text": (lambda c: row(c).update(pairs=["a"]), "pairs[0] must be an object"),
    "weights as text": (lambda c: row(c).update(weights="F16"), "weights must be a list"),
    "a row in the shadow of another": (
        lambda c: c["tiers"]["f16-class"]["rows"].append({**row(c), "weights": ["BF16", "F16"]}),
        "rows[2] is for runs that another row is for: F16/F32/Q8_0 weights",
    ),
    "an unknown known difference": (
        lambda c: c["tiers"]["f16-class"].update(known_differences=["anything"]),
        "known_differences holds 'anything'",
    ),
    "an unknown identity field": (
        lambda c: c["tiers"]["f16-class"]["baseline"].update(colour=["red"]),
        "baseline.colour is no field that a tier looks at",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_refused_by_the_field(name: str, tmp_path: Path):
    edit, fragment = MALFORMED[name]
    path = edited(tmp_path, edit)
    with pytest.raises(InputError) as error:
        read_tiers(path)
    assert fragment in error.value.message
    assert error.value.where == str(path)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"schema": NaN}', b"\xff"])
def test_what_is_no_json_object_is_refused(data: bytes, tmp_path: Path):
    (tmp_path / "tiers.json").write_bytes(data)
    with pytest.raises(InputError, match="is no tiers file"):
        read_tiers(tmp_path / "tiers.json")


PUBLISHED_EDITS: dict[str, tuple[Edit, str]] = {
    "a wider gap": (lambda c: row(c).update(flip_max_gap=0.01), "f16-class: the published rows were edited"),
    "a narrower error": (lambda c: row(c, "strict-f32").update(max_abs_error=1e-5), "strict-f32: the published rows"),
    "more weights": (lambda c: row(c, "strict-f32").update(weights=["F32", "F16"]), "strict-f32: the published rows"),
    "a row less": (lambda c: c["tiers"]["f16-class"]["rows"].pop(), "f16-class: the published rows were edited"),
    "a tier less": (lambda c: c["tiers"].pop("strict-f32"), "strict-f32: the published tier is gone"),
    "more known differences": (
        lambda c: c["tiers"]["strict-f32"].update(known_differences=["server_no_act_head"]),
        "strict-f32: the published known_differences were edited",
    ),
    "any baseline": (lambda c: c["tiers"]["strict-f32"].update(baseline={}), "strict-f32: the published baseline was"),
    "any candidate": (lambda c: c["tiers"]["f16-class"].update(candidate={}), "f16-class: the published candidate was"),
    "the same model only": (
        lambda c: c["tiers"]["strict-f32"].update(same="model"),
        "strict-f32: the published same was",
    ),
    "another citation": (lambda c: row(c).update(citation="me"), "f16-class: the published rows were edited"),
    "a row nobody published": (
        lambda c: c["tiers"].update(own={**c["tiers"]["f16-class"]}),
        "own, F16/F32/Q8_0 weights, f32/f16 activations: nobody published this row",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED_EDITS)
def test_an_edited_published_row_is_told(name: str, tmp_path: Path):
    edit, fragment = PUBLISHED_EDITS[name]
    problems = list(check_tiers(read_tiers(edited(tmp_path, edit)), None))
    assert any(fragment in problem for problem in problems)


# The largest values that the published thresholds were derived from, and those thresholds.
@pytest.mark.parametrize(
    ("seen", "bound"),
    [
        (0.00444, 0.009),
        (0.00134, 0.003),
        (0.208, 0.5),
        (0.000609, 0.002),
        (0.0587, 0.2),
        (0.193, 0.4),
        (0.0092, 0.02),
        (0.00234, 0.005),
        (0.106, 0.3),
        (8.19e-5, 2e-4),
        (0.0, 0.0),
        (0.25, 0.5),
        (0.5, 1.0),
        (0.05, 0.1),
        (7.0, 20.0),
    ],
)
def test_a_bound_is_twice_the_largest_value_rounded_up_to_one_digit(seen: float, bound: float):
    assert bound_of(seen) == bound


# -- derived rows ------------------------------------------------------------------------------------------------------


@pytest.fixture
def bf16_pair(model_of: Callable[..., Any], tmp_path: Path) -> Pair:
    records = [engine_record(model_of("tiny-english"), item) for item in items()]
    pair = Pair(tmp_path, records, ENGINE, {**ENGINE, "activations": "bf16", "kernels": "onednn-bf16"})
    for n, question in enumerate(pair.questions(1)):
        answer = question["answer"]
        question["act_logits"][0] += 0.01 * (n % 3)
        if answer["type"] == "noul":
            answer["noul"] += 0.003
    return pair


def test_seen_are_the_largest_values_of_a_pair(bf16_pair: Pair):
    bf16_pair.runs()
    tiers = read_tiers(shipped("tiers.json"))
    folder = bf16_pair.folder
    seen = seen_of(tiers["bf16-class"], tiers, folder / "baseline.jsonl", folder / "candidate.jsonl")
    assert seen["max_abs_dp"] == pytest.approx(0.003)
    assert 0 < seen["mean_abs_dp"] < 0.003
    assert seen["act_max_rel_dlogit"] == pytest.approx(0.02, rel=0.5)
    assert (seen["flip_max_gap"], seen["max_flip_fraction"]) == (0, 0)


def test_a_pair_that_differs_in_more_than_numbers_derives_nothing(bf16_pair: Pair):
    del bf16_pair.candidate[0]["questions"]["team"]["answer"]
    bf16_pair.runs()
    tiers = read_tiers(shipped("tiers.json"))
    with pytest.raises(InputError, match="differ in more than numbers: missing_answer"):
        row_from_pairs(tiers["bf16-class"], tiers, [("baseline.jsonl", "candidate.jsonl")], bf16_pair.folder)


def test_a_pair_of_two_models_derives_nothing(bf16_pair: Pair):
    bf16_pair.identities[1]["model"]["sha256"] = "e" * 64
    bf16_pair.runs()
    tiers = read_tiers(shipped("tiers.json"))
    with pytest.raises(InputError, match="is no pair of bf16-class: the runs used different files"):
        row_from_pairs(tiers["bf16-class"], tiers, [("baseline.jsonl", "candidate.jsonl")], bf16_pair.folder)


def test_a_run_compared_with_itself_or_without_act_logits_derives_nothing(bf16_pair: Pair):
    tiers = read_tiers(shipped("tiers.json"))
    bf16_pair.runs()
    with pytest.raises(InputError, match="is compared with itself"):
        row_from_pairs(tiers["bf16-class"], tiers, [("baseline.jsonl", "baseline.jsonl")], bf16_pair.folder)
    for question in bf16_pair.questions(1):
        del question["act_logits"]
    bf16_pair.runs()
    with pytest.raises(InputError, match="has no act logits"):
        row_from_pairs(tiers["bf16-class"], tiers, [("baseline.jsonl", "candidate.jsonl")], bf16_pair.folder)


def test_a_derived_row_is_checked_against_its_runs_and_against_what_they_showed(bf16_pair: Pair, tmp_path: Path):
    bf16_pair.runs()
    tiers = read_tiers(shipped("tiers.json"))
    derived = row_from_pairs(tiers["bf16-class"], tiers, [("baseline.jsonl", "candidate.jsonl")], bf16_pair.folder)
    assert derived["max_abs_dp"] == bound_of(derived["pairs"][0]["seen"]["max_abs_dp"])  # type: ignore[index]

    def problems(edit: Edit, runs: Path | None) -> list[str]:
        def register(content: dict[str, Any]) -> None:
            content["tiers"]["bf16-class"].update(status="registered", rows=[copy.deepcopy(derived)])
            edit(row(content, "bf16-class"))

        return list(check_tiers(read_tiers(edited(tmp_path, register)), runs))

    for runs in (None, bf16_pair.folder):
        assert problems(lambda row: None, runs) == []
        assert "max_abs_dp is 0.5" in problems(lambda row: row.update(max_abs_dp=0.5), runs)[0]
    altered: Edit = lambda row: row["pairs"][0]["seen"].update(max_abs_dp=0.0031)  # noqa: E731
    assert problems(altered, None) == []  # 0.0062 rounds up to the same digit
    assert "shows max_abs_dp 0.00" in problems(altered, bf16_pair.folder)[0]
    assert "records no max_abs_dp" in problems(lambda row: row["pairs"][0]["seen"].pop("max_abs_dp"), None)[0]
    with pytest.raises(InputError, match="cannot be read"):
        problems(lambda row: None, tmp_path / "nowhere")
