"""decide --jsonl: one input object a line, exactly one output line each, in order, whatever the line holds."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_edit import edited

from layactl.engine.request import MAX_BODY_BYTES

NOUL = {"type": "noul", "instructions": "Urgent?"}
ASK = ("--ask", "asked=noul: Urgent?")
LONG = "one two three " * 200


def line(**fields: Any) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode()


def request(**fields: Any) -> bytes:
    return line(**({"state": "x", "questions": {"q": NOUL}} | fields))


def records(text: str) -> list[dict[str, Any]]:
    assert text == "" or text.endswith("\n")
    return [json.loads(row) for row in text.split("\n")[:-1]]


def untimed(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("latency_ms", "timings")}


@dataclass(frozen=True)
class Line:
    """data: the line; id: of its record, None for the line number; reason: of its refusal, None when answered."""

    data: bytes
    id: Any = None
    reason: str | None = None
    param: str | None = None


def sized(nbytes: int) -> bytes:
    """A request without questions of exactly this size."""
    head, tail = b'{"questions": {}, "state": "', b'"}'
    return head + b"x" * (nbytes - len(head) - len(tail)) + tail


LINES = {
    # ids
    "text id": Line(request(id="a"), "a"),
    "empty text id": Line(request(id=""), ""),
    "integer id": Line(request(id=7), 7),
    "largest integer id": Line(request(id=2**64 - 1), 2**64 - 1),
    "float id": Line(request(id=1.5), 1.5),
    "bool id": Line(request(id=True), True),
    "null id": Line(request(id=None)),
    "no id": Line(request()),
    "list id": Line(request(id=[1])),
    "object id": Line(request(id={"a": 1})),
    "the id of another line": Line(request(id="a"), "a"),
    "id twice": Line(b'{"id": 1, "id": 2, "state": "x", "questions": {}}', 2),
    # answered
    "no questions": Line(request(questions={})),
    "further keys": Line(request(id="f", cat="x", gold={"q": True}, model="m"), "f"),
    "state of any type": Line(request(state={"a": [1, None]})),
    "spaces around": Line(b"  " + request() + b"\t "),
    "carriage return at the end": Line(request() + b"\r"),
    "line separators inside": Line(request(state="a\u2028b\u2029c\u0085d")),
    "escaped line breaks inside": Line(request(state="a\r\nb\x0b\x0c\x1cc")),
    "byte order mark": Line(b"\xef\xbb\xbf" + request()),
    "cut state": Line(request(state=LONG)),
    "1 MiB": Line(sized(MAX_BODY_BYTES)),
    "1 MiB and a carriage return": Line(sized(MAX_BODY_BYTES) + b"\r"),
    # refused
    "blank": Line(b"", None, "MALFORMED_JSON"),
    "spaces": Line(b" \t ", None, "MALFORMED_JSON"),
    "carriage return only": Line(b"\r", None, "MALFORMED_JSON"),
    "cut": Line(b'{"id": "c", "state": "x"', None, "MALFORMED_JSON"),
    "two objects": Line(b"{} {}", None, "MALFORMED_JSON"),
    "not UTF-8": Line(b'{"id": "u", "state": "\xff"}', None, "MALFORMED_JSON"),
    "NUL bytes": Line(b"\x00\x00", None, "MALFORMED_JSON"),
    "lone surrogate": Line(b'{"state": "\\ud800"}', None, "MALFORMED_JSON"),
    "deep": Line(b'{"state": ' + b"[" * 200 + b"]" * 200 + b"}", None, "MALFORMED_JSON"),
    "NaN": Line(b'{"id": "n", "state": NaN}', None, "UNSUPPORTED_NUMBER"),
    "huge id": Line(b'{"id": 99999999999999999999, "state": 1}', None, "UNSUPPORTED_NUMBER"),
    "array": Line(b"[]", None, "BODY_NOT_OBJECT"),
    "text": Line(b'"x"', None, "BODY_NOT_OBJECT"),
    "over 1 MiB": Line(sized(MAX_BODY_BYTES + 1), None, "BODY_TOO_LARGE"),
    "far over 1 MiB": Line(sized(3 * MAX_BODY_BYTES + 5), None, "BODY_TOO_LARGE"),
    "no state": Line(line(id="s", questions={"q": NOUL}), "s", "INVALID_REQUEST", "state"),
    "null questions": Line(request(id="q", questions=None), "q", "INVALID_REQUEST", "questions"),
    "null truncation": Line(request(truncation=None), None, "INVALID_REQUEST", "truncation"),
    "bad question": Line(request(id=3, questions={"q": {}}), 3, "UNKNOWN_QUESTION_TYPE", "questions.q.type"),
    "does not fit": Line(request(id="e", state=LONG, truncation="error"), "e", "STATE_TRUNCATED", "state"),
    "empty object": Line(b"{}", None, "INVALID_REQUEST"),
    # after everything that was refused
    "last": Line(request(id="last"), "last"),
}


@pytest.fixture(scope="module")
def input_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jsonl") / "in.jsonl"
    path.write_bytes(b"".join(case.data + b"\n" for case in LINES.values()))
    return path


@pytest.fixture
def decide(cli, gguf_for) -> Callable[..., Any]:
    """decide("--jsonl", ...): run the command on the English model, in this process."""
    return lambda *args, **options: cli("decide", "-q", "-m", gguf_for(), *args, **options)


_answers: dict[Path, list[dict[str, Any]]] = {}


@pytest.fixture
def answered(decide, input_file: Path) -> list[dict[str, Any]]:
    """The records of the input file, made once."""
    if input_file not in _answers:
        done = decide("--jsonl", input_file, *ASK)
        assert (done.code, done.err) == (3, "")
        _answers[input_file] = records(done.out)
    return _answers[input_file]


def test_there_is_one_line_out_for_every_line_in(answered):
    assert len(answered) == len(LINES)


@pytest.mark.parametrize("name", LINES)
def test_a_line(name: str, answered):
    number = list(LINES).index(name) + 1
    case, record = LINES[name], answered[number - 1]
    expected_id = number if case.id is None else case.id
    assert (record["id"], type(record["id"])) == (expected_id, type(expected_id))
    if case.reason is None:
        assert list(record)[:3] == ["id", "model", "answers"]
        return
    assert list(record) == ["id", "line", "error"]
    assert record["line"] == number
    assert record["error"]["reason"] == case.reason
    if case.param is not None:
        assert record["error"]["param"] == case.param
    assert record["error"]["code"] == {"BODY_TOO_LARGE": 413, "STATE_TRUNCATED": 422}.get(case.reason, 400)


def test_an_answered_line_is_the_answer_of_the_python_api(answered, model_for):
    for case, record in zip(LINES.values(), answered, strict=True):
        if case.reason is None and len(case.data) < 10_000:
            body = json.loads(case.data.removeprefix(b"\xef\xbb\xbf"))
            own = model_for().decide(body["state"], body["questions"])
            assert untimed(record) == {"id": record["id"], **untimed(own)}


# -- where lines come from and go to ---------------------------------------------------------------------------------

THREE = [request(id=n, state=f"message {n}") for n in range(3)]
SOURCES = {
    "a final line end": b"\n".join(THREE) + b"\n",
    "no final line end": b"\n".join(THREE),
    "CRLF": b"\r\n".join(THREE) + b"\r\n",
    "CRLF without the last": b"\r\n".join(THREE),
    "gzip": gzip.compress(b"\n".join(THREE) + b"\n"),
    "gzip in two members": gzip.compress(THREE[0] + b"\n") + gzip.compress(b"\n".join(THREE[1:])),
    "gzip that splits a line": gzip.compress(b"\n".join(THREE)[:40]) + gzip.compress(b"\n".join(THREE)[40:]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_lines_come_from_a_file_or_from_standard_input(name: str, decide, tmp_path: Path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(SOURCES[name])
    from_file = decide("--jsonl", path)
    from_stdin = decide("--jsonl", "-", stdin=SOURCES[name])
    assert from_file.code == from_stdin.code == 0
    assert [record["id"] for record in records(from_file.out)] == [0, 1, 2]
    assert [untimed(r) for r in records(from_stdin.out)] == [untimed(r) for r in records(from_file.out)]


def test_a_file_output_holds_the_lines_of_standard_output(decide, input_file: Path, answered, tmp_path: Path):
    done = decide("--jsonl", input_file, *ASK, "-o", tmp_path / "out.jsonl")
    assert (done.code, done.out) == (3, "")
    written = records((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    assert [untimed(record) for record in written] == [untimed(record) for record in answered]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.meta.json"]


@pytest.mark.parametrize("data", [b"", gzip.compress(b"")], ids=["empty", "empty gzip"])
def test_no_lines_are_no_records(data: bytes, decide, tmp_path: Path):
    (tmp_path / "in.jsonl").write_bytes(data)
    done = decide("--jsonl", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_a_lone_line_end_is_one_blank_line(decide):
    done = decide("--jsonl", "-", stdin=b"\n")
    assert done.code == 3
    assert [record["error"]["message"] for record in records(done.out)] == ["the line is blank"]


def test_output_is_utf8_and_keeps_what_the_line_said(decide):
    done = decide("--jsonl", "-", stdin=request(id="\u00e9\u2028\U0001f600") + b"\n")
    assert done.out.count("\n") == 1
    assert '"id": "\u00e9\u2028\U0001f600"' in done.out


GZIPPED = gzip.compress(b"".join(b"%s\n" % row for row in THREE * 40), 1)
TORN = {
    "cut": GZIPPED[:-20],
    "cut in the header": GZIPPED[:5],
    "a damaged check sum": GZIPPED[:-8] + bytes(8),
    "damaged in the middle": GZIPPED[:200] + b"\xff\x00\xff" + GZIPPED[203:],
    "followed by something else": GZIPPED + b"garbage",
}


@pytest.mark.parametrize("name", TORN)
def test_a_damaged_gzip_ends_the_run_with_a_clear_error(name: str, decide, tmp_path: Path):
    path, out = tmp_path / "in.jsonl.gz", tmp_path / "out.jsonl"
    path.write_bytes(TORN[name])
    done = decide("--jsonl", path, "-o", out)
    assert done.code != 0
    (error,) = done.error_lines
    assert "cannot be read" in error
    assert str(path) in error
    # What was written before the damage was found stays, whole lines only.
    assert all(record["id"] is not None for record in records(out.read_text(encoding="utf-8")))


# -- what all lines share --------------------------------------------------------------------------------------------


def test_questions_of_the_command_line_serve_the_lines_that_have_none(decide):
    stdin = line(id=1, state="x") + b"\n" + request(id=2) + b"\n" + request(id=3, questions={}) + b"\n"
    done = decide("--jsonl", "-", *ASK, "--preset", "relevance", stdin=stdin)
    answers = [list(record["answers"]) for record in records(done.out)]
    assert answers == [["relevant", "grade", "asked"], ["q"], []]


def test_without_questions_of_the_command_line_each_line_needs_its_own(decide):
    done = decide("--jsonl", "-", stdin=line(id=1, state="x") + b"\n" + request(id=2) + b"\n")
    first, second = records(done.out)
    assert (first["error"]["reason"], first["error"]["param"]) == ("INVALID_REQUEST", "questions")
    assert "answers" in second


def test_truncation_of_the_command_line_is_the_default_of_every_line(decide):
    stdin = request(state=LONG) + b"\n" + request(state=LONG, truncation="allow") + b"\n"
    refused, allowed = records(decide("--jsonl", "-", "--truncation", "error", stdin=stdin).out)
    assert refused["error"]["reason"] == "STATE_TRUNCATED"
    assert [warning["reason"] for warning in allowed["warnings"]] == ["state_truncated"]


def test_round_and_debug_hold_for_every_line(decide):
    (plain,) = records(decide("--jsonl", "-", stdin=request()).out)
    (record,) = records(decide("--jsonl", "-", "--round", "2", "--debug", stdin=request()).out)
    answer, exact = record["answers"]["q"], plain["answers"]["q"]
    assert answer["noul"] == round(exact["noul"], 2) != exact["noul"]
    assert any(logit != round(logit, 2) for logit in answer["debug"]["logits"])
    assert "debug" not in exact


def test_notes_say_how_many_lines_there_were_unless_quiet(cli, gguf_for):
    stdin = request() + b"\n\n" + request() + b"\n"
    done = cli("decide", "-m", gguf_for("tiny-multilingual"), "--jsonl", "-", stdin=stdin)
    assert done.code == 3
    assert done.err == "note: 3 lines, 1 refused\n"
    quiet = cli("decide", "-q", "-m", gguf_for("tiny-multilingual"), "--jsonl", "-", stdin=stdin)
    assert (quiet.code, quiet.err) == (3, "")


def test_an_internal_error_of_one_line_does_not_end_the_run(cli, gguf_for, tmp_path: Path):
    nan = {"scorer.3.bias": np.array([np.nan], dtype=np.float32)}
    model = edited(gguf_for(), tmp_path / "nan.gguf", tensors=nan)
    done = cli("decide", "-m", model, "--jsonl", "-", stdin=request(id=1) + b"\n" + request(id=2, questions={}) + b"\n")
    broken, empty = records(done.out)
    assert broken["error"] == {
        "code": 500,
        "type": "server_error",
        "reason": "INTERNAL",
        "message": "internal error while processing the request",
    }
    assert empty["answers"] == {}
    assert done.code == 3
    # The detail is for whoever runs it, not for whoever reads the answers.
    assert "note: line 1: internal error: NumericError" in done.err


# -- outputs that would destroy an input -----------------------------------------------------------------------------


@pytest.fixture
def files(gguf_for, tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / name for name in ("in.jsonl", "model.gguf", "q.json", "out.meta.json", "link.jsonl")}
    paths["in.jsonl"].write_bytes(request() + b"\n")
    shutil.copy(gguf_for(), paths["model.gguf"])
    paths["q.json"].write_bytes(line(q=NOUL))
    paths["out.meta.json"].write_bytes(request() + b"\n")
    paths["link.jsonl"].hardlink_to(paths["in.jsonl"])
    return paths


CLASHES = {
    "the input": ("in.jsonl", "in.jsonl", "is the input itself"),
    "the input by another name": ("in.jsonl", "link.jsonl", "is the input itself"),
    "the model": ("in.jsonl", "model.gguf", "is the model itself"),
    "the questions": ("in.jsonl", "q.json", "is the questions file itself"),
    "an input in the sidecar's place": ("out.meta.json", "out.jsonl", "is the input itself"),
}


@pytest.mark.parametrize("name", CLASHES)
def test_an_output_never_replaces_an_input(name: str, cli, files: dict[str, Path], tmp_path: Path):
    source, out, fragment = CLASHES[name]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = cli(
        *("decide", "-q", "-m", files["model.gguf"], "--questions", files["q.json"]),
        *("--jsonl", files[source], "-o", tmp_path / out),
    )
    assert done.code == 2
    (error,) = done.error_lines
    assert fragment in error
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
