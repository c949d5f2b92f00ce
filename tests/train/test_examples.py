"""What may be learned from: examples are what the engine reads, they fit, and no split knows another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from layactl.checkpoint.folder import read_checkpoint
from layactl.engine.text_side import TextSide
from layactl.errors import InputError, UsageError
from layactl.router.score import Router
from layactl.train.examples import read_split, refuse_overlap, text_side
from tests.calib.examples import candidate, outcomes
from tests.conftest import CHECKPOINTS
from tests.train.data import decision, write


@pytest.fixture(scope="module")
def text() -> TextSide:
    return text_side(read_checkpoint(CHECKPOINTS / "tiny-english"))


def test_an_example_is_what_the_engine_reads(text: TextSide, model_for, tmp_path: Path):
    record = decision("a", 1)
    split = read_split("train", [write(tmp_path / "d.jsonl", [record])], text, "error")
    answers = model_for("tiny-english").decide(record["state"], record["questions"], debug=True)["answers"]
    assert [example.question for example in split.examples] == ["wanted", "colour", "urgency"]
    for example in split.examples:
        debug = answers[example.question]["debug"]
        assert example.ids.tolist() == debug["token_ids"]
        assert example.markers.tolist() == debug["markers"]
    assert [example.target.tolist() for example in split.examples[:2]] == [[0, 1], [0, 1, 0, 0]]
    np.testing.assert_allclose(split.examples[2].target, [0.2, 0.5, 0.3], atol=1e-7)
    assert [example.label for example in split.examples] == [1, 1, 1]


def test_an_outcome_is_what_the_router_asks(text: TextSide, model_for, tmp_path: Path):
    record = outcomes(candidates=[candidate("one", outcome=1), candidate("two", outcome=0)])
    split = read_split("train", [write(tmp_path / "d.jsonl", [record])], text, "allow")
    router = Router(model_for("tiny-english"), allow_uncalibrated=True)
    body = {key: record[key] for key in ("task", "criterion")}
    body["candidates"] = [{key: c[key] for key in ("id", "card")} for c in record["candidates"]]
    scores = router.score(router.parse(body), debug=True)["scores"]
    for example, score in zip(split.examples, scores, strict=True):
        assert example.ids.tolist() == score["debug"]["token_ids"]
        assert example.target.tolist() == ([0, 1] if example.question == "one" else [1, 0])


def test_an_example_that_does_not_fit_is_refused_unless_it_may_be_cut(text: TextSide, tmp_path: Path):
    record = decision("a", 1)
    record["state"] = "a long story " * 200
    path = write(tmp_path / "d.jsonl", [decision("a", 0), record])
    with pytest.raises(InputError, match=r"state tokens dropped") as refused:
        read_split("train", [path], text, "error")
    assert refused.value.where is not None and refused.value.where.endswith("line 2")
    assert "--truncation allow" in (refused.value.hint or "")
    split = read_split("train", [path], text, "allow")
    assert split.cut == 3
    assert max(len(example.ids) for example in split.examples) == text.limits.max_len


def _alike(what: str) -> tuple[dict, dict]:
    first, second = decision("a", 1), decision("b", 2)
    match what:
        case "id":
            second["id"] = first["id"]
        case "group":
            first["group"] = second["group"] = "the same story"
        case "state":
            second["state"] = first["state"]
            second["questions"] = {"other": {"type": "noul", "instructions": "Something else?"}}
            second["gold"] = {"other": True}
        case "token sequence":
            # Two texts that the tokenizer reads alike (NFC).
            first["state"], second["state"] = "caf\u00e9", "cafe\u0301"
    return first, second


@pytest.mark.parametrize("what", ["id", "group", "state", "token sequence"])
def test_splits_may_not_share(what: str, text: TextSide, tmp_path: Path):
    train, dev = (
        read_split(name, [write(tmp_path / f"{name}.jsonl", [record])], text, "error")
        for name, record in zip(("train", "dev"), _alike(what), strict=True)
    )
    with pytest.raises(InputError, match=f"shares its {what} with the train data") as refused:
        refuse_overlap([train, dev])
    assert "dev.jsonl, line 1" in str(refused.value.where)
    assert "train.jsonl, line 1" in refused.value.message


def test_splits_that_share_nothing_pass(text: TextSide, tmp_path: Path):
    refuse_overlap(
        [
            read_split(name, [write(tmp_path / f"{name}.jsonl", [decision(name, n) for n in range(4)])], text, "error")
            for name in ("train", "dev")
        ]
    )


def test_an_id_may_not_stand_in_two_files_of_a_split(text: TextSide, tmp_path: Path):
    paths = [write(tmp_path / f"{n}.jsonl", [decision("a", 1)]) for n in range(2)]
    with pytest.raises(InputError, match="is used at"):
        read_split("train", paths, text, "error")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"questions": {"wanted": {"type": "bool", "instructions": "?"}}, "gold": {}}, "type"),
        ({"state": None}, "state is missing"),
        ({"gold": {"nobody": True}}, "belongs to no question"),
        ({"gold": {"wanted": "maybe"}}, "must be true or false"),
        ({"gold": {"urgency": {"0": 0.9, "1": 0.9}}}, "sum to 1"),
        ({"gold": {"urgency": {"0": 1e308, "1": 1e308}}}, "sum to 1"),
        ({"gold": {"urgency": {"0": -0.5, "1": 1.5}}}, "below 0"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(change: dict, message: str, text: TextSide, tmp_path: Path):
    path = write(tmp_path / "d.jsonl", [decision("a", 0), decision("a", 1) | change])
    with pytest.raises(InputError, match=message) as refused:
        read_split("train", [path], text, "error")
    assert "line 2" in str(refused.value)


def test_data_without_an_answer_is_refused(text: TextSide, tmp_path: Path):
    path = write(tmp_path / "d.jsonl", [decision("a", 0) | {"gold": {}}])
    with pytest.raises(InputError, match="no question with a gold answer"):
        read_split("train", [path], text, "error")


def test_one_file_may_not_be_given_twice(text: TextSide, tmp_path: Path):
    path = write(tmp_path / "d.jsonl", [decision("a", 1)])
    with pytest.raises(UsageError, match="names one file twice"):
        read_split("train", [path, tmp_path / "." / "d.jsonl"], text, "error")
