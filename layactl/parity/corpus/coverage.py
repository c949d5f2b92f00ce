"""What the parity corpus must hold, row by row, judged from the items alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from layactl.parity.corpus.kinds import (
    LONG_INSTRUCTIONS,
    LONG_OPTION,
    LONG_STATE,
    MANY_OPTION,
    MOST_OPTIONS,
    QUESTION_TYPES,
    WINDOW_STATE,
    WORKFLOW_QUESTIONS,
)
from layactl.parity.corpus.states import words

Item = dict[str, Any]
# Of a state, a question, a criterion or a text.
Test = Callable[[Any], bool]
ItemTest = Callable[[Item], bool]
# The values of an item that stand in one place of it: its labels, its instructions, ...
Place = Callable[[Item], Iterator[Any]]

ITEMS = range(880, 961)
QUESTIONS = range(2500, 2751)
LONG_ITEMS = 40

# A letter that a language of the prose has and that its other languages lack, or nearly so.
LANGUAGE_LETTERS = {
    "de": "ä",
    "fr": "è",
    "es": "ñ",
    "pt": "ã",
    "tr": "ı",
    "ru": "ы",
    "el": "ω",
    "ar": "ة",
    "he": "ה",
    "hi": "ह",
    "ja": "の",
    "zh": "们",
    "ko": "니",
    "th": "ท",
}


@dataclass(frozen=True)
class Row:
    """Something that `least` items of a category must be."""

    category: str
    what: str
    holds: ItemTest
    least: int = 1

    def matches(self, item: Item) -> bool:
        return item["cat"] == self.category and self.holds(item)

    def problem(self, items: Sequence[Item]) -> str | None:
        found = sum(map(self.matches, items))
        return None if found >= self.least else f"{self.category}: {self.what}: {found} items, {self.least} wanted"


def coverage_problems(items: Sequence[Item]) -> list[str]:
    """What the items lack or have too much of, one line a gap; empty when everything is there."""
    by_category: dict[str, list[Item]] = {row.category: [] for row in ROWS}
    for item in items:
        by_category.setdefault(item["cat"], []).append(item)
    problems = [problem for row in ROWS if (problem := row.problem(by_category[row.category])) is not None]
    return [*problems, *_single_problems(items), *_size_problems(items)]


def _single_problems(items: Sequence[Item]) -> Iterator[str]:
    """Single questions are those of whole workflows: the same states, and none of their questions left out."""
    whole = {
        (_key(item["state"]), name, _key(question))
        for item in items
        if item["cat"] in WORKFLOWS
        for name, question in item["questions"].items()
    }
    singles = {
        (_key(item["state"]), name, _key(question))
        for item in items
        if item["cat"] == "workflow_single"
        for name, question in item["questions"].items()
    }
    if strange := len(singles - whole):
        yield f"workflow_single: {strange} questions are of no workflow"
    states = {state for state, _, _ in singles}
    if missing := sum(question not in singles for question in whole if question[0] in states):
        yield f"workflow_single: {missing} questions of its workflows are missing"


def _size_problems(items: Sequence[Item]) -> Iterator[str]:
    if len(items) not in ITEMS:
        yield f"size: {len(items)} items, {ITEMS[0]} to {ITEMS[-1]} wanted"
    questions = sum(len(item["questions"]) for item in items)
    if questions not in QUESTIONS:
        yield f"size: {questions} questions, {QUESTIONS[0]} to {QUESTIONS[-1]} wanted"
    long = sum(_state_words(item["state"]) >= LONG_STATE for item in items)
    if long > LONG_ITEMS:
        yield f"size: {long} long states, at most {LONG_ITEMS} wanted"
    if nulls := sum(item["state"] is None for item in items if item["cat"] != "null_state"):
        yield f"size: {nulls} null states outside null_state"
    if len({item["id"] for item in items}) < len(items):
        yield "size: two items share an id"


# -- reading items --------------------------------------------------------------------------------------------------


def _key(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _texts_in(value: Any) -> Iterator[str]:
    """Every text of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        yield from (text for child in value.values() for text in _texts_in(child))
    elif isinstance(value, list):
        yield from (text for child in value for text in _texts_in(child))


def _state_words(state: Any) -> int:
    return sum(map(words, _texts_in(state)))


def _everything(item: Item) -> Iterator[str]:
    return _texts_in([item["state"], item["questions"]])


def _instructions(item: Item) -> Iterator[Any]:
    return (question["instructions"] for question in item["questions"].values())


def _labels(item: Item) -> Iterator[Any]:
    """Labels of choice questions, and the words of noul questions."""
    for question in item["questions"].values():
        if question["type"] == "choice":
            yield from question["criteria"]
        yield from (question.get("labels") or {}).values()


