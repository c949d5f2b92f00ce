"""`layactl parity`: exit codes, one verdict line, reports that can be read by a machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from layactl.parity.shipped import shipped

Cli = Callable[..., Any]

REPORT = {
    "type": "object",
    "required": ["format", "verdict", "tier", "row", "tiers", "compared", "failures", "bounds", "flips", "worst"],
    "properties": {
        "format": {"const": "layactl.parity-gate/1"},
        "verdict": {"enum": ["pass", "fail", "refused"]},
        "tiers": {"required": ["version", "sha256"]},
        "bounds": {"items": {"required": ["name", "value", "limit", "margin", "passed", "item", "question"]}},
        "flips": {"required": ["count", "fraction", "questions"]},
    },
}


@pytest.fixture(scope="module")
def engine_run(gguf_for: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few items of the corpus."""
    from layactl.cli.app import main

    out = tmp_path_factory.mktemp("runs") / "run.jsonl"
    assert main(["parity", "run", "-m", str(gguf_for("tiny-english")), "-o", str(out), "--every", "100", "-q"]) == 0
    return out


def copied(run: Path, folder: Path, change: Callable[[list[dict[str, Any]]], object]) -> Path:
    records = [json.loads(line) for line in run.read_text(encoding="utf-8").splitlines()]
    change(records)
    out = folder / "changed.jsonl"
    out.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    (folder / "changed.meta.json").write_bytes(run.with_name("run.meta.json").read_bytes())
    return out


def test_a_pass_is_exit_code_0_and_its_last_line_says_so(cli: Cli, engine_run: Path, tmp_path: Path):
    report = tmp_path / "gate.json"
    done = cli("parity", "compare", engine_run, engine_run, "--gate", "f16-class", "--json", report)
    assert done.code == 0
    assert done.out.splitlines()[-1].startswith("PASS f16-class: ")
    content = json.loads(report.read_text())
    validate(content, REPORT)
    assert (content["verdict"], content["failures"]) == ("pass", {})


def test_a_failure_is_exit_code_1_and_names_the_question(cli: Cli, engine_run: Path, tmp_path: Path):
    def change(records: list[dict[str, Any]]) -> None:
        next(iter(records[1]["questions"].values()))["ids"][0] += 1

    changed = copied(engine_run, tmp_path, change)
    report = tmp_path / "gate.json"
    done = cli("parity", "compare", engine_run, changed, "--gate", "f16-class", "--json", report)
    assert done.code == 1
    assert done.out.splitlines()[-1] == "FAIL f16-class: ids_differ 1"
    content = json.loads(report.read_text())
    validate(content, REPORT)
    named = content["worst"]["ids_differ"]
    assert f"{named['item']}/{named['question']}: " in done.out


def test_a_refusal_is_exit_code_2_and_says_why(cli: Cli, engine_run: Path):
    done = cli("parity", "compare", engine_run, engine_run, "--gate", "strict-f32")
    assert done.code == 2
    assert done.out.splitlines()[-1].startswith("REFUSED strict-f32: the baseline's side is engine")
    allowed = cli("parity", "compare", engine_run, engine_run, "--gate", "strict-f32", "--allow-identity-mismatch")
    assert allowed.code == 0
    assert "identity mismatches ignored" in allowed.out.splitlines()[-1]


def test_several_candidates_are_judged_and_a_failure_beats_a_refusal(cli: Cli, engine_run: Path, tmp_path: Path):
    changed = copied(engine_run, tmp_path, lambda records: records.pop())
    report = tmp_path / "gate.json"
    done = cli("parity", "compare", engine_run, engine_run, changed, "--gate", "f16-class", "--json", report)
    assert done.code == 1
    assert [gate["verdict"] for gate in json.loads(report.read_text())] == ["pass", "fail"]


USAGE = {
    "an unknown tier": (["--gate", "f8-class"], 2, "no tier is called 'f8-class'"),
    "no tier": ([], 2, "--gate"),
    "a tiers file that is none": (["--gate", "f16-class", "--tiers", "PLAIN"], 1, "is no tiers file"),
    "a report that cannot be written": (["--gate", "f16-class", "--json", "/nowhere/x.json"], 1, "/nowhere/x.json"),
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_usage_is_one_line(name: str, cli: Cli, engine_run: Path, tmp_path: Path):
    arguments, code, fragment = USAGE[name]
    (tmp_path / "plain").write_text("plain")
    arguments = [argument.replace("PLAIN", str(tmp_path / "plain")) for argument in arguments]
    done = cli("parity", "compare", engine_run, engine_run, *arguments)
    assert (done.code, len(done.error_lines)) == (code, 1)
    assert fragment in done.err


@pytest.mark.parametrize("shard", ["1", "1/1", "2/1", "a/b", "-1/2", "0/0"])
def test_a_shard_is_i_of_n(shard: str, cli: Cli, gguf_for: Callable[..., Path], tmp_path: Path):
    done = cli("parity", "run", "-m", gguf_for(), "-o", tmp_path / "x.jsonl", f"--shard={shard}")
    assert (done.code, done.error_lines) == (2, [f"error: must be I/N with I below N (--shard {shard})"])


def test_a_run_of_one_item_by_name(cli: Cli, gguf_for: Callable[..., Path], engine_run: Path, tmp_path: Path):
    first = json.loads(engine_run.read_text().splitlines()[0])
    out = tmp_path / "one.jsonl"
    assert cli("parity", "run", "-m", gguf_for("tiny-english"), "-o", out, "--item", first["id"]).code == 0
    assert json.loads(out.read_text()) == first
    done = cli("parity", "run", "-m", gguf_for("tiny-english"), "-o", out, "--item", "nobody")
    assert (done.code, done.error_lines) == (2, ["error: no item is called 'nobody'"])


def test_the_shipped_corpus_and_tiers_are_what_they_say(cli: Cli, tmp_path: Path):
    done = cli("parity", "corpus", "--check", "-o", tmp_path / "items.jsonl")
    assert done.code == 0
    summary = json.loads(done.out)
    assert (tmp_path / "items.jsonl").read_bytes().count(b"\n") == summary["items"]
    done = cli("parity", "derive", "--check")
    assert (done.code, done.out.count("\n")) == (0, 1)


def test_an_edited_tier_is_exit_code_1_where_it_is_checked(cli: Cli, tmp_path: Path):
    content = json.loads(shipped("tiers.json").read_text())
    content["tiers"]["strict-f32"]["rows"][0]["max_abs_error"] = 1e-3
    (tmp_path / "tiers.json").write_text(json.dumps(content))
    done = cli("parity", "derive", "--tiers", tmp_path / "tiers.json", "--check")
    assert (done.code, done.out) == (1, "differs: strict-f32: the published rows were edited\n")


def test_a_pair_shows_the_row_it_gives(cli: Cli, engine_run: Path):
    done = cli(
        *("parity", "derive", "--gate", "f16-class", "--pair", f"{engine_run.name},{engine_run.name}"),
        *("--runs", engine_run.parent),
    )
    assert done.code == 0
    row = json.loads(done.out)
    assert (row["source"], row["max_abs_dp"], row["weights"]) == ("derived", 0.0, ["F32"])
    done = cli("parity", "derive", "--pair", "one")
    assert (done.code, done.error_lines) == (2, ["error: a pair is BASELINE,CANDIDATE (--pair)"])
