"""Logits are collected record by record, with what computed them, and read back no more trustingly than any input."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from layactl.calib.collect import collect
from layactl.calib.logits import read_logits
from layactl.calib.scorer import EngineScorer, RawAnswer
from layactl.core.calibration import platt, softmax
from layactl.errors import InputError, NumericError, OutputError, RequestError, UsageError
from layactl.gguf_file.reader import GgufFile
from layactl.labelled.labelled_file import read_labelled
from layactl.router.score import Router
from tests.calib.examples import QUESTIONS, candidate, decision, jsonl, outcomes


class FakeScorer:
    """Logits that say which request they are of; refuses the state "refuse" and breaks at "nan"."""

    def __init__(self, **engine: Any) -> None:
        self.engine: dict[str, Any] = {"model": "fake", "kernels": "reference"} | engine
        self.identity: dict[str, Any] = {"side": "fake"}
        self.asked: list[Any] = []

    def decide(self, state: Any, questions: Mapping[str, Any], truncation: str) -> dict[str, RawAnswer]:
        self.asked.append(state)
        if state == "refuse":
            raise RequestError("STATE_TRUNCATED", "too long", param="state", code=422)
        if state == "nan":
            raise NumericError("question 'refund'")
        sizes = {"refund": 2, "team": 3, "urgency": 3}
        return {name: RawAnswer([0.5 * i for i in range(sizes[name])], 1.25) for name in questions}

    def route(self, body: dict[str, Any], truncation: str) -> dict[str, float]:
        return {c["id"]: float(i) for i, c in enumerate(body["candidates"])}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    records = [
        decision("a", group="g", lang="de", split="fit"),
        decision("b", state="refuse"),
        decision("c", state="nan"),
        decision("d", questions=QUESTIONS | {"bad": {"type": "choice", "instructions": "?", "criteria": []}}),
        decision("e", gold={"team": {"billing": 0.25, "tech": 0.75}}),
    ]
    return jsonl(tmp_path / "data.jsonl", records)


def test_every_record_has_one_line_and_refused_ones_say_why(tmp_path: Path, data: Path):
    said: list[str] = []
    done = collect(read_labelled(data), FakeScorer(), tmp_path / "logits.jsonl", log=said.append)
    a, b, c, d, e = lines_of(tmp_path / "logits.jsonl")
    assert (done.written, done.refused) == (5, 3)
    assert a["answers"]["refund"] == {
        "type": "noul",
        "options": ["false", "true"],
        "logits": [0.0, 0.5],
        "temperature": 1.25,
        "gold": {"label": 1},
    }
    assert (a["group"], a["lang"], a["split"], a["engine"]["model"]) == ("g", "de", "fit", "fake")
    assert b == {"id": "b", "refused": {**b["refused"], "reason": "STATE_TRUNCATED"}}
    assert c["refused"]["message"] == "question 'refund': the model's output is not finite"
    assert d["refused"]["reason"] == "TOO_FEW_OPTIONS"
    assert set(e["answers"]) == {"team"}
    assert e["answers"]["team"]["gold"] == {"label": 1, "probabilities": [0.25, 0.75, 0.0]}
    assert said[0] == f"{data}, line 2: STATE_TRUNCATED: too long"
    assert len(said) == 3


def test_the_sidecar_says_what_ran(tmp_path: Path, data: Path):
    scorer = FakeScorer()
    collect(read_labelled(data), scorer, tmp_path / "logits.jsonl", truncation="error")
    meta = json.loads((tmp_path / "logits.meta.json").read_text())
    assert meta["format"] == "layactl.calib-logits/1"
    assert (meta["engine"], meta["identity"]) == (scorer.engine, scorer.identity)
    assert meta["data"]["kind"] == "decision"
    assert meta["options"] == {"truncation": "error"}


def test_a_stopped_run_goes_on_after_its_last_whole_record(tmp_path: Path, data: Path):
    whole, stopped = tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"
    collect(read_labelled(data), FakeScorer(), whole)
    collect(read_labelled(data), FakeScorer(), stopped)
    lines = whole.read_bytes().splitlines(keepends=True)
    stopped.write_bytes(b"".join(lines[:2]) + lines[2][:20])
    scorer = FakeScorer()
    done = collect(read_labelled(data), scorer, stopped, resume=True)
    assert (done.before, done.written, done.refused) == (2, 5, 3)
    assert stopped.read_bytes() == whole.read_bytes()
    assert scorer.asked == ["nan", "Billed twice."]  # d is refused before anything is computed


def test_earlier_records_of_another_engine_are_not_continued(tmp_path: Path, data: Path):
    """The sidecar may be right and the lines from elsewhere."""
    out = tmp_path / "out.jsonl"
    collect(read_labelled(data), FakeScorer(), out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    changed = next(line for line in lines if "engine" in line)
    changed["engine"] = changed["engine"] | {"kernels": "another"}
    jsonl(out, lines)
    with pytest.raises(OutputError, match="is of another engine than this run"):
        collect(read_labelled(data), FakeScorer(), out, resume=True)


def test_a_run_of_another_engine_or_other_data_is_not_resumed(tmp_path: Path, data: Path):
    out = tmp_path / "logits.jsonl"
    collect(read_labelled(data), FakeScorer(), out)
    with pytest.raises(UsageError, match=r"engine\.kernels"):
        collect(read_labelled(data), FakeScorer(kernels="onednn"), out, resume=True)
    with pytest.raises(UsageError, match=r"data\.sha256"):
        collect(read_labelled(jsonl(data, [decision("a")])), FakeScorer(), out, resume=True)


def test_what_was_collected_reads_back_with_its_splits(tmp_path: Path, data: Path):
    collect(read_labelled(data), FakeScorer(), tmp_path / "logits.jsonl")
    found = read_logits(tmp_path / "logits.jsonl", heldout=1.0)
    assert (found.kind, found.records, found.refused) == ("decision", 5, 3)
    assert [(a.member.id, a.question, a.split) for a in found.answers] == [
        ("a", "refund", "fit"),
        ("a", "team", "fit"),
        ("a", "urgency", "fit"),
        ("e", "team", "eval"),
    ]
    assert found.answers[3].gold.probabilities == (0.25, 0.75, 0.0)
    assert found.answers[0].member.cluster == ("group", "g")
    assert found.one_engine() == FakeScorer().engine
    # One state under two ids, on both sides of the split.
    assert found.shared_states() == 1


def test_router_outcomes_keep_what_the_baselines_need(tmp_path: Path):
    path = jsonl(tmp_path / "data.jsonl", [outcomes("t")])
    collect(read_labelled(path), FakeScorer(), tmp_path / "logits.jsonl")
    [line] = lines_of(tmp_path / "logits.jsonl")
    assert [(c["outcome"], c["logit"]) for c in line["candidates"]] == [(1, 0.0), (0, 1.0)]
    found = read_logits(tmp_path / "logits.jsonl")
    assert [(s.candidate, s.logit, s.outcome) for s in found.scores] == [("a", 0.0, 1), ("b", 1.0, 0)]


def test_two_identities_are_refused_and_named(tmp_path: Path, data: Path):
    parts = []
    for i, kernels in enumerate(("onednn", "reference")):
        records = [decision(f"{kernels}-{n}") for n in range(2)]
        out = tmp_path / f"part-{i}.jsonl"
        collect(read_labelled(jsonl(tmp_path / "some.jsonl", records)), FakeScorer(kernels=kernels), out)
        parts.append(out.read_bytes())
    both = tmp_path / "both.jsonl"
    both.write_bytes(b"".join(parts))
    with pytest.raises(InputError, match=r"2 engine identities, which differ in kernels"):
        read_logits(both).one_engine()


def test_logits_without_an_engine_are_an_identity_of_their_own(tmp_path: Path):
    scored = outcomes("1", candidates=[candidate(logit=1.0)])
    named = outcomes("2", candidates=[candidate(logit=1.0)]) | {"engine": {"model": "m"}}
    assert read_logits(jsonl(tmp_path / "own.jsonl", [scored])).one_engine() is None
    with pytest.raises(InputError, match="2 engine identities"):
        read_logits(jsonl(tmp_path / "mixed.jsonl", [scored, named])).one_engine()


def test_outcomes_nothing_has_scored_are_named(tmp_path: Path):
    with pytest.raises(InputError, match="no logits"):
        read_logits(jsonl(tmp_path / "data.jsonl", [outcomes()])).require_logits()


def answer(**fields: Any) -> dict[str, Any]:
    record = {"type": "choice", "options": ["a", "b"], "logits": [0.5, 1], "gold": {"label": 0}} | fields
    return {"id": "x", "answers": {"q": {key: value for key, value in record.items() if value is not None}}}


BROKEN: dict[str, tuple[Any, str]] = {
    "too few logits": (answer(logits=[1.0]), "answers.q.logits holds 1 numbers for 2 options"),
    "a logit as text": (answer(logits=["1", 2]), "answers.q.logits must be a finite number"),
    "NaN": ('{"id": "x", "answers": {"q": {"logits": [NaN]}}}', "NaN is not a JSON number"),
    "Infinity": ('{"id": "x", "answers": {"q": {"logits": [Infinity]}}}', "Infinity is not a JSON number"),
    "an overflow": ('{"id": "x", "answers": {"q": {"logits": [1e999]}}}', "overflows"),
    "no logits": (answer(logits=None), "answers.q.logits is missing"),
    "no options": (answer(options=[], logits=[]), "answers.q.options must be distinct texts"),
    "equal options": (answer(options=["a", "a"]), "answers.q.options must be distinct texts"),
    "a noul of three": (answer(type="noul", options=["a", "b", "c"], logits=[0, 1, 2]), "of a noul must be two"),
    "an unknown type": (answer(type="rank"), "answers.q.type is 'rank'"),
    "a label beyond": (answer(gold={"label": 2}), "answers.q.gold.label is 2, but there are 2 options"),
    "gold of another length": (answer(gold={"label": 0, "probabilities": [1]}), "holds 1 numbers for 2 options"),
    "gold that is no distribution": (answer(gold={"label": 0, "probabilities": [1, 1]}), "sum to 1"),
    "a temperature of 0": (answer(temperature=0), "answers.q.temperature must be positive"),
    "labelled data": (decision(), "is labelled data without logits"),
    "an engine as text": (answer() | {"engine": "m"}, "engine must be an object"),
    "an old id": (answer() | {"id": "first"}, "the id 'first' is there twice"),
    "another kind": (outcomes("x", candidates=[candidate(logit=1.0)]), "another kind"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_record_of_logits_is_refused_by_line_and_field(tmp_path: Path, name: str):
    record, message = BROKEN[name]
    path = jsonl(tmp_path / "logits.jsonl", [answer() | {"id": "first"}, record])
    with pytest.raises(InputError) as caught:
        read_logits(path)
    assert message in caught.value.message
    assert caught.value.where == f"{path}, line 2"


def test_a_file_of_refusals_only_has_nothing_to_judge(tmp_path: Path):
    with pytest.raises(InputError, match="holds no labelled answers"):
        read_logits(jsonl(tmp_path / "logits.jsonl", [{"id": "a", "refused": {}}]))


def test_the_logits_are_those_behind_the_printed_numbers(tmp_path: Path, model_for: Callable[..., Any], gguf_for: Any):
    model = model_for()
    path = jsonl(tmp_path / "data.jsonl", [decision()])
    collect(read_labelled(path), EngineScorer(model, GgufFile(gguf_for())), tmp_path / "logits.jsonl")
    printed = model.decide("Billed twice.", QUESTIONS)["answers"]
    for item in read_logits(tmp_path / "logits.jsonl").answers:
        p = softmax(item.logits, item.temperature or math.nan)
        found = printed[item.question]
        assert p[1:] == ([found["noul"]] if item.type == "noul" else list(found["probabilities"].values())[1:])


def test_the_router_logit_is_the_printed_one(tmp_path: Path, model_for: Callable[..., Any], gguf_for: Any):
    model = model_for()
    path = jsonl(tmp_path / "data.jsonl", [outcomes()])
    collect(read_labelled(path), EngineScorer(model, GgufFile(gguf_for())), tmp_path / "logits.jsonl")
    router = Router(model, allow_uncalibrated=True)
    scores = router.score(router.parse(read_labelled(path).records[0].body()))["scores"]
    found = read_logits(tmp_path / "logits.jsonl").scores
    assert [item.logit for item in found] == [score["logit"] for score in scores]
    assert [platt(1, 0, item.logit) for item in found] == [score["p_success"] for score in scores]


def test_the_command_collects_resumes_and_counts_refusals(tmp_path: Path, cli: Callable[..., Any], gguf_for: Any):
    path = jsonl(tmp_path / "data.jsonl", [decision("a"), decision("b", state="word " * 2000)])
    out = tmp_path / "logits.jsonl"
    done = cli("calib", "collect", path, "-m", gguf_for(), "-o", out, "--truncation", "error")
    assert (done.code, done.out) == (3, f"{out}\n")
    assert "line 2: STATE_TRUNCATED" in done.err
    again = cli("calib", "collect", path, "-m", gguf_for(), "-o", out, "--truncation", "error", "--resume", "-q")
    assert (again.code, len(lines_of(out))) == (3, 2)
    other = cli("calib", "collect", path, "-m", gguf_for(), "-o", out, "--resume", "-q")
    assert other.code == 2
    assert "options.truncation" in other.error_lines[0]


@pytest.mark.parametrize("name", ["logits.json", "data.jsonl"])
def test_the_output_has_a_name_of_its_own(tmp_path: Path, cli: Callable[..., Any], name: str):
    path = jsonl(tmp_path / "data.jsonl", [decision()])
    before = path.read_bytes()
    done = cli("calib", "collect", path, "-m", tmp_path / "none.gguf", "-o", tmp_path / name)
    assert done.code == 2
    assert path.read_bytes() == before