def _described(question: dict[str, Any]) -> list[Any]:
    """Descriptions of labels, of levels, of true and false."""
    criteria = question.get("criteria") or []
    if isinstance(criteria, dict):
        return list(criteria.values())
    return list(criteria) if question["type"] == "score" else []


def _descriptions(item: Item) -> Iterator[Any]:
    return (value for question in item["questions"].values() for value in _described(question))


# Tests of states, questions and texts -> tests of items.


def _state(test: Test) -> ItemTest:
    return lambda item: test(item["state"])


def _any_question(test: Test) -> ItemTest:
    return lambda item: any(map(test, item["questions"].values()))


def _question_count(fits: Test) -> ItemTest:
    return lambda item: fits(len(item["questions"]))


def _any_text(place: Place, test: Test) -> ItemTest:
    return lambda item: any(test(text) for text in place(item) if isinstance(text, str))


def _both(first: ItemTest, second: ItemTest) -> ItemTest:
    return lambda item: first(item) and second(item)


def _typed(question_type: str, test: Test) -> Test:
    """A test of questions, of one type only."""
    return lambda question: question["type"] == question_type and test(question)


def _is(kind: type) -> Test:
    return lambda value: type(value) is kind


def _of_words(least: int) -> Test:
    """English text of that many words; no other criterion counts."""
    return lambda value: isinstance(value, str) and len(value.split()) >= least


def _is_turns(state: Any) -> bool:
    return isinstance(state, list) and all(isinstance(turn, dict) and "role" in turn for turn in state)


def _is_list_of(kind: type) -> Test:
    return lambda state: isinstance(state, list) and state != [] and all(type(entry) is kind for entry in state)


def _is_long(state: Any) -> bool:
    return _state_words(state) >= LONG_STATE


# -- the rows -------------------------------------------------------------------------------------------------------

WORKFLOWS: dict[str, Test] = {"workflow_text": _is(str), "workflow_object": _is(dict), "workflow_turns": _is(list)}


def _workflow_rows() -> Iterator[Row]:
    whole = _question_count(lambda count: count == WORKFLOW_QUESTIONS)
    alone = _question_count(lambda count: count == 1)
    for category, is_shape in WORKFLOWS.items():
        yield Row(category, f"{WORKFLOW_QUESTIONS} questions at once", _both(_state(is_shape), whole), 30)
        yield Row("workflow_single", f"a question of {category} alone", _both(_state(is_shape), alone), 30)
    yield Row("preset", "a ready-made set of questions", _question_count(lambda count: count >= 3), 40)


_STATE_KINDS: dict[str, Test] = {
    "a phrase": lambda state: isinstance(state, str) and "\n" not in state and len(state) < 160,
    "a paragraph": lambda state: isinstance(state, str) and "\n" not in state and len(state) >= 160,
    "paragraphs": lambda state: isinstance(state, str) and "\n\n" in state and not state.startswith("#"),
    "a log": lambda state: isinstance(state, str) and state.count("T08:") > 1,
    "a table": lambda state: (
        isinstance(state, str) and "\n" in state and {line.count(",") for line in state.split("\n")} == {2}
    ),
    "markdown": lambda state: isinstance(state, str) and state.startswith("# "),
    "JSON in a text": lambda state: isinstance(state, str) and state.startswith("{\n"),
    "code": lambda state: isinstance(state, str) and state.startswith("def "),
    "a mail": lambda state: isinstance(state, dict) and "subject" in state,
    "a record": lambda state: isinstance(state, dict) and any(type(value) is float for value in state.values()),
    "nested objects": lambda state: isinstance(state, dict) and isinstance(state.get("case"), dict),
    "turns": lambda state: _is_turns(state) and all(set(turn) == {"role", "content"} for turn in state),
    "tool calls": lambda state: _is_turns(state) and any("tool" in turn for turn in state),
    "a list of texts": _is_list_of(str),
    "a list of numbers": _is_list_of(int),
    "a list of records": lambda state: _is_list_of(dict)(state) and not _is_turns(state),
}


def _all_types(item: Item) -> bool:
    return {question["type"] for question in item["questions"].values()} == set(QUESTION_TYPES)


def _mixed_rows() -> Iterator[Row]:
    for what, test in _STATE_KINDS.items():
        yield Row("mixed", f"all types of questions about {what}", _both(_all_types, _state(test)), 2)
    for code, letter in LANGUAGE_LETTERS.items():
        yield Row("language", code, _any_text(_everything, _has(letter)), 4)


