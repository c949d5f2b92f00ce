"""Reports on recorded runs: quantiles, ratios a cycle, refusals, and no number that no gate covers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layactl.bench.compare import compare
from layactl.bench.kpi import quantile, ratio, read_measurements
from layactl.bench.parity_cover import read_gates, refusal
from layactl.bench.report import build_report
from layactl.errors import InputError, UsageError
from layactl.reporting.text_table import TextTable

from .recorded import ENGINE, REFERENCE, block, gate_report, write_result

TIMES = {"a": [10.0, 20.0], "b": [30.0, 40.0], "r": [50.0, 60.0]}


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=60), st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values: list[float], q: float):
    assert quantile(values, q) == pytest.approx(float(np.quantile(values, q)), rel=1e-12)


def test_a_ratio_pairs_blocks_of_one_cycle(tmp_path: Path):
    write_result(tmp_path, "fast", [block(10.0, cycle=0), block(30.0, cycle=1), block(20.0, cycle=2)])
    write_result(tmp_path, "slow", [block(20.0, cycle=0), block(90.0, cycle=1)], REFERENCE)
    fast, slow = read_measurements(tmp_path)
    found = ratio(fast, slow, "systemone 1q")
    assert found is not None
    assert (found.median, found.low, found.high, found.cycles) == (2.5, 2.0, 3.0, 2)


def test_a_disturbed_attempt_does_not_count_where_a_better_one_followed(tmp_path: Path):
    write_result(tmp_path, "x", [block(99.0, disturbed="others used 1.00 cores"), block(10.0, attempt=1)])
    (found,) = read_measurements(tmp_path)
    assert set(found.times("systemone 1q")) == {10.0}


@pytest.mark.parametrize(
    "blocks, expected",
    [
        ([block(1.0), block(1.0, cycle=1)], True),
        ([block(1.0), block(1.0, cycle=1, logits="other")], False),
        ([block(1.0, logits=None)], None),
    ],
    ids=["one hash", "two hashes", "none shown"],
)
def test_logits_are_the_same_only_over_all_blocks(blocks, expected, tmp_path: Path):
    write_result(tmp_path, "x", blocks)
    assert read_measurements(tmp_path)[0].deterministic is expected


COVERED = {
    "a passing gate": ([gate_report()], None),
    "a gate it was the baseline of": ([gate_report(source_manifest="other", baseline=ENGINE)], None),
    "no gate": ([], "no gate report was given"),
    "a failed gate": ([gate_report("fail")], "says fail"),
    "a refused gate": ([gate_report("refused")], "says refused"),
    "a gate passed over a mismatch": ([gate_report(mismatches=["kernels"])], "over an identity mismatch"),
    "another model": ([gate_report(model={"sha256": "x" * 64})], "another model file"),
    "other source files": ([gate_report(source_manifest="x" * 64)], "other source files"),
    "other kernels": ([gate_report(kernels="reference")], "other kernels"),
    "another precision": ([gate_report(precision="bf16")], "another precision"),
    "the nearest of several": (
        [gate_report(model={"sha256": "x"}, kernels="y"), gate_report(precision="bf16")],
        "another precision",
    ),
    "one that covers among others": ([gate_report("fail"), gate_report(kernels="y"), gate_report()], None),
}


@pytest.mark.parametrize("name", COVERED)
def test_a_result_is_covered_by_a_passing_gate_of_itself_and_by_nothing_else(name: str, tmp_path: Path):
    gates, reason = COVERED[name]
    for n, gate in enumerate(gates):
        (tmp_path / f"gate{n}.json").write_text(json.dumps(gate))
    write_result(tmp_path / "out", "x", [block(1.0)])
    found = refusal(read_measurements(tmp_path / "out")[0].identity, read_gates([tmp_path]))
    assert (found is None) == (reason is None)
    assert reason is None or (found is not None and reason in found)


def test_a_gate_over_several_candidates_is_a_list(tmp_path: Path):
    (tmp_path / "gate.json").write_text(json.dumps([gate_report(kernels="y"), gate_report()]))
    write_result(tmp_path / "out", "x", [block(1.0)])
    assert refusal(read_measurements(tmp_path / "out")[0].identity, read_gates([tmp_path / "gate.json"])) is None


def text_of(folder: Path, gates: Path | None, **options: object) -> str:
    given = read_gates([gates] if gates else [])
    options = {"reference": None, "allow_ungated": False, **options}
    return build_report(read_measurements(folder), given, **options).markdown()  # type: ignore[arg-type]


def test_a_refused_result_shows_a_reason_and_no_number(tmp_path: Path):
    write_result(tmp_path, "mine", [block(123.4)])
    text = text_of(tmp_path, None)
    assert "| mine | no gate report was given |" in text
    assert "123" not in text


def test_a_covered_result_shows_everything(tmp_path: Path):
    (tmp_path / "gate.json").write_text(json.dumps(gate_report()))
    out = tmp_path / "out"
    write_result(out, "mine", [block(TIMES), block(TIMES, cycle=1)])
    write_result(out, "laya", [block(100.0, logits=None), block(100.0, cycle=1, logits=None)], REFERENCE)
    text = text_of(out, tmp_path / "gate.json")
    assert "| systemone 1q | 100.0 / 100.0 / 100.0 | 25.0 / 40.0 / 40.0 |" in text
    assert "Speed against laya" in text
    assert "| systemone 1q | 4.00x (4.00 - 4.00, n=2) |" in text
    assert "| mine | 12 | 34.0 | 100 / 100 / 150 | yes | 0.00 | 0 | 0 of 2 |" in text
    assert "Refused" not in text


def test_what_is_shown_without_a_gate_is_marked(tmp_path: Path):
    write_result(tmp_path, "mine", [block(10.0)])
    assert "mine (ungated)" in text_of(tmp_path, None, allow_ungated=True)


def test_a_group_that_was_refused_says_so_instead_of_a_time(tmp_path: Path):
    write_result(tmp_path, "mine", [block(10.0, refused=["r"])])
    assert "| router N=1 | CARD_TOO_LONG |" in text_of(tmp_path, None, allow_ungated=True)


def test_ratios_are_against_the_first_peer_by_name(tmp_path: Path):
    for label in ("laya-bf16", "laya"):
        write_result(tmp_path, label, [block(20.0, logits=None)], REFERENCE)
    write_result(tmp_path, "a", [block(10.0)])
    assert "Speed against laya\n" in text_of(tmp_path, None, allow_ungated=True)


def test_ratios_are_against_what_was_asked_for(tmp_path: Path):
    for label, ms in (("a", 10.0), ("b", 20.0)):
        write_result(tmp_path, label, [block(ms)])
    assert "Speed against b (ungated)" in text_of(tmp_path, None, allow_ungated=True, reference="b")
    with pytest.raises(UsageError, match="'c'"):
        text_of(tmp_path, None, reference="c")


def test_configurations_of_one_file_are_held_to_each_other_bit_by_bit(tmp_path: Path):
    for label, logits in (("t1", "l"), ("t2", "l"), ("t4", "other")):
        write_result(tmp_path, label, [block(10.0, logits=logits)])
    text = text_of(tmp_path, None, allow_ungated=True)
    assert "| t2 (ungated) | t1 (ungated) | 3 of 3 | yes |" in text
    assert "| t4 (ungated) | t1 (ungated) | 0 of 3 | no |" in text


def test_the_first_request_after_a_pause_is_told_against_the_usual_one(tmp_path: Path):
    write_result(tmp_path, "x", [block(10.0, after_idle={"a": 15.0, "b": 15.0, "r": None})])
    text = text_of(tmp_path, None, allow_ungated=True)
    assert "| systemone 1q | 1.50x |" in text.partition("idle pause")[2]


def test_markdown_holds_no_markup_and_no_control_characters_of_a_name():
    table = TextTable("t <i>", ["a|b", "\x1b[31m"], [["<script>", "\u202e"]])
    text = table.markdown()
    assert "<" not in text.replace("&lt;", "") and "\x1b" not in text and "\u202e" not in text
    assert "a\\|b" in text


def test_one_result_file_is_read_as_a_folder_of_it_is(tmp_path: Path):
    path = write_result(tmp_path, "x", [block(10.0)])
    assert [one.label for one in read_measurements(path)] == ["x"]


BROKEN = {
    "no JSON": "{",
    "a result without blocks": json.dumps({"format": "layactl.bench/1", "label": "x"}),
    "times that are no numbers": json.dumps(
        {
            "format": "layactl.bench/1",
            "label": "x",
            "suite": {"groups": {"g": ["a"]}},
            "blocks": [
                {
                    "cycle": 0,
                    "load_ms": 1,
                    "memory": {},
                    "foreign_cores": 0,
                    "requests": {"a": {"ms": {"total": ["fast"]}}},
                }
            ],
        }
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_result_is_named(name: str, tmp_path: Path):
    (tmp_path / "x.json").write_text(BROKEN[name])
    with pytest.raises(InputError, match=r"x\.json"):
        read_measurements(tmp_path)


def test_a_folder_without_results_is_none(tmp_path: Path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="no result"):
        read_measurements(tmp_path)


def test_a_group_that_became_slower_than_the_threshold_and_the_old_spread_is_a_regression(tmp_path: Path):
    old, new = tmp_path / "old", tmp_path / "new"
    write_result(old, "steady", [block(10.0), block(10.0, cycle=1)])
    write_result(new, "steady", [block(12.0)])
    write_result(old, "noisy", [block(8.0), block(12.0, cycle=1)])
    write_result(new, "noisy", [block(12.0)])
    changes = {(c.label, c.group): c for c in compare(read_measurements(old), read_measurements(new))}
    assert changes["steady", "systemone 1q"].regressed(0.1)
    assert not changes["steady", "systemone 1q"].regressed(0.25)
    # It wandered by as much on its own.
    assert not changes["noisy", "systemone 1q"].regressed(0.1)


def test_what_cannot_be_compared_is_not(tmp_path: Path):
    old, new = tmp_path / "old", tmp_path / "new"
    write_result(old, "x", [block(10.0)])
    write_result(new, "y", [block(10.0)])
    with pytest.raises(UsageError, match="in common"):
        compare(read_measurements(old), read_measurements(new))
    write_result(new, "x", [block(10.0)], machine={"cpu": "another"})
    with pytest.raises(UsageError, match="CPUs"):
        compare(read_measurements(old), read_measurements(new))
    write_result(new, "x", [block(10.0)], suite={"sha256": "other", "groups": {}})
    with pytest.raises(UsageError, match="suites"):
        compare(read_measurements(old), read_measurements(new))
