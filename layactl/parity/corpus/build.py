"""The parity corpus: prose.txt and lexicon.json -> items, the same bytes everywhere; corpus.json records the result."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from layactl.core import strict_json
from layactl.durable import read_limited
from layactl.errors import InputError, RequestError
from layactl.parity.corpus.coverage import coverage_problems
from layactl.parity.corpus.kinds import (
    KINDS,
    MOST_OPTIONS,
    QUESTION_TYPES,
    WORKFLOW_QUESTIONS,
)
from layactl.parity.corpus.states import SLOT_VALUES, STATE_SLOTS, Sources

FORMAT = "layactl.parity-corpus/1"
_MAX_BYTES = 16 * 2**20
PROSE, LEXICON, SUMMARY = "prose.txt", "lexicon.json", "corpus.json"

_HEADER = re.compile(r"## ([a-z]{2}) ([a-z]+)")
_SLOT = re.compile(r"\{([^{}]*)\}")


def build_corpus(folder: Path) -> list[dict[str, Any]]:
    """All items, `{"id", "cat", "state", "questions"}`, category by category.

    folder: holds prose.txt and lexicon.json. Raises InputError naming the file that is missing or malformed.
    """
    sources = _read_sources(folder)
    return [item for kind in KINDS for item in kind.items(sources)]


def corpus_bytes(items: Iterable[dict[str, Any]]) -> bytes:
    """JSONL in UTF-8: one compact object a line, in the order given, every line ended."""
    lines = (json.dumps(item, ensure_ascii=False, separators=(",", ":"), allow_nan=False) for item in items)
    return "".join(f"{line}\n" for line in lines).encode("utf-8")


def is_english(item: dict[str, Any]) -> bool:
    """Whether every letter of the state and the questions, keys included, is ASCII: fit for English checkpoints."""
    text = strict_json.dumps([item["state"], item["questions"]])
    return text.isascii() or not any(character.isalpha() for character in text if not character.isascii())


def english_items(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in items if is_english(item)]


def corpus_summary(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What corpus.json records: format, sha256 of `corpus_bytes` and counts, of all items and of the English ones."""
    return {"format": FORMAT, **_counts(items), "english": _counts(english_items(items))}