def _option_rows() -> Iterator[Row]:
    for question_type in ("choice", "score"):
        for count in range(2, MOST_OPTIONS + 1):
            has_options = _typed(question_type, _counted(count))
            yield Row("option_counts", f"a {question_type} of {count} options", _any_question(has_options), 2)
        many = _typed(question_type, lambda question: sum(map(_of_words(MANY_OPTION), _described(question))) >= 10)
        row = f"a {question_type} of 10 options of {MANY_OPTION} words"
        yield Row("many_long_options", row, _any_question(many), 10)
    for question_type in QUESTION_TYPES:
        long = _typed(question_type, lambda question: any(map(_of_words(LONG_OPTION), _described(question))))
        row = f"a {question_type} with options of {LONG_OPTION} words"
        yield Row("long_options", row, _any_question(long), 3)
    yield Row("long_options", f"a label of {LONG_OPTION} words", _any_text(_labels, _of_words(LONG_OPTION)), 3)


def _counted(count: int) -> Test:
    return lambda question: len(question["criteria"]) == count


def _length_rows() -> Iterator[Row]:
    is_long_task = _of_words(LONG_INSTRUCTIONS)
    for question_type in QUESTION_TYPES:
        long = _typed(question_type, lambda question: is_long_task(question["instructions"]))
        row = f"a {question_type} with instructions of {LONG_INSTRUCTIONS} words"
        yield Row("long_instructions", row, _any_question(long), 8)
    long_states = {"long_text": _is(str), "long_object": _is(dict), "long_turns": _is_turns}
    for category, is_shape in long_states.items():
        yield Row(category, f"a state of {LONG_STATE} words", _both(_state(is_shape), _state(_is_long)), 8)
    for what, shape in {"text": str, "an object": dict, "turns": list}.items():
        about = _state(lambda state: WINDOW_STATE <= _state_words(state) <= WINDOW_STATE + 130)
        row = f"a state of about {WINDOW_STATE} words as {what}"
        yield Row("window", row, _both(_state(_is(shape)), about), 4)


_VALUES: dict[str, Test] = {
    "an integer": lambda value: type(value) is int,
    "a float": lambda value: type(value) is float,
    "a boolean": lambda value: type(value) is bool,
    "null": lambda value: value is None,
    "an array": lambda value: isinstance(value, list),
    "an object": lambda value: isinstance(value, dict),
    "nested values": lambda value: _depth(value) >= 3,
}


def _depth(value: Any) -> int:
    if not isinstance(value, (dict, list)):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


def _structured_rows() -> Iterator[Row]:
    for question_type in QUESTION_TYPES:
        for what, test in _VALUES.items():
            # A level that is null is refused.
            if (question_type, what) != ("score", "null"):
                row = f"a {question_type} with {what} among its criteria"
                yield Row("structured", row, _any_question(_typed(question_type, _among_criteria(test))))
    row = "instructions that are no text"
    yield Row("structured", row, _any_question(lambda question: not isinstance(question["instructions"], str)), 4)


def _among_criteria(test: Test) -> Test:
    return lambda question: any(map(test, _described(question)))


def _has(*characters: str) -> Test:
    return lambda text: any(character in text for character in characters)


def _has_between(first: int, last: int) -> Test:
    return lambda text: any(first <= ord(character) <= last for character in text)


_EDGES: dict[str, Test] = {
    "composed accents": _has("é"),
    "combining marks": _has_between(0x300, 0x36F),
    "jamo": _has_between(0x1100, 0x11FF),
    "a joined emoji": _has("\u200d"),
    "right-to-left marks": _has("\u200f"),
    "soft hyphens": _has("\u00ad"),
    "zero-width spaces": _has("\u200b"),
    "controls": _has("\x00"),
    "a long run of digits": lambda text: any(word.isdecimal() and len(word) >= 50 for word in text.split()),
    "a long text without spaces": lambda text: any(len(word) >= 200 for word in text.split()),
    "tab runs": _has("\t\t\t"),
    "newline runs": _has("\n\n\n"),
    "space runs": _has(" " * 8),
    "leading spaces": lambda text: text.startswith(" "),
    "trailing spaces": lambda text: text.endswith(" "),
    **{f"the text {token}": _has(token) for token in ("[MASK]", "<mask>", "[CLS]", "[SEP]", "<bos>", "<unused3>")},
    "rare ideographs": _has_between(0x20000, 0x2A6DF),
    "private use": _has_between(0xE000, 0xF8FF),
    "unassigned code points": _has("\u0378"),
    "the metaspace": _has("\u2581"),
    "mixed scripts": lambda text: _has_between(0x430, 0x44F)(text) and _has_between(0x4E00, 0x9FFF)(text),
    "markup": _has("</p>"),
}
_EDGE_PLACES: dict[str, Place] = {
    "edge_state": lambda item: _texts_in(item["state"]),
    "edge_instructions": _instructions,
    "edge_labels": _labels,
    "edge_descriptions": _descriptions,
}


