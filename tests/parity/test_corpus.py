"""The parity corpus is what corpus/corpus.json says, covers what it must, and is accepted on both sides.

`python tests/parity/test_corpus.py` rewrites corpus.json after a deliberate change.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layactl.errors import InputError, RequestError
from layactl.layouts.laya.question import parse_question
from layactl.parity.corpus.build import (
    build_corpus,
    check_corpus,
    corpus_bytes,
    corpus_summary,
    english_items,
    is_english,
    summary_bytes,
)
from layactl.parity.corpus.coverage import LANGUAGE_LETTERS, ROWS, coverage_problems
from layactl.parity.corpus.kinds import KINDS

FOLDER = Path(__file__).parents[2] / "corpus"


@pytest.fixture(scope="module")
def items() -> list[dict[str, Any]]:
    return build_corpus(FOLDER)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private copy of the corpus, to break."""
    for name in ("prose.txt", "lexicon.json", "corpus.json"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    return tmp_path


def edit_lexicon(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    lexicon = json.loads((folder / "lexicon.json").read_text(encoding="utf-8"))
    edit(lexicon)
    (folder / "lexicon.json").write_text(json.dumps(lexicon), encoding="utf-8")


# -- the bytes ------------------------------------------------------------------------------------------------------


def test_the_committed_summary_is_that_of_the_items(items):
    assert (FOLDER / "corpus.json").read_bytes() == summary_bytes(corpus_summary(items))
    summary = json.loads((FOLDER / "corpus.json").read_bytes())
    assert summary["sha256"] == hashlib.sha256(corpus_bytes(items)).hexdigest()
    assert summary["items"] == len(items) == sum(summary["items_by_category"].values())
    assert summary["questions"] == sum(summary["questions_by_type"].values())
    assert summary["english"]["sha256"] == hashlib.sha256(corpus_bytes(english_items(items))).hexdigest()
    assert check_corpus(FOLDER) == []


def test_the_bytes_are_one_compact_object_a_line(items):
    data = corpus_bytes(items)
    assert data.endswith(b"\n")
    lines = data.removesuffix(b"\n").split(b"\n")
    assert [json.loads(line) for line in lines] == items
    assert all(
        line == json.dumps(json.loads(line), ensure_ascii=False, separators=(",", ":")).encode() for line in lines[::50]
    )
    # Only what JSON must escape is escaped.
    assert b"\\u0000" in data and "Zoë".encode() in data and "\u2028".encode() in data and b"\\ud" not in data
    assert corpus_bytes([]) == b""


def test_the_bytes_do_not_depend_on_the_hash_seed(items):
    program = (
        "import sys; from pathlib import Path; from layactl.parity.corpus.build import build_corpus, corpus_bytes; "
        "sys.stdout.buffer.write(corpus_bytes(build_corpus(Path(sys.argv[1]))))"
    )
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(FOLDER)],
            env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": "C"},
            capture_output=True,
            check=True,
        )
        assert done.stdout == corpus_bytes(items)


def test_a_checkout_with_carriage_returns_makes_the_same_items(folder, items):
    for name in ("prose.txt", "lexicon.json"):
        path = folder / name
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert corpus_bytes(build_corpus(folder)) == corpus_bytes(items)


def test_ids_are_numbered_within_the_categories_in_order(items):
    numbered = []
    for kind in KINDS:
        count = sum(item["cat"] == kind.category for item in items)
        numbered += [(f"{kind.category}_{number:04d}", kind.category) for number in range(1, count + 1)]
    assert [(item["id"], item["cat"]) for item in items] == numbered
    assert all(list(item) == ["id", "cat", "state", "questions"] for item in items)


# -- the coverage ---------------------------------------------------------------------------------------------------


def test_nothing_is_missing(items):
    assert coverage_problems(items) == []


def test_every_row_misses_its_items(items):
    for row in ROWS:
        problem = row.problem([item for item in items if not row.matches(item)])
        assert problem == f"{row.category}: {row.what}: 0 items, {row.least} wanted"


def test_no_row_is_there_twice():
    assert len({(row.category, row.what) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("category", [kind.category for kind in KINDS])
def test_a_category_that_is_gone_is_a_problem_in_all_its_rows(category, items):
    expected = {f"{row.category}: {row.what}" for row in ROWS if row.category == category}
    problems = coverage_problems([item for item in items if item["cat"] != category])
    missing = {problem.split(": 0 items")[0] for problem in problems if ": 0 items" in problem}
    assert missing == expected != set()


def without_workflow_text(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in items if item["cat"] != "workflow_text"]


def without_one_single(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in items if item["id"] != "workflow_single_0004"]


def with_a_null(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**items[0], "state": None}, *items[1:]]


def with_longer_states(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**item, "state": "word " * 2600} if item["cat"] == "preset" else item for item in items]


