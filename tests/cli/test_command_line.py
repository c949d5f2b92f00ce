"""The command line's promises: exit codes, one-line errors, what goes to stdout, pipes and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from layactl import errors
from layactl.decide.local import LocalAnswering
from layactl.decide.presets import PRESETS
from layactl.errors import LayactlError, RequestError, UsageError

ASK = ("--ask", "q=noul: Urgent?")


# -- exit codes and error lines --------------------------------------------------------------------------------------


def test_every_error_class_has_an_exit_code_of_the_contract():
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, LayactlError)]
    assert len(classes) > 5
    assert {c.__name__ for c in classes if c.exit_code != 1} == {"UsageError"}
    assert UsageError.exit_code == 2


def test_the_error_tree_in_the_docstring_is_the_one_there_is():
    classes = {
        c.__name__: c.exit_code for c in vars(errors).values() if isinstance(c, type) and issubclass(c, LayactlError)
    }
    drawn = dict(re.findall(r"^[ |`-]*(\w+)\s+exit (\d)", errors.__doc__ or "", re.MULTILINE))
    assert {name: int(code) for name, code in drawn.items()} == classes


STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "overloaded_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


@pytest.mark.parametrize("code", STATUS)
def test_the_type_of_an_error_object_follows_from_its_status(code: int):
    assert RequestError("WORD", "message", code=code).to_json()["type"] == STATUS[code]


USAGE: dict[str, tuple[list[str], str]] = {
    "an unknown command": (["bogus"], "bogus"),
    "an unknown option": (["decide", "--bogus"], "--bogus"),
    "a missing option": (["decide", "text"], "--model"),
    "a missing argument": (["convert", "-o", "x.gguf"], "CHECKPOINT"),
    "a word too many": (["presets", "triage", "guard"], "guard"),
    "a number that is none": (["decide", "-m", "x", "text", "--threads", "two"], "--threads"),
    "a number out of range": (["decide", "-m", "x", "text", "--round", "99"], "--round"),
    "an unknown choice": (["decide", "-m", "x", "text", "--truncation", "maybe"], "--truncation"),
    "an option without its value": (["decide", "-m"], "-m"),
    "no questions": (["decide", "-m", "x", "text"], "no questions are given"),
    "no state": (["decide", "-m", "x", *ASK], "no state is given"),
    "two states": (["decide", "-m", "x", "text", "--state", "1", *ASK], "more than one state"),
    "a file of tables": (
        ["decide", "-m", "x", "--jsonl", "x", "--format", "table", "-o", "y.jsonl"],
        "--format table does not go with -o",
    ),
    "a state beside lines": (["decide", "-m", "x", "text", "--jsonl", "x"], "does not go with --jsonl"),
    "shorthand that cannot be read": (["decide", "-m", "x", "text", "--ask", "what?"], "cannot read 'what?'"),
    "an unknown preset": (["presets", "none"], "no preset is called 'none'"),
    "an unknown subcommand": (["tokenizer", "bogus"], "bogus"),
}


def test_a_name_that_no_file_can_have_is_told_as_that_file(cli):
    name = "x" * 5000
    done = cli("decide", "-m", name, "text", *ASK)
    assert (done.code, done.out) == (1, "")
    assert done.error_lines == [f"error: cannot be used: File name too long ({name})"]


@pytest.mark.parametrize("name", USAGE)
def test_wrong_usage_is_exit_2_and_one_line(name: str, cli):
    arguments, fragment = USAGE[name]
    done = cli(*arguments)
    assert (done.code, done.out) == (2, "")
    (error,) = done.error_lines
    assert fragment in error
    assert all(line.startswith(("error: ", "hint: ")) for line in done.err.splitlines())


@pytest.mark.parametrize("arguments", [[], ["tokenizer"], ["cache"]], ids=lambda a: " ".join(a) or "nothing")
def test_a_command_without_its_subcommand_shows_help_and_no_error(arguments: list[str], layactl):
    done = layactl(*arguments)
    assert done.code == 2
    assert "Usage: layactl" in done.out + done.err
    assert done.error_lines == []


def test_a_traceback_is_shown_only_on_request_and_wherever_the_option_stands(cli, tmp_path: Path):
    plain = cli("decide", "-m", tmp_path / "none.gguf", "text", *ASK)
    assert "Traceback" not in plain.err
    for arguments in (("--traceback", "decide"), ("decide", "--traceback")):
        shown = cli(*arguments, "-m", tmp_path / "none.gguf", "text", *ASK)
        assert shown.code == plain.code == 1
        assert "Traceback (most recent call last)" in shown.err
        assert shown.error_lines == plain.error_lines


def test_an_internal_error_is_one_line_too(cli, gguf_for, monkeypatch: pytest.MonkeyPatch):
    def broken(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError("first\nsecond")

    monkeypatch.setattr(LocalAnswering, "answer", broken)
    done = cli("decide", "-q", "-m", gguf_for(), "text", *ASK)
    assert (done.code, done.out) == (1, "")
    assert done.err == "error: internal error: ZeroDivisionError: first\\nsecond\nhint: --traceback shows where\n"
    assert "in broken" in cli("decide", "-q", "-m", gguf_for(), "text", *ASK, "--traceback").err


def test_control_characters_of_a_file_name_do_not_reach_the_terminal(cli, tmp_path: Path):
    name = "a\x1b[31m\nb\u202e"
    done = cli("decide", "-m", tmp_path / name, "text", *ASK)
    (error,) = done.error_lines
    assert "a\\x1b[31m\\nb\\u202e" in error
    assert "\x1b" not in done.err


# -- single answers --------------------------------------------------------------------------------------------------


@pytest.fixture
def decide(cli, gguf_for):
    """decide(...): one request to the multilingual model, in this process."""
    return lambda *args, **options: cli("decide", "-m", gguf_for("tiny-multilingual"), *args, **options)


def untimed(text: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(text).items() if key not in ("latency_ms", "timings")}


def test_an_answer_is_one_line_of_json_and_equals_the_python_api(decide, model_for):
    done = decide("caf\u00e9 \u2028 \U0001f600", *ASK, "--debug")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("\n")
    assert done.out.count("\n") == 1
    question = {"q": {"type": "noul", "instructions": "Urgent?"}}
    own = model_for("tiny-multilingual").decide("caf\u00e9 \u2028 \U0001f600", question, debug=True)
    assert untimed(done.out) == {key: value for key, value in own.items() if key not in ("latency_ms", "timings")}


def test_the_state_may_come_from_anywhere(decide, tmp_path: Path):
    (tmp_path / "s.json").write_text('"text"')
    (tmp_path / "s.txt").write_text("text")
    answers = [
        untimed(decide(*arguments, *ASK, stdin=b"text").out)
        for arguments in (
            ("text",),
            ("-",),
            ("--state", '"text"'),
            ("--state-file", tmp_path / "s.json"),
            ("--state-file", tmp_path / "s.txt"),
        )
    ]
    assert all(answer == answers[0] for answer in answers)


def test_warnings_are_notes_and_quiet_silences_them(decide):
    loud = decide("word " * 2000, *ASK)
    assert loud.code == 0
    assert re.fullmatch(r"note: question 'q': \d+ of \d+ state tokens dropped\n", loud.err)
    quiet = decide("word " * 2000, *ASK, "--quiet")
    assert quiet.err == ""
    assert untimed(quiet.out) == untimed(loud.out)
    assert [warning["reason"] for warning in json.loads(quiet.out)["warnings"]] == ["state_truncated"]


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "null state": (("--state", "null", *ASK), "INVALID_REQUEST: state is missing or null (state)"),
    "does not fit": (("word " * 2000, *ASK, "--truncation", "error"), "STATE_TRUNCATED: "),
    "two labels alike": (("x", "--ask", "choice: Which? a|a"), "UNSUPPORTED_CRITERIA_VALUE: label 1 ('a') repeats"),
    "21 options": (
        ("x", "--ask", "choice: Which? " + "|".join(map(str, range(21)))),
        "TOO_MANY_OPTIONS: 21 options; at most 20 (questions.q1.criteria)",
    ),
    "text that is no Unicode": (("\udcff", *ASK), "is not UTF-8 text: invalid start byte at byte 0 (TEXT)"),
    "shorthand that is no Unicode": (("x", "--ask", "noul: \udcff?"), "MALFORMED_JSON: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_request_is_exit_1_with_its_reason_and_nothing_on_stdout(name: str, decide):
    arguments, fragment = REFUSED[name]
    done = decide(*arguments)
    assert (done.code, done.out) == (1, "")
    (error,) = done.error_lines
    assert error.startswith("error: " + fragment)


def test_a_state_over_1_mib_is_refused_however_it_comes(decide, tmp_path: Path):
    text = "x" * (2**20 + 1)
    (tmp_path / "s.txt").write_text(text)
    (tmp_path / "s.json").write_text(json.dumps(text))
    for arguments, stdin in (
        (("-",), text.encode()),
        (("--state-file", tmp_path / "s.txt"), b""),
        (("--state-file", tmp_path / "s.json"), b""),
    ):
        done = decide(*arguments, *ASK, stdin=stdin)
        assert (done.code, done.out) == (1, "")
        assert done.error_lines == ["error: BODY_TOO_LARGE: request over 1048576 bytes"]


# -- rounding and tables ---------------------------------------------------------------------------------------------

THREE = ("--ask", "t=choice: Team? a=one|b|c", "--ask", "s=score: How? low|mid|high", "--ask", "n=noul: Urgent?")


@pytest.mark.parametrize("digits", [0, 3, 17])
def test_round_shortens_the_answers_alone(digits: int, decide):
    exact, short = (json.loads(decide("x", *THREE, *more, "--debug").out) for more in ((), ("--round", digits)))
    for key, answer in exact["answers"].items():
        got = short["answers"][key]
        assert list(got) == list(answer)
        for field, value in answer.items():
            if isinstance(value, float):
                assert got[field] == round(value, digits)
        if "probabilities" in answer:
            assert got["probabilities"] == {k: round(p, digits) for k, p in answer["probabilities"].items()}
        assert got["debug"] == answer["debug"]
        assert got.get("legend") == answer.get("legend")
    assert short["usage"] == exact["usage"]


def test_round_knows_fields_from_labels_of_the_same_name(cli, gguf_for):
    done = cli("decide", "-q", "-m", gguf_for(), "x", "--ask", "q=choice: Which? choice|debug|legend", "--round", "2")
    probabilities = json.loads(done.out)["answers"]["q"]["probabilities"]
    assert list(probabilities) == ["choice", "debug", "legend"]
    assert all(p == round(p, 2) for p in probabilities.values())


def test_round_keeps_a_label_that_is_a_number(cli, gguf_for, tmp_path: Path):
    question = {"q": {"type": "choice", "instructions": "?", "criteria": [1.2345]}}
    (tmp_path / "q.json").write_text(json.dumps(question))
    done = cli("decide", "-q", "-m", gguf_for(), "x", "--questions", tmp_path / "q.json", "--round", "1")
    assert json.loads(done.out)["answers"]["q"]["choice"] == 1.2345


def test_a_table_names_every_question_and_its_answer(decide):
    exact = json.loads(decide("x", *THREE).out)["answers"]
    done = decide("x", *THREE, "--format", "table")
    assert (done.code, done.err) == (0, "")
    rows = [line for line in done.out.splitlines() if re.match(r"\W*[tsn]\b", line)]
    assert len(rows) == 3
    assert exact["t"]["choice"] in rows[0]
    assert f"{exact['s']['score']:.3f} of 2" in rows[1]
    assert f"{exact['n']['noul']:.4f} true" in rows[2]
    for row, answer in zip(rows, exact.values(), strict=True):
        assert f"{answer['answer_confidence']:.4f}" in row


def test_lines_are_tables_under_their_ids(cli, gguf_for, tmp_path: Path):
    """Decisions, router requests and refused lines, each in its place."""
    candidate = {"id": "local/a", "card": {"schema": "atomic.executor-card/1", "name": "A", "kind": "local"}}
    lines = [
        {"id": "first\x1b", "state": "x", "questions": {"sure": {"type": "noul", "instructions": "Sure?"}}},
        {"id": "second", "questions": {}},
        {"id": True, "state": "word " * 3000, "questions": {"long": {"type": "noul", "instructions": "Long?"}}},
        {"id": "third", "task": "Add", "criterion": "Exact", "candidates": [candidate]},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ("decide", "-q", "-m", gguf_for(), "--allow-uncalibrated", "--jsonl", tmp_path / "in.jsonl")
    answers = [json.loads(line) for line in cli(*asked).out.splitlines()]
    done = cli(*asked, "--format", "table")
    assert done.code == 3
    parts = re.split(r"^(?=first|second|true|third)", done.out, flags=re.MULTILINE)[1:]
    assert parts[0].split("\n")[0].strip() == "first\\x1b"
    assert f"{answers[0]['answers']['sure']['noul']:.4f} true" in parts[0]
    assert parts[1].strip() == "second: INVALID_REQUEST: state is missing or null"
    assert re.search(rf"local/a\W+{answers[3]['scores'][0]['p_success']:.4f}\W+no", parts[3])
    warning = answers[2]["warnings"][0]["message"]
    assert re.sub(r"\s+", " ", parts[2]).endswith(f"warning: {warning} ")


def test_a_table_never_hands_control_characters_to_the_terminal(decide, tmp_path: Path):
    question = {"type": "choice", "instructions": "?", "criteria": ["\x1b[31mred", "two\nlines"]}
    (tmp_path / "q.json").write_text(json.dumps({"\x1b]0;title\x07": question}))
    done = decide("x", "--questions", tmp_path / "q.json", "--format", "table")
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "\\x1b[31mred" in done.out


def test_a_table_shows_markup_and_long_lists_as_text(decide):
    labels = "|".join(f"[red]{n}[/red]" for n in range(8))
    done = decide("x", "--ask", f"q=choice: Which? {labels}", "--format", "table")
    assert "[red]" in done.out
    assert "and 3 more" in re.sub(r"\s+", " ", re.sub(r"[^\w\s]", " ", done.out))


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
    ids=["pipe", "forced", "NO_COLOR"],
)
def test_colours_are_off_in_a_pipe_and_with_no_color(environment: dict[str, str], coloured: bool):
    plain = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "NO_COLOR")}
    command = [sys.executable, "-m", "layactl", "decide", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=plain | environment, timeout=60)
    assert bool(re.search(r"\x1b\[[\d;]*3\dm", done.stdout)) == coloured
    if not environment:
        assert "\x1b" not in done.stdout


def test_a_table_in_a_pipe_holds_no_escape_sequences(layactl, gguf_for):
    done = layactl("decide", "-m", gguf_for(), "x", *THREE, "--format", "table")
    assert done.code == 0
    assert "\x1b" not in done.out + done.err


# -- pipes and signals -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGPIPE semantics")
@pytest.mark.parametrize("kind", ["presets", "lines"])
def test_a_reader_that_leaves_early_ends_the_command_in_silence(kind: str, gguf_for, tmp_path: Path):
    command = [sys.executable, "-m", "layactl", "presets"]
    if kind == "lines":
        (tmp_path / "in.jsonl").write_bytes(b"{}\n" * 50_000)
        command[3:] = ["decide", "-q", "-m", str(gguf_for()), "--jsonl", str(tmp_path / "in.jsonl")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    if kind == "lines":
        assert process.stdout.readline().startswith(b'{"id": 1, ')
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141
    assert err == b""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_ctrl_c_is_exit_130_and_one_line(gguf_for, tmp_path: Path):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    process = subprocess.Popen(
        [sys.executable, "-m", "layactl", "decide", "-m", str(gguf_for()), "--jsonl", str(ready), *ASK],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background may have it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        # Opening a pipe for writing waits for its reader: from then on the command is in its own code.
        with ready.open("wb"):
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, "")
    assert err == "error: interrupted\n"


# -- other commands --------------------------------------------------------------------------------------------------


def test_presets_lists_them_and_prints_one_as_a_questions_file(cli, gguf_for, tmp_path: Path):
    listed = cli("presets").out.splitlines()
    assert [line.split()[0] for line in listed] == list(PRESETS)
    (tmp_path / "q.json").write_text(cli("presets", "guard").out)
    done = cli("decide", "-q", "-m", gguf_for(), "x", "--questions", tmp_path / "q.json")
    assert list(json.loads(done.out)["answers"]) == list(PRESETS["guard"])


@pytest.mark.parametrize("stdin", [False, True], ids=["argument", "stdin"])
def test_tokenize_prints_ids_and_pieces(stdin: bool, family: str, cli, gguf_for, model_for):
    text = "caf\u00e9 <mask> [MASK]\n\n x"
    done = cli("tokenize", "-m", gguf_for(family), "-" if stdin else text, stdin=text.encode())
    tokenizer = model_for(family).tokenizer
    ids = tokenizer.encode(text)
    assert json.loads(done.out) == {"tokens": len(ids), "ids": ids, "pieces": tokenizer.tokens(ids)}


def test_tokenize_refuses_what_is_no_text(cli, gguf_for):
    done = cli("tokenize", "-m", gguf_for(), "-", stdin=b"a\xff")
    assert (done.code, done.out) == (1, "")
    assert done.error_lines == ["error: the text is not UTF-8: invalid start byte at byte 1"]


def test_verify_compares_the_tokenizer_with_the_checkpoints(family: str, cli, gguf_for, checkpoint, tmp_path: Path):
    (tmp_path / "texts").write_text("own text\u2028 one\nand another\n", encoding="utf-8")
    root = checkpoint(family)
    arguments = ("tokenizer", "verify", "-m", gguf_for(family), root, "--count", "200", "--texts", tmp_path / "texts")
    same = cli(*arguments)
    pieces = len(json.loads((root / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"])
    result = json.loads(same.out)
    assert (same.code, result["mismatches"], result["first"]) == (0, 0, [])
    # The probe texts, the two own ones, and the text of every piece of the vocabulary.
    assert result["texts"] > 202 + pieces


def test_verify_is_exit_2_when_a_text_is_read_differently(cli, gguf_for, checkpoint):
    root = checkpoint("tiny-english")
    path = root / "tokenizer" / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["merges"].reverse()
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    done = cli("tokenizer", "verify", "-m", gguf_for("tiny-english"), root, "--count", "100")
    result = json.loads(done.out)
    assert done.code == 2
    assert result["texts"] > 900
    assert result["mismatches"] > 5 == len(result["first"])


def test_verify_finds_a_single_merge_that_is_missing(cli, gguf_for, checkpoint):
    root = checkpoint("tiny-english")
    path = root / "tokenizer" / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    lost = tokenizer["model"]["merges"].pop(100)
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    done = cli("tokenizer", "verify", "-m", gguf_for("tiny-english"), root, "--count", "1")
    assert done.code == 2 and json.loads(done.out)["mismatches"] >= 1, lost


def test_convert_prints_the_path_and_notes_the_size(cli, checkpoint, tmp_path: Path):
    done = cli("convert", checkpoint(), "-o", tmp_path / "x.gguf", "--outtype", "f32")
    assert (done.code, done.out) == (0, f"{tmp_path / 'x.gguf'}\n")
    size = (tmp_path / "x.gguf").stat().st_size
    assert done.err == f"note: 55 tensors, 309,188 parameters, {size:,} bytes\n"
    assert cli("convert", checkpoint("tiny-multilingual"), "-o", tmp_path / "y.gguf", "--quiet").err == ""


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
def test_file_names_need_not_be_text(cli, checkpoint, tmp_path: Path):
    folder = os.fsencode(tmp_path)
    root, model, out = (os.fsdecode(folder + name) for name in (b"/ck\xff", b"/m\xff.gguf", b"/o\xff.jsonl"))
    checkpoint("tiny-multilingual").rename(root)
    command = [sys.executable, "-m", "layactl", "convert", "-q", root, "-o", model]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, os.fsencode(model) + b"\n", b"")
    (tmp_path / "in.jsonl").write_bytes(b'{"state": "x"}\n')
    run = ("decide", "-q", "-m", model, "--jsonl", tmp_path / "in.jsonl", "-o", out, *ASK)
    for more in ((), ("--resume",)):
        finished = cli(*run, *more)
        assert (finished.code, finished.out, finished.err) == (0, "", "")
    assert json.loads(Path(out).read_text(encoding="utf-8"))["model"] == "m\\xff"