def _edge_rows() -> Iterator[Row]:
    for category, place in _EDGE_PLACES.items():
        for what, test in _EDGES.items():
            yield Row(category, what, _any_text(place, test))
    unusual = _any_text(lambda item: _texts_in(item["state"]), lambda text: not text.isascii())
    for what, shape in {"an object": dict, "a list": list}.items():
        yield Row("edge_object", f"unusual characters inside {what}", _both(_state(_is(shape)), unusual), 3)


def _scalar_rows() -> Iterator[Row]:
    states: dict[str, Test] = {
        "a short text": lambda state: isinstance(state, str) and state.strip() != "",
        "the empty text": lambda state: isinstance(state, str) and state == "",
        "zero": lambda state: type(state) is int and state == 0,
        "a negative integer": lambda state: type(state) is int and state < 0,
        "a large integer": lambda state: type(state) is int and state > 2**63,
        "a float": lambda state: type(state) is float,
        "true": lambda state: state is True,
        "false": lambda state: state is False,
    }
    for what, test in states.items():
        yield Row("scalar", what, _state(test))
    yield Row("null_state", "null", _state(lambda state: state is None), 2)
    yield Row("empty", "an empty object", _state(lambda state: isinstance(state, dict) and not state))
    yield Row("empty", "an empty list", _state(lambda state: isinstance(state, list) and not state))
    yield Row("empty", "nothing inside something", _state(lambda state: bool(state) and not "".join(_texts_in(state))))


_KNOWN_KEYS = {"type", "instructions", "criteria", "labels"}


def _all_of(kinds: set[type], values: Any) -> bool:
    return bool(values) and {type(value) for value in values} <= kinds


def _choice(test: Test) -> Test:
    return _typed("choice", lambda question: test(question["criteria"]))


def _score(test: Test) -> Test:
    return _typed("score", lambda question: test(question["criteria"]))


def _noul(test: Test) -> Test:
    return _typed("noul", test)


_COMPAT: dict[str, Test] = {
    "a choice from a list of texts": _choice(lambda labels: isinstance(labels, list) and _all_of({str}, labels)),
    "a choice from a list of numbers": _choice(
        lambda labels: isinstance(labels, list) and _all_of({int, float}, labels)
    ),
    "a choice from a list of booleans": _choice(lambda labels: isinstance(labels, list) and _all_of({bool}, labels)),
    "a choice from a mixed list": _choice(lambda labels: len({type(label) for label in labels}) > 2),
    "a choice with descriptions": _choice(lambda labels: isinstance(labels, dict) and any(labels.values())),
    "a choice with no descriptions": _choice(lambda labels: isinstance(labels, dict) and not any(labels.values())),
    "a choice of one option": _choice(lambda labels: len(labels) == 1),
    "a score of one level": _score(lambda levels: len(levels) == 1),
    "a score of numbers": _score(lambda levels: _all_of({int, float}, levels)),
    "a score of mixed values": _score(lambda levels: len({type(level) for level in levels}) > 3),
    "a noul without criteria": _noul(lambda question: "criteria" not in question),
    "a noul with null criteria": _noul(lambda question: "criteria" in question and question["criteria"] is None),
    "a noul with empty criteria": _noul(lambda question: question.get("criteria") == {}),
    "a noul with both criteria": _noul(lambda question: len(question.get("criteria") or {}) == 2),
    "a noul with one criterion": _noul(lambda question: len(question.get("criteria") or {}) == 1),
    "noul criteria in capitals": _noul(lambda question: "TRUE" in (question.get("criteria") or {})),
    "noul criteria as Python writes them": _noul(lambda question: "True" in (question.get("criteria") or {})),
    "noul labels": _noul(lambda question: bool(question.get("labels")) and "criteria" not in question),
    "noul labels and criteria": _noul(lambda question: bool(question.get("labels")) and bool(question.get("criteria"))),
    "null noul labels": _noul(lambda question: "labels" in question and question["labels"] is None),
    "unknown keys": lambda question: not set(question) <= _KNOWN_KEYS,
    "empty instructions": lambda question: question["instructions"] == "",
}


def _shape_rows() -> Iterator[Row]:
    for what, test in _COMPAT.items():
        yield Row("compat", what, _any_question(test), 2)
    yield Row(
        "unicode_keys",
        "a key of the state",
        _state(lambda state: isinstance(state, dict) and not "".join(state).isascii()),
        8,
    )
    yield Row("unicode_keys", "a question id", lambda item: not "".join(item["questions"]).isascii(), 8)
    yield Row("unicode_keys", "a label", lambda item: not "".join(map(str, _labels(item))).isascii(), 8)


ROWS: tuple[Row, ...] = (
    *_workflow_rows(),
    *_mixed_rows(),
    *_option_rows(),
    *_length_rows(),
    *_structured_rows(),
    *_edge_rows(),
    *_scalar_rows(),
    *_shape_rows(),
)