def without_language_questions(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**item, "questions": {}} if item["cat"] == "language" else item for item in items]


@pytest.mark.parametrize(
    "change, problem",
    [
        (without_workflow_text, "workflow_single: 35 questions are of no workflow"),
        (without_one_single, "workflow_single: 1 questions of its workflows are missing"),
        (with_a_null, "size: 1 null states outside null_state"),
        (with_longer_states, "size: 96 long states, at most 40 wanted"),
        (without_language_questions, "size: 2361 questions, 2500 to 2750 wanted"),
        (lambda items: items[:-100], "size: 850 items, 880 to 960 wanted"),
        (lambda items: [*items, items[0]], "size: two items share an id"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_no_single_item_can_show(change, problem, items):
    assert problem in coverage_problems(change(items))


def test_every_language_of_the_prose_has_its_letter():
    headers = [line for line in (FOLDER / "prose.txt").read_text(encoding="utf-8").split("\n") if line[:3] == "## "]
    assert {line.split()[1] for line in headers} == {"en", *LANGUAGE_LETTERS}


def test_every_edge_text_stands_in_every_place(items):
    edge = json.loads((FOLDER / "lexicon.json").read_text(encoding="utf-8"))["edge"]
    for category in ("edge_state", "edge_instructions", "edge_labels", "edge_descriptions"):
        content = corpus_bytes([item for item in items if item["cat"] == category]).decode()
        assert [name for name, text in edge.items() if json.dumps(text, ensure_ascii=False) not in content] == []


def test_the_english_subset_has_no_letter_beyond_ascii(items):
    english = english_items(items)
    assert len(english) >= 600
    for item in english:
        text = json.dumps([item["state"], item["questions"]], ensure_ascii=False)
        assert [character for character in text if character.isalpha() and not "A" <= character <= "z"] == []
    assert not {item["cat"] for item in english} & {"language", "unicode_keys"}


def test_english_is_a_matter_of_letters():
    def item(state: Any = "", question_id: str = "q") -> dict[str, Any]:
        return {"id": "é", "cat": "é", "state": state, "questions": {question_id: {"type": "noul", "instructions": ""}}}

    # Dashes, emoji and combining marks are no letters; an id is not asked about.
    assert is_english(item("5 € – 👍 e\u0301"))
    assert not is_english(item("é"))
    assert not is_english(item({"名": 1}))
    assert not is_english(item(["x", {"y": ["ж"]}]))
    assert not is_english(item(question_id="ü"))


# -- both sides accept the items ------------------------------------------------------------------------------------


def test_all_items_parse_but_those_without_a_state(items, family, model_for):
    model = model_for(family)
    for item in items:
        body = {"state": item["state"], "questions": item["questions"]}
        if item["cat"] == "null_state":
            with pytest.raises(RequestError, match="state is missing or null"):
                model.parse(body)
            continue
        for question in model.parse(body).questions:
            assert len(set(question.options)) == len(question.options), (item["id"], question.id)


def test_unusual_items_are_answered(items, family, model_for):
    """One of each category: what parses is answered too."""
    model = model_for(family)
    by_category = {item["cat"]: item for item in items}
    by_category.pop("null_state")
    for item in by_category.values():
        response = model.decide(item["state"], item["questions"])
        assert list(response["answers"]) == list(item["questions"])


@pytest.mark.reference
def test_the_reference_accepts_the_questions_and_reads_the_same_options(items):
    pytest.importorskip("laya")
    os.environ.update(USE_TF="0", HF_HUB_OFFLINE="1")
    from laya.agent import Agent
    from laya.common import render_options

    for item in items:
        for name, definition in item["questions"].items():
            Agent._check_question(name, definition)
            internal = Agent._to_internal(definition)
            question = parse_question(name, definition)
            assert tuple(render_options(internal)) == question.options
            assert internal["ins"] == question.instructions


# -- damaged files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["prose.txt", "lexicon.json", "corpus.json"])
def test_a_missing_file_is_named(name, folder):
    (folder / name).unlink()
    with pytest.raises(InputError, match=name + " is missing"):
        check_corpus(folder)


@pytest.mark.parametrize("name", ["prose.txt", "lexicon.json", "corpus.json"])
def test_a_file_that_is_no_text_is_named(name, folder):
    with (folder / name).open("ab") as file:
        file.write(b"\xff")
    with pytest.raises(InputError, match=r"is not UTF-8 text.*" + name):
        check_corpus(folder)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda text: "A paragraph.\n" + text, r"a paragraph stands before the first header .*prose.txt, line 1\)"),
        (lambda text: text.replace("## en support", "## en-support"), "not a header `## LANGUAGE DOMAIN`"),
        (lambda text: text + "\n## de support\n\nText.\n", "the block de support is there twice"),
        (lambda text: text + "\n## de agent\n", r"the block de agent has no paragraph .*prose.txt\)"),
        (lambda text: text + "\n## de agent\n\nDas {ding}.\n", "no slot is called 'ding'"),
        (lambda text: text[: text.index("## en contracts")], "needs two English paragraphs of 'contracts'"),
        (lambda text: text[: text.index("## th support")], "has no paragraph in 'th'"),
        (lambda text: "", "needs two English paragraphs of 'support'"),
    ],
)
def test_damaged_prose_is_refused(damage, message, folder):
    path = folder / "prose.txt"
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(InputError, match=message) as refusal:
        build_corpus(folder)
    assert "prose.txt" in str(refusal.value)


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda lexicon: lexicon.pop("slots"), "the section 'slots' is missing"),
        (lambda lexicon: lexicon.update(extra=1), "no section is called 'extra'"),
        (
            lambda lexicon: lexicon.update(slots={"name": []}),
            "the section 'slots' must be an object of lists of 7 texts",
        ),
        (lambda lexicon: lexicon["slots"].pop("code"), "the section 'slots' must be .* among them .*code"),
        (lambda lexicon: lexicon["slots"].update(name=["a", "b", "c", "d", "e", "f", "a"]), "the section 'slots' must"),
        (lambda lexicon: lexicon["slots"].update(name=[["a"]]), "the section 'slots' must be"),
        (lambda lexicon: lexicon["workflows"]["support"].pop("urgency"), None),
        (lambda lexicon: lexicon["workflows"].update(support={}), "the section 'workflows' must be"),
        (lambda lexicon: lexicon["workflows"].pop("agent"), "has no workflow 'agent'"),
        (lambda lexicon: lexicon["presets"]["tone"]["mood"].update(type="rank"), "the section 'presets' must be"),
        (lambda lexicon: lexicon["presets"]["tone"]["mood"].update(type=[]), "the section 'presets' must be"),
        (lambda lexicon: lexicon["presets"]["tone"]["mood"].pop("criteria"), "the section 'presets' must be"),
        (lambda lexicon: lexicon["compat"][0]["list"].update(type="score", criteria={"a": 1}), "the section 'compat'"),
        (lambda lexicon: lexicon["languages"].pop("ko"), "has no questions in 'ko'"),
        (lambda lexicon: lexicon["ladders"][0].pop(), "the section 'ladders' must be"),
        (lambda lexicon: lexicon.update(labels={"one": "text"}), "the section 'labels' must be an object of 20 texts"),
        (lambda lexicon: lexicon.update(scalars=[]), "the section 'scalars' must be a list of values"),
    ],
)
def test_a_damaged_lexicon_is_refused(edit, message, folder):
    edit_lexicon(folder, edit)
    if message is None:
        # Six questions are enough: the corpus changes, and check_corpus says so.
        assert any("corpus.json says sha256" in problem for problem in check_corpus(folder))
        return
    with pytest.raises(InputError, match=message) as refusal:
        build_corpus(folder)
    assert "lexicon.json" in str(refusal.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"slots": NaN}', '{"edge": {"x": "\\ud800"}}'])
def test_a_lexicon_that_is_no_json_object_is_refused(text, folder):
    (folder / "lexicon.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"lexicon\.json"):
        build_corpus(folder)


def test_a_summary_that_differs_is_told_field_by_field(folder):
    summary = json.loads((folder / "corpus.json").read_bytes())
    summary["english"]["items"] += 1
    del summary["format"]
    summary["left_over"] = True
    (folder / "corpus.json").write_text(json.dumps(summary))
    made = summary["english"]["items"] - 1
    assert check_corpus(folder) == [
        "corpus.json says format None, the files make 'layactl.parity-corpus/1'",
        f"corpus.json says english.items {made + 1}, the files make {made}",
        "corpus.json says left_over True, the files make None",
    ]
    (folder / "corpus.json").write_text("[]")
    with pytest.raises(InputError, match=r"must be a JSON object .*corpus\.json"):
        check_corpus(folder)


if __name__ == "__main__":
    (FOLDER / "corpus.json").write_bytes(summary_bytes(corpus_summary(build_corpus(FOLDER))))