def summary_bytes(summary: dict[str, Any]) -> bytes:
    """The bytes of corpus.json."""
    return (json.dumps(summary, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def check_corpus(folder: Path) -> list[str]:
    """What is wrong with a corpus folder: numbers that differ from its corpus.json, and gaps in the coverage.

    Raises InputError naming the file that is missing or malformed.
    """
    recorded = _read_json(folder / SUMMARY)
    if not isinstance(recorded, dict):
        raise InputError("must be a JSON object", where=str(folder / SUMMARY))
    items = build_corpus(folder)
    return [*_differences(recorded, corpus_summary(items)), *coverage_problems(items)]


def _counts(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    types = Counter(question["type"] for item in items for question in item["questions"].values())
    categories = Counter(item["cat"] for item in items)
    return {
        "sha256": hashlib.sha256(corpus_bytes(items)).hexdigest(),
        "items": len(items),
        "questions": types.total(),
        "questions_by_type": {name: types[name] for name in QUESTION_TYPES},
        "items_by_category": {kind.category: categories[kind.category] for kind in KINDS},
    }


def _differences(recorded: Any, made: Any, field: str = "") -> Iterator[str]:
    if isinstance(recorded, dict) and isinstance(made, dict):
        for key in [*made, *(key for key in recorded if key not in made)]:
            yield from _differences(recorded.get(key), made.get(key), f"{field}.{key}" if field else key)
    elif recorded != made:
        yield f"{SUMMARY} says {field} {recorded!r:.80}, the files make {made!r:.80}"


# -- the files ------------------------------------------------------------------------------------------------------


def _read_sources(folder: Path) -> Sources:
    lexicon = _read_lexicon(folder / LEXICON)
    prose = _read_prose(folder / PROSE, set(lexicon["slots"]))
    for domain in lexicon["workflows"]:
        if len(prose.get("en", {}).get(domain, [])) < 2:
            raise InputError(f"needs two English paragraphs of {domain!r:.60}", where=str(folder / PROSE))
    for language in prose:
        if language != "en" and language not in lexicon["languages"]:
            raise InputError(f"has no questions in {language!r}", where=str(folder / LEXICON))
        if unknown := sorted(set(prose[language]) - set(lexicon["workflows"])):
            raise InputError(f"has no workflow {unknown[0]!r:.60}", where=str(folder / LEXICON))
    if missing := sorted(set(lexicon["languages"]) - set(prose)):
        raise InputError(f"has no paragraph in {missing[0]!r:.60}", where=str(folder / PROSE))
    return Sources(prose=prose, **lexicon)


def _read_prose(path: Path, slots: set[str]) -> dict[str, dict[str, list[str]]]:
    prose: dict[str, dict[str, list[str]]] = {}
    block: list[str] | None = None
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        where = f"{path}, line {number}"
        if match := _HEADER.fullmatch(line):
            language, domain = match.groups()
            if domain in prose.setdefault(language, {}):
                raise InputError(f"the block {language} {domain} is there twice", where=where)
            block = prose[language][domain] = []
        elif line.startswith("##"):
            raise InputError(f"not a header `## LANGUAGE DOMAIN`: {line!r:.60}", where=where)
        elif line and not line.startswith("#"):
            if block is None:
                raise InputError("a paragraph stands before the first header", where=where)
            if unknown := [name for name in _SLOT.findall(line) if name not in slots]:
                raise InputError(f"no slot is called {unknown[0]!r:.60}", where=where)
            block.append(line)
    if empty := [
        f"{language} {domain}" for language in prose for domain, texts in prose[language].items() if not texts
    ]:
        raise InputError(f"the block {empty[0]} has no paragraph", where=str(path))
    return prose


def _read_lexicon(path: Path) -> dict[str, Any]:
    lexicon = _read_json(path)
    if not isinstance(lexicon, dict):
        raise InputError("must be a JSON object", where=str(path))
    lexicon.pop("about", None)
    if unknown := sorted(set(lexicon) - set(_SECTIONS)):
        raise InputError(f"no section is called {unknown[0]!r:.60}", where=str(path))
    for section, (fits, form) in _SECTIONS.items():
        if section not in lexicon:
            raise InputError(f"the section {section!r} is missing", where=str(path))
        if not fits(lexicon[section]):
            raise InputError(f"the section {section!r} must be {form}", where=str(path))
    return lexicon


def _read_json(path: Path) -> Any:
    try:
        return strict_json.loads_strict(_read_text(path))
    except RequestError as error:
        raise InputError(error.message, where=str(path)) from None


def _read_text(path: Path) -> str:
    """Text with line feeds only, however the file was checked out. Raises InputError."""
    try:
        return read_limited(path, _MAX_BYTES).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text: {error.reason} at byte {error.start}", where=str(path)) from None


# -- the form of lexicon.json ---------------------------------------------------------------------------------------


def _is_texts(value: Any, least: int = 1) -> bool:
    """A list of different texts."""
    return (
        isinstance(value, list)
        and all(isinstance(text, str) for text in value)
        and len(set(value)) == len(value) >= least
    )


def _is_object_of(fits: Callable[[Any], bool], value: Any, least: int = 1) -> bool:
    return isinstance(value, dict) and len(value) >= least and all(map(fits, value.values()))


def _is_list_of(fits: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(fits, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_anything(value: Any) -> bool:
    return True


def _is_question(value: Any) -> bool:
    """As far as the generator looks at it; that layactl and the reference accept it is for the tests to show."""
    if not isinstance(value, dict) or not _is_text(value.get("instructions")):
        return False
    criteria, labels = value.get("criteria"), value.get("labels")
    fits = {
        "choice": isinstance(criteria, (dict, list)) and len(criteria) > 0,
        "score": isinstance(criteria, list) and len(criteria) > 0,
        "noul": isinstance(criteria, dict | None) and isinstance(labels, dict | None),
    }
    return any(value.get("type") == name for name in QUESTION_TYPES if fits[name])


def _is_question_set(value: Any) -> bool:
    return _is_object_of(_is_question, value)


def _is_workflow(value: Any) -> bool:
    if not _is_object_of(_is_question, value, WORKFLOW_QUESTIONS):
        return False
    return {question["type"] for question in value.values()} == set(QUESTION_TYPES)


def _is_slots(value: Any) -> bool:
    filled = _is_object_of(lambda texts: _is_texts(texts, SLOT_VALUES), value)
    return filled and all(name in value for name in STATE_SLOTS)


# Section -> whether a value fits it, and what it must be.
_SECTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "slots": (_is_slots, f"an object of lists of {SLOT_VALUES} texts or more, among them {', '.join(STATE_SLOTS)}"),
    "workflows": (
        lambda value: _is_object_of(_is_workflow, value),
        f"an object of workflows: {WORKFLOW_QUESTIONS} questions or more, of all types",
    ),
    "presets": (lambda value: _is_object_of(_is_question_set, value), "an object of question sets"),
    "languages": (lambda value: _is_object_of(_is_question_set, value), "an object of question sets"),
    "labels": (
        lambda value: _is_object_of(_is_text, value, MOST_OPTIONS),
        f"an object of {MOST_OPTIONS} texts or more",
    ),
    "ladders": (
        lambda value: _is_list_of(lambda ladder: _is_texts(ladder, MOST_OPTIONS), value),
        f"a list of lists of {MOST_OPTIONS} texts or more",
    ),
    "structured": (lambda value: _is_list_of(_is_anything, value), "a list of values"),
    "structured_instructions": (lambda value: _is_list_of(_is_anything, value), "a list of values"),
    "edge": (lambda value: _is_object_of(_is_text, value, 3), "an object of three texts or more"),
    "keys": (lambda value: _is_texts(value, 8), "a list of eight texts or more"),
    "scalars": (lambda value: _is_list_of(_is_anything, value), "a list of values"),
    "empties": (lambda value: _is_list_of(_is_anything, value), "a list of values"),
    "compat": (lambda value: _is_list_of(_is_question_set, value), "a list of question sets"),
}
