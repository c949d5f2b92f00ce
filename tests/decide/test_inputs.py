"""decide.inputs and decide.presets: questions and states from what was typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_edit import edited, u32

import layactl
from layactl import Model
from layactl.decide.inputs import gather_questions, gather_state
from layactl.decide.presets import PRESETS, preset_questions
from layactl.engine.request import MAX_BODY_BYTES
from layactl.errors import InputError, LayactlError, RequestError, UsageError
from layactl.gguf_file import names

NOUL = {"type": "noul", "instructions": "Urgent?"}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes | str], Path]:
    def put(name: str, content: bytes | str) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return put


# -- presets ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def roomy(gguf_for: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The English model with room for questions: its small vocabulary takes twice the tokens of a published one."""
    limits = {names.MAX_LEN: u32(1024), names.HEAD_MAX_LEN: u32(2 * 192)}
    return layactl.load(edited(gguf_for(), tmp_path_factory.mktemp("roomy") / "x.gguf", keys=limits))


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("state", ["a text", {"query": "q", "document": "d"}], ids=["text", "object"])
def test_every_preset_is_answered_without_a_cut(name: str, state: Any, roomy: Model):
    questions = preset_questions(name)
    response = roomy.decide(state, questions, truncation="error")
    assert list(response["answers"]) == list(questions)


@pytest.mark.reference
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_accepted_by_the_reference(name: str):
    agent = pytest.importorskip("laya.agent").Agent
    for question_id, definition in preset_questions(name).items():
        agent._check_question(question_id, definition)


def test_presets_are_plain_json():
    assert json.loads(json.dumps(PRESETS)) == PRESETS


def test_an_unknown_preset_lists_those_there_are():
    with pytest.raises(UsageError, match="no preset is called 'x'") as error:
        preset_questions("x")
    assert error.value.hint is not None
    assert all(name in error.value.hint for name in PRESETS)


# -- questions -------------------------------------------------------------------------------------------------------


def test_presets_file_and_shorthand_come_together_in_this_order(write: Callable[..., Path]):
    file = write("q.json", json.dumps({"mine": NOUL}))
    questions = gather_questions(file, ["noul: x?", "last=noul: y?"], ["relevance"])
    assert list(questions) == [*PRESETS["relevance"], "mine", "q1", "last"]
    assert questions["mine"] == NOUL


def test_nothing_asked_is_nothing():
    assert gather_questions(None, [], []) == {}


def test_one_id_from_two_sources_is_refused(write: Callable[..., Path]):
    file = write("q.json", json.dumps({"relevant": NOUL, "q1": NOUL}))
    for asks, presets, name in ((["noul: x"], [], "q1"), ([], ["relevance"], "relevant")):
        with pytest.raises(UsageError, match=f"two questions are called '{name}'"):
            gather_questions(file, asks, presets)
    with pytest.raises(UsageError, match="two questions are called"):
        gather_questions(None, [], ["triage", "triage"])


FILES: dict[str, tuple[bytes, type[LayactlError], str]] = {
    "empty": (b"", InputError, "not valid JSON"),
    "no JSON": (b"{", InputError, "not valid JSON"),
    "list": (b"[]", InputError, "must be a JSON object"),
    "text": (b'"x"', InputError, "must be a JSON object"),
    "NaN": (b'{"q": NaN}', InputError, "NaN"),
    "not UTF-8": (b'{"q": "\xff"}', InputError, "not UTF-8"),
    "lone surrogate": (b'{"q": "\\ud800"}', InputError, "surrogate"),
    "over 1 MiB": (b'{"q": "' + b"x" * MAX_BODY_BYTES + b'"}', RequestError, "over 1048576 bytes"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_questions_file_that_cannot_be_read_is_named(name: str, write: Callable[..., Path]):
    content, kind, fragment = FILES[name]
    path = write("q.json", content)
    with pytest.raises(kind) as error:
        gather_questions(path, [], [])
    assert fragment in error.value.message
    if kind is InputError:
        assert error.value.where == str(path)


def test_a_missing_questions_file_is_named(tmp_path: Path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match="cannot be read") as error:
            gather_questions(path, [], [])
        assert error.value.where == str(path)


def test_shorthand_that_is_no_unicode_text_is_refused():
    # What the shell hands over when an argument is not UTF-8.
    with pytest.raises(RequestError) as error:
        gather_questions(None, ["noul: \udcff?"], [])
    assert (error.value.reason, error.value.param) == ("MALFORMED_JSON", "questions")


# -- states ----------------------------------------------------------------------------------------------------------

GIVEN: dict[str, tuple[str | None, str | None, tuple[str, bytes] | None, Any]] = {
    "text": ("a text", None, None, "a text"),
    "text that looks like JSON": ('{"a": 1}', None, None, '{"a": 1}'),
    "empty text": ("", None, None, ""),
    "JSON object": (None, '{"b": 1, "a": [2]}', None, {"b": 1, "a": [2]}),
    "JSON text": (None, '"x"', None, "x"),
    "JSON null": (None, "null", None, None),
    "JSON number": (None, "3", None, 3),
    "JSON file": (None, None, ("s.json", b'["x"]'), ["x"]),
    "text file": (None, None, ("s.txt", b'["x"]\r\n'), '["x"]\r\n'),
    "text file without a suffix": (None, None, ("s", b"x"), "x"),
    "empty text file": (None, None, ("s.txt", b""), ""),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_state_from_each_source(name: str, write: Callable[..., Path]):
    text, state, file, expected = GIVEN[name]
    assert gather_state(text, state, write(*file) if file else None) == expected


@pytest.mark.parametrize("given", [(None, None, None), ("x", "1", None), ("x", None, Path("y")), ("x", "1", Path("y"))])
def test_exactly_one_state_must_be_given(given: tuple[Any, Any, Any]):
    with pytest.raises(UsageError, match=r"(no|more than one) state is given") as error:
        gather_state(*given)
    assert error.value.hint == "give one of TEXT, --state JSON or --state-file FILE"


STATES: dict[str, tuple[str | None, tuple[str, bytes] | None, type[LayactlError], str]] = {
    "no JSON": ("{", None, InputError, "not valid JSON"),
    "empty JSON": ("", None, InputError, "not valid JSON"),
    "NaN": ("NaN", None, InputError, "NaN"),
    "a byte that is no text": ('"\udcff"', None, InputError, "not UTF-8"),
    "a JSON file that is text": (None, ("s.json", b"plain"), InputError, "not valid JSON"),
    "a text file that is no text": (
        None,
        ("s.txt", b"a\xff"),
        InputError,
        "is not UTF-8 text: invalid start byte at byte 1",
    ),
    "a JSON file over 1 MiB": (
        None,
        ("s.json", b'"' + b"x" * MAX_BODY_BYTES + b'"'),
        RequestError,
        "over 1048576 bytes",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_cannot_be_read_is_named(name: str, write: Callable[..., Path]):
    state, file, kind, fragment = STATES[name]
    path = write(*file) if file else None
    with pytest.raises(kind) as error:
        gather_state(None, state, path)
    assert fragment in error.value.message
    if kind is InputError:
        assert error.value.where == (str(path) if path else "--state")


def test_a_missing_state_file_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="No such file") as error:
        gather_state(None, None, tmp_path / "none.txt")
    assert error.value.where == str(tmp_path / "none.txt")
