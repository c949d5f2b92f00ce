"""`layactl parity`: exit codes, one verdict line, reports that can be read by a machine."""

from __future__ import annotations

import json
import shutil
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


def test_nothing_is_judged_before_all_runs_are_read(cli: Cli, engine_run: Path, tmp_path: Path):
    done = cli("parity", "compare", engine_run, engine_run, tmp_path / "none.jsonl", "--gate", "f16-class")
    assert (done.code, done.out, len(done.error_lines)) == (1, "", 1)


def test_a_table_that_goes_into_a_file_wraps_nothing(cli: Cli, engine_run: Path, tmp_path: Path):
    name = "a_long_name_of_an_item_" * 12

    def run(folder: str, shift: float) -> Path:
        def change(records: list[dict[str, Any]]) -> None:
            records[:] = [records[0] | {"id": name}]
            for question in records[0]["questions"].values():
                question["logits"][0] += shift

        (tmp_path / folder).mkdir()
        return copied(engine_run, tmp_path / folder, change)

    done = cli("parity", "compare", run("a", 0.0), run("b", 0.001), "--gate", "f16-class")
    (line,) = [line for line in done.out.splitlines() if "max_abs_dlogit" in line]
    assert f"{name}/" in line
    assert not [line for line in done.out.splitlines() if line != line.rstrip()]


# Command line, its output, and what it would replace or write into: names in a folder of inputs (CK a checkpoint).
CLASHES = {
    "trace: the checkpoint": (["trace", "--reference", "CK"], "CK/model.safetensors", "lies in the checkpoint"),
    "trace: inside the checkpoint": (["trace", "--reference", "CK"], "CK/encoder/new", "lies in the checkpoint"),
    "trace: the model": (["trace", "-m", "m.gguf"], "m.gguf", "is the model itself"),
    "trace: the model by another name": (["trace", "-m", "m.gguf"], "link.jsonl", "is the model itself"),
    "trace: the items": (["trace", "-m", "m.gguf", "items.jsonl"], "items.jsonl", "is the items itself"),
    "trace: the spec": (["trace", "-m", "m.gguf", "--spec", "spec.json"], "spec.json", "is the spec itself"),
    "ref: inside the checkpoint": (["ref", "CK"], "CK/new.jsonl", "lies in the checkpoint"),
    "ref: the items": (["ref", "CK", "items.jsonl"], "items.jsonl", "is the items itself"),
    "run: the model": (["run", "-m", "m.gguf"], "m.gguf", "must end in .jsonl"),
    "run: the model by another name": (["run", "-m", "m.gguf"], "link.jsonl", "is the model itself"),
    "run: the checkpoint": (["run", "-m", "CK"], "CK/new.jsonl", "lies in the model"),
    "run: the items": (["run", "-m", "m.gguf", "items.jsonl"], "items.jsonl", "is the items itself"),
    "run: the sidecar": (["run", "-m", "m.gguf", "x.meta.json"], "x.jsonl", "x.meta.json"),
    "run: the spec": (["run", "-m", "m.gguf", "--spec", "x.meta.json"], "x.jsonl", "is the spec itself"),
    "run: a shared sidecar": (["run", "-m", "m.gguf"], "x", "must end in .jsonl"),
    "merge: a shard": (["merge", "a.jsonl", "b.jsonl"], "b.jsonl", "is shard 2 itself"),
    "merge: a name without an ending": (["merge", "a.jsonl", "b.jsonl"], "c", "must end in .jsonl"),
    "compare: a run": (["compare", "a.jsonl", "b.jsonl"], "b.jsonl", "is candidate 1 itself"),
    "compare: an identity": (
        ["compare", "a.jsonl", "b.jsonl"],
        "a.meta.json",
        "is the identity of the baseline itself",
    ),
    "compare: the tiers": (["compare", "a.jsonl", "b.jsonl", "--tiers", "T"], "T", "is the tiers file itself"),
    "corpus: its text": (["corpus", "--corpus", "texts"], "texts/prose.txt", "is prose.txt of the corpus itself"),
}


