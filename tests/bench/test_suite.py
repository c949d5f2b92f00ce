"""The suite: texts of the lengths that are wanted, on any tokenizer, and files that are checked by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from layactl.bench.suite import build_suite, fitted, quick_suite, read_suite, suite_bytes, suite_sha256, tokenizer_of
from layactl.errors import InputError
from layactl.router.card import parse_card

SHORT = {"state": "x", "questions": {}}


@pytest.fixture
def suite(gguf_for, family: str):
    encode = tokenizer_of(gguf_for(family)).encode
    return build_suite(lambda text: len(encode(text))), lambda text: len(encode(text))


def test_texts_have_the_token_counts_of_their_group_in_both_families(suite):
    requests, count = suite
    by_id = {request.id: request.body for request in requests}
    wanted = {"router-n1": 250, "router-n4": 250, "router-n8": 250, "router-t128": 128, "router-t512": 512}
    for name, tokens in wanted.items():
        assert tokens <= count(by_id[name]["task"]) < tokens + 12
        for candidate in by_id[name]["candidates"]:
            assert 60 <= count(parse_card(candidate["card"]).text) <= 110
    for name, body in by_id.items():
        if name.startswith(("so-", "options")):
            assert 170 <= count(body["state"]) < 182
    assert count(by_id["long-state"]["state"]) >= 20_000
    assert len(by_id["options-20"]["questions"]["team"]["criteria"]) == 20


def test_groups_hold_what_they_are_called_after(suite):
    requests, _ = suite
    questions = {r.group: {len(r.body.get("questions", r.body.get("candidates")))} for r in requests}
    assert questions == {
        "systemone 1q": {1},
        "systemone 5q": {5},
        "router N=1": {1},
        "router N=4": {4},
        "router N=8": {8},
        "router N=1 t128": {1},
        "router N=1 t512": {1},
        "20 options": {1},
        "long state": {1},
    }
    assert [request.group for request in quick_suite(requests)] == ["systemone 1q", "router N=1", "20 options"]


def test_every_request_is_one_that_the_engine_takes(suite, model_for, family: str):
    from layactl.engine.request import parse_request
    from layactl.router.request import parse_router

    model = model_for(family)
    for request in suite[0]:
        if request.endpoint == "systemone":
            parse_request(request.body, model.layout, model.spec)
        else:
            parse_router(request.body, model.spec)


def test_a_written_suite_is_read_as_it_was(suite, tmp_path: Path):
    path = tmp_path / "suite.jsonl"
    path.write_bytes(suite_bytes(suite[0]))
    assert read_suite(path) == suite[0]
    assert suite_sha256(read_suite(path)) == suite_sha256(suite[0])


@pytest.mark.parametrize("tokens", [1, 2, 7, 50])
def test_a_text_is_cut_after_the_first_word_that_reaches_the_length(tokens: int):
    text = fitted("one two three four five", tokens, lambda text: len(text.split()))
    assert len(text.split()) == tokens
    assert text.split()[:5] == ["one", "two", "three", "four", "five"][:tokens]


BAD = {
    "no JSON": ("{", "line 1"),
    "no object": ("[]", "object"),
    "no id": (json.dumps({"endpoint": "systemone", "group": "g", "body": {}}), "id"),
    "another endpoint": (json.dumps({"id": "a", "endpoint": "chat", "group": "g", "body": {}}), "endpoint"),
    "no group": (json.dumps({"id": "a", "endpoint": "router", "body": {}}), "group"),
    "a body that is text": (json.dumps({"id": "a", "endpoint": "router", "group": "g", "body": "x"}), "body"),
    "an id twice": ("\n".join([json.dumps({"id": "a", "endpoint": "router", "group": "g", "body": {}})] * 2), "twice"),
    "a blank line": ("\n", "blank"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_suite_that_is_none_is_refused_by_line_and_field(name: str, tmp_path: Path):
    text, word = BAD[name]
    path = tmp_path / "suite.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(InputError) as caught:
        read_suite(path)
    assert word in str(caught.value)
    assert str(path) in str(caught.value)