@pytest.mark.parametrize("name", CLASHES)
def test_an_output_never_replaces_an_input(
    name: str,
    cli: Cli,
    gguf_for: Callable[..., Path],
    checkpoint: Callable[..., Path],
    engine_run: Path,
    tmp_path: Path,
):
    command, out, fragment = CLASHES[name]
    checkpoint().rename(tmp_path / "CK")
    shutil.copytree(shipped("corpus"), tmp_path / "texts")
    shutil.copy(shipped("tiers.json"), tmp_path / "T")
    shutil.copy(gguf_for(), tmp_path / "m.gguf")
    (tmp_path / "link.jsonl").hardlink_to(tmp_path / "m.gguf")
    for run in ("a", "b"):
        shutil.copy(engine_run, tmp_path / f"{run}.jsonl")
        shutil.copy(engine_run.with_name("run.meta.json"), tmp_path / f"{run}.meta.json")
    for items in ("items.jsonl", "x.meta.json", "spec.json"):
        (tmp_path / items).write_text('{"id": "a", "state": 1, "questions": {}}\n')
    before = {path: b"" if path.is_dir() else path.read_bytes() for path in tmp_path.rglob("*")}
    option = "--json" if command[0] == "compare" else "-o"
    more = ["--gate", "f16-class"] if command[0] == "compare" else []
    paths = [str(tmp_path / word) if (tmp_path / word).exists() else word for word in command]
    done = cli("parity", *paths, option, tmp_path / out, *more)
    assert (done.code, len(done.error_lines), done.out) == (2, 1, "")
    assert fragment in done.err
    assert {path: b"" if path.is_dir() else path.read_bytes() for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("counts", ["1,x", "0,1", "", "1," + "9" * 5000, "1,99999"])
def test_numbers_of_threads_are_checked_before_anything_is_asked(counts: str, cli: Cli, gguf_for: Callable[..., Path]):
    done = cli("parity", "invariance", "-m", gguf_for(), "--every", "500", f"--threads={counts}", "-q")
    assert (done.code, done.out, len(done.error_lines)) == (2, "", 1)
    assert len(done.err) < 300


def test_a_question_of_one_trace_alone_and_a_node_of_one_are_differences(cli: Cli, tmp_path: Path):
    import numpy as np

    from layactl.parity.trace import Trace, write_trace

    trace: Trace = {
        "ids": np.array([1, 2], dtype=np.int32),
        "markers": np.array([1], dtype=np.int32),
        "embeddings": np.ones((2, 2), dtype=np.float32),
        "logits": np.ones(1, dtype=np.float32),
    }
    header = {"side": "engine", "model": "m"}
    less = {node: values for node, values in trace.items() if node != "embeddings"}
    write_trace(tmp_path / "a", {("i", "q"): trace, ("i", "r"): trace}, header)
    write_trace(tmp_path / "b", {("i", "q"): less}, header)
    for a, b, side in (("a", "b", "a"), ("b", "a", "b")):
        done = cli("parity", "diff", tmp_path / a, tmp_path / b)
        assert done.code == 2
        assert done.out.splitlines() == [
            f"i/q: apart at embeddings, only in {side}",
            f"i/r: only in {side}",
            "0 of 2 questions agree within 0.0001",
        ]


@pytest.mark.parametrize("shard", ["1", "1/1", "2/1", "a/b", "-1/2", "0/0", "0/1/2", "²/3"])
def test_a_shard_is_i_of_n(shard: str, cli: Cli, gguf_for: Callable[..., Path], tmp_path: Path):
    done = cli("parity", "run", "-m", gguf_for(), "-o", tmp_path / "x.jsonl", f"--shard={shard}")
    assert (done.code, done.error_lines) == (2, [f"error: must be I/N with I below N (--shard {shard})"])


def test_a_shard_of_absurd_size_is_no_internal_error(cli: Cli, gguf_for: Callable[..., Path], tmp_path: Path):
    done = cli("parity", "run", "-m", gguf_for(), "-o", tmp_path / "x.jsonl", "--shard", "0/" + "9" * 5000)
    assert (done.code, len(done.error_lines), len(done.err) < 200) == (2, 1, True)
    assert "must be I/N with I below N" in done.err


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


def test_a_pair_shows_the_row_it_gives(cli: Cli, engine_run: Path, tmp_path: Path):
    again = copied(engine_run, tmp_path, lambda records: None)
    done = cli("parity", "derive", "--gate", "f16-class", "--pair", f"{engine_run},{again}", "--runs", tmp_path)
    assert done.code == 0
    row = json.loads(done.out)
    assert (row["source"], row["max_abs_dp"], row["weights"]) == ("derived", 0.0, ["F32"])
    done = cli("parity", "derive", "--pair", "one")
    assert (done.code, done.error_lines) == (2, ["error: a pair is BASELINE,CANDIDATE (--pair)"])
