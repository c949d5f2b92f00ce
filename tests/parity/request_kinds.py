"""Requests of every kind that the reference tells apart, drawn from a seed.

A tokenizer measures the texts, so that cuts, caps and budgets are met to the token: `Measure` -> `cases`.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any

QUESTION_TYPES = ("choice", "score", "noul")
OPTION_TOKENS = 48
SPARE_TOKENS = 16
MOST_OPTIONS = 20

# Common in every vocabulary; those that are one token each measure text exactly.
_WORDS = (
    "a b c d e i o s the to of and in is on it for not be with was day time order price customer please invoice no we "
    "you he this that new at by or an"
)

_SENTENCES = (
    "Please refund the second payment, it was charged twice.",
    "I can't log in since Tuesday; the app says 'invalid token' and closes.",
    "Der Kunde möchte die Rechnung Nr. 4711 noch heute erhalten, sonst kündigt er.",
    "Où est ma commande ? Elle devait arriver à Orléans le 3 février.",
    "¿Podrían cambiar mi dirección? Gracias, señor Núñez.",
    "Счёт оплачен дважды, верните деньги.",
    "मेरा ऑर्डर अभी तक नहीं आया है।",
    "我的订单在哪里？请尽快退款。",
    "注文した商品がまだ届いていません。カタカナ",
    "أين طلبي؟ لم يصل بعد.",
    "איפה ההזמנה שלי?",
    "ขอคืนเงินค่าสินค้า",
    "주문한 상품이 아직 오지 않았습니다.",
    "Πού είναι η παραγγελία μου;",
    "Đơn hàng của tôi đâu rồi? Cảm ơn bạn.",
    "Գումարը վերադարձրեք, საქართველო, አማርኛ",
)

_ODD_TEXTS = (
    "cafe\u0301 and nai\u0308ve, e\u0323\u0302 and n\u0303 (decomposed)",
    "\u0301a mark first; \u1100\u1161\u11a8 jamo; \u212b \u2126 \u212a singletons",
    "\ufb01 \u2460 \uff21\uff22 \u00bd \u00b2 stay under NFC, \uf900 \U0002f800 do not",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f \U0001f44d\U0001f3fd \u2603",
    "null \x00 bell \x07 escape \x1b[0m delete \x7f next line \x85",
    "windows\r\nold mac\runix\n\n\n\nmany\ttabs\t\t",
    "line\u2028separator paragraph\u2029separator nbsp\u00a0thin\u2009zero\u200bwidth bom\ufeff",
    "   three before,  two between, four after    ",
    "\u2581literal \u2581\u2581 metaspace\u2581",
    'quotes " \\ \\" \\n \\u00e9 and {"json": [1, 2.5, null]}',
    "1234567.89 -0.5e-10 0x1F 1,000,000 \u0663\u0664",
    "\U0010ffff \ufffd \ufffe private \ue000",
)

_NUMBERS = (0, -1, 7, 1234567.89, 0.1, -0.0, 1e-7, 1e16, 1e22, 123456789012345678, -(2**63), 2**64 - 1)


@dataclass(frozen=True)
class Case:
    """One request, and the kind it belongs to.

    limits: (max_len, head_max_len) in place of the model's own; golden: one of the few that the golden files keep.
    """

    state: Any
    questions: dict[str, Any]
    limits: tuple[int, int] | None = None
    golden: bool = False
    kind: str = ""

    @property
    def survives_json(self) -> bool:
        """Whether the request reads the same after a trip through JSON; labels that are no strings do not."""
        plain = [self.state, self.questions]
        return json.loads(json.dumps(plain)) == plain


@dataclass(frozen=True)
class Measure:
    """A model's tokenizer and limits, as far as requests are made to fit them.

    encode: text -> ids; mask: the mask token's text; specials: texts of all added tokens.
    """

    encode: Callable[[str], list[int]] = field(repr=False)
    mask: str
    specials: tuple[str, ...]
    max_len: int
    head_max_len: int

    @cached_property
    def words(self) -> list[str]:
        """Words that are one token each, at the start of a text and after a space."""
        words = [word for word in _WORDS.split() if len(self.encode(word)) == len(self.encode(f" {word}")) == 1]
        if len(words) < 8:
            raise ValueError(f"only {words} are single tokens: no text can be made to measure")
        return words

    def text(self, tokens: int, rng: Random) -> str:
        """A text of exactly that many tokens, also after a space."""
        return " ".join(rng.choices(self.words, k=tokens))

    def head(self, question: dict[str, Any]) -> int:
        """Tokens of a question's head when nothing is cut."""
        return len(self.encode(f"{question['type']} question: {question['instructions']}"))

    def instructions(self, question_type: str, tokens: int, rng: Random) -> str:
        """Instructions that make the head exactly that long."""
        return self.text(tokens - len(self.encode(f"{question_type} question:")), rng)

    def state_room(self, question: dict[str, Any]) -> int:
        """State tokens that fit beside a list-labelled choice whose head and options are not cut."""
        options = sum(1 + len(self.encode(f" {label}")) for label in question["criteria"])
        return self.max_len - (1 + self.head(question) + 1 + options + 1) - 1


Cases = Iterator[Case]


def cases(measure: Measure, seed: int = 7) -> list[Case]:
    """Every kind in turn; the same for the same arguments."""
    found = []
    for name, make in _KINDS.items():
        found += [replace(case, kind=name) for case in make(measure, Random(f"{seed} {name}"))]
    return found


def question_count(requests: list[Case]) -> int:
    return sum(len(case.questions) for case in requests)


# -- the state ------------------------------------------------------------------------------------------------------


def state_types(measure: Measure, rng: Random) -> Cases:
    states = [
        "",
        " ",
        "\n",
        rng.choice(_SENTENCES),
        {},
        [],
        {"": ""},
        [""],
        [None, True, False],
        {"text": None, "n": 3, "ok": True, "parts": [1, [2, {"three": 4.5}]], "é": "ü\u0301"},
        {"outer": {"inner": {"deep": [[], {}, [[]]]}}, "list": ["a", "b"], "text": rng.choice(_SENTENCES)},
        [{"role": "user", "content": rng.choice(_SENTENCES)}, {"role": "agent", "content": rng.choice(_ODD_TEXTS)}],
        True,
        False,
        *_NUMBERS,
    ]
    question = _choice_list("Which topic?", "billing", "shipping", "other")
    for n, state in enumerate(states):
        yield Case(state, {"topic": question}, golden=n in (0, 3, 5, 8, 9, 10, 11))


def state_lengths(measure: Measure, rng: Random) -> Cases:
    """Every length around the window, the edge of max_len, and far beyond it."""
    question = _choice_list("Which one?", "yes", "no")
    room = measure.state_room(question)
    lengths = {0, 1, 2, 3, 7, 8, 9, 16, 17, 33, room // 2, room - 1, room, room + 1, room + 2, 2 * room, 10 * room}
    golden = {0, 1, room, room + 1, 2 * room}
    for tokens in sorted(lengths):
        yield Case(measure.text(tokens, rng), {"q": question}, golden=tokens in golden)


def long_states(measure: Measure, rng: Random) -> Cases:
    """A list is turns, and keeps its newest; any other state keeps its beginning."""
    size = measure.max_len

    def turn(tokens: int) -> dict[str, str]:
        return {"role": rng.choice(("user", "agent")), "content": measure.text(tokens, rng)}

    for n, (count, tokens) in enumerate(((2, size // 3), (6, size // 4), (3, size), (40, 9), (200, 30))):
        turns = [turn(tokens) for _ in range(count)]
        yield Case(turns, _some_questions(measure, rng, 2), golden=n == 0)
        yield Case([item["content"] for item in turns], _some_questions(measure, rng, 1))
        yield Case({"turns": turns}, _some_questions(measure, rng, 1), golden=n == 0)
    for n, sentence in enumerate(rng.sample(_SENTENCES, 6)):
        yield Case(f"{sentence} " * (size // 4), _some_questions(measure, rng, 1), golden=n == 0)
        yield Case([f"{n} {sentence}" for n in range(size // 4)], _some_questions(measure, rng, 1), golden=n == 0)


def short_lists(measure: Measure, rng: Random) -> Cases:
    """List states a token or so around the edge, where cutting from the left and from the right differ by one turn."""
    question = _choice_list("Which one?", "yes", "no")
    room = measure.state_room(question)
    for tokens in range(room - 12, room + 6, 2):
        yield Case([measure.text(tokens, rng)], {"q": question})


# -- the options ----------------------------------------------------------------------------------------------------


def option_counts(measure: Measure, rng: Random) -> Cases:
    """1 to 20 options, so every temperature bucket and both of its edges."""
    golden = {1, 2, 5, 6, 10, 11, 20}
    for count in range(1, MOST_OPTIONS + 1):
        labels = [f"{word} {n}" for n, word in enumerate(rng.choices(measure.words, k=count))]
        levels = [measure.text(rng.randint(1, 3), rng) for _ in range(count)]
        questions = {
            "choice": _choice_list("Which?", *labels),
            "score": {"type": "score", "instructions": "How bad?", "criteria": levels},
        }
        yield Case(rng.choice(_SENTENCES), questions, golden=count in golden)


def long_options(measure: Measure, rng: Random) -> Cases:
    """An option keeps 48 tokens."""
    for n, tokens in enumerate((OPTION_TOKENS - 1, OPTION_TOKENS, OPTION_TOKENS + 1, 300)):
        label = measure.text(tokens, rng)
        yield Case("short", {"q": _choice_list("Which?", label, "other")}, golden=n != 1)
        questions = {
            "choice": {"type": "choice", "instructions": "Which?", "criteria": {"long": label, "short": "b"}},
            "score": {"type": "score", "instructions": "How much?", "criteria": ["low", label]},
            "noul": {"type": "noul", "instructions": "Is it?", "criteria": {"true": label}},
        }
        yield Case(rng.choice(_SENTENCES), questions, golden=n == 2)


def options_at_the_head_budget(measure: Measure, rng: Random) -> Cases:
    """Options that leave the head 17, 16 and 15 tokens: at 15 all are cut to an equal share."""
    count = math.ceil((measure.head_max_len - SPARE_TOKENS) / 40)
    for spare in (SPARE_TOKENS + 1, SPARE_TOKENS, SPARE_TOKENS - 1):
        total = measure.head_max_len - spare - count
        sizes = [total // count + (n < total % count) for n in range(count)]
        labels = [measure.text(size, rng) for size in sizes]
        yield Case("state", {"q": _choice_list(rng.choice(_SENTENCES), *labels)}, golden=True)


def many_long_options(measure: Measure, rng: Random) -> Cases:
    for n, count in enumerate((3, 5, 8, 12, 17, 20)):
        long = [f"{n} {measure.text(rng.randint(20, 60), rng)}" for n in range(count)]
        shared = measure.text(30, rng)
        questions = {
            "choice": {"type": "choice", "instructions": "Which one is it?", "criteria": dict.fromkeys(long, "more")},
            "score": {"type": "score", "instructions": rng.choice(_SENTENCES), "criteria": long},
            # Alike beyond the cap, so the cut makes them one.
            "alike": _choice_list("Which?", *(f"{shared} {n}" for n in range(count))),
        }
        yield Case(rng.choice(_SENTENCES), questions, golden=n == 1)


def tight_limits(measure: Measure, rng: Random) -> Cases:
    """Limits small enough for both floors (4 tokens an option, 8 of the head), and for the refusal below them."""
    labels = [measure.text(6, rng) + f" {n}" for n in range(MOST_OPTIONS)]
    question = _choice_list(measure.text(12, rng), *labels)
    # [CLS], 8 of the head, [SEP], 20 options of 4 tokens, [SEP], [SEP]: 92 tokens without any state.
    for max_len in (120, 94, 93, 92, 91, 90, 88, 87, 86, 85, 60, 11, 4):
        limits = (min(max_len, measure.max_len), 40)
        yield Case(measure.text(50, rng), {"q": question}, limits, golden=max_len in (120, 90, 87, 86))
        yield Case([measure.text(50, rng)], {"fits": _noul("Is it?"), "q": question}, limits)


def raised_limits(measure: Measure, rng: Random) -> Cases:
    """Sequences beyond what the model was made for: positions have no end."""
    for max_len in (measure.max_len + 1, 520, 700, 1100):
        limits = max(max_len, measure.max_len), measure.head_max_len
        yield Case(measure.text(2 * max_len, rng), {"q": _noul("Is it?")}, limits, golden=max_len == 700)


# -- the head -------------------------------------------------------------------------------------------------------


def long_instructions(measure: Measure, rng: Random) -> Cases:
    """Heads around the budget that the options leave, for every question type."""
    options = {"choice": ["yes", "no"], "score": ["low", "high"], "noul": None}
    texts = {
        "choice": ["yes", "no"],
        "score": ["level 0: low", "level 1: high"],
        "noul": ["false: no, the statement does not hold", "true: yes, the statement holds"],
    }
    for question_type in QUESTION_TYPES:
        spans = sum(1 + len(measure.encode(f" {text}")) for text in texts[question_type])
        budget = measure.head_max_len - spans
        for tokens in (budget - 1, budget, budget + 1, 4 * budget):
            question: dict[str, Any] = {
                "type": question_type,
                "instructions": measure.instructions(question_type, tokens, rng),
            }
            if options[question_type]:
                question["criteria"] = options[question_type]
            yield Case(measure.text(20, rng), {"q": question}, golden=tokens == budget + 1)


def structured_instructions(measure: Measure, rng: Random) -> Cases:
    values = ["", " ", None, 0, 2.5, True, [], {}, ["Is it", {"urgent": "für uns"}, 3], {"ask": rng.choice(_ODD_TEXTS)}]
    for n, value in enumerate(values):
        yield Case("Some state.", {"q": _noul(value), "r": _choice_list(value, "x", "y")}, golden=n > 7)


# -- labels, levels, descriptions -----------------------------------------------------------------------------------


def label_types(measure: Measure, rng: Random) -> Cases:
    """Labels that are no strings, in a list and (from Python) as keys of an object."""
    lists: list[list[Any]] = [
        [1, 2, 3],
        [0, "0 "],
        [True, False],
        [2.5, 1e22, 1e-7, -0.0],
        ["a", 7, False, 0.5],
        ["", "empty first"],
        [" leading", "leading", "trailing "],
        [2**64 - 1, -(2**63)],
        ["True", True, "None"],
    ]
    for n, labels in enumerate(lists):
        yield Case("Pick one.", {"q": _choice_list("Which?", *labels)}, golden=n in (2, 3, 4, 6, 8))
        described = {label: rng.choice((None, "", "described", 0, ["x"])) for label in labels}
        yield Case("Pick one.", {"q": {"type": "choice", "instructions": "Which?", "criteria": described}})


def descriptions(measure: Measure, rng: Random) -> Cases:
    """null and "" are no description; 0, false, [] and {} are ones."""
    values = [None, "", 0, False, [], {}, 0.0, " ", "text", {"like": ["a", 1], "né": None}, [rng.choice(_SENTENCES)]]
    for n, value in enumerate(values):
        questions = {
            "choice": {"type": "choice", "instructions": "Which?", "criteria": {"first": value, "second": "plain"}},
            "noul": {"type": "noul", "instructions": "Is it?", "criteria": {"true": value}},
            "both": {"type": "noul", "instructions": "Is it?", "criteria": {"false": value, "true": value}},
        }
        if value is not None:
            questions["score"] = {"type": "score", "instructions": "How?", "criteria": [value, "more", value]}
        yield Case(rng.choice(_SENTENCES), questions, golden=n in (1, 2, 9))


def noul_criteria(measure: Measure, rng: Random) -> Cases:
    """Keys in any case, the later of two alike wins; words stripped as Python strips (U+2028 and U+0085 too)."""
    forms: list[dict[str, Any]] = [
        {},
        {"criteria": None},
        {"criteria": {}},
        {"criteria": {"True": "it is", "FALSE": "it is not"}},
        {"criteria": {"true": "first", "TRUE": "second", "tRuE": "third"}},
        {"criteria": {"False": "first", "false": ""}},
        {"criteria": {True: "from Python", False: "also"}},
        {"labels": None},
        {"labels": {"false": "later", "true": "now"}},
        {"labels": {"true": "now", "false": "later"}, "criteria": {"true": "today"}},
        {"labels": {"false": " \u2028no\u0085", "true": "\tyes \u00a0"}},
        {"labels": {"false": "\x1cno\x1f", "true": "\u200byes\u200b"}},
        {"labels": {"false": f"no {measure.mask}", "true": measure.mask}},
        {"labels": {"false": "e\u0301", "true": "\u00e9"}},
    ]
    for n, form in enumerate(forms):
        question = {"type": "noul", "instructions": rng.choice(_SENTENCES), **form}
        yield Case(rng.choice(_SENTENCES), {"q": question}, golden=n in (0, 4, 5, 9, 10))


# -- unusual text ---------------------------------------------------------------------------------------------------


def special_text(measure: Measure, rng: Random) -> Cases:
    """The text of special tokens in every place; the mask's must become a space, so that nobody places a marker."""
    mask = measure.mask
    texts = [
        mask,
        f"{mask}{mask}",
        f"a{mask}b {mask} c",
        f"{mask[:2]}{mask}{mask[2:]}",
        f"  {mask}  ",
        mask.lower(),
        mask.upper(),
        "".join(measure.specials[:8]),
        " ".join(rng.sample(measure.specials, 8)),
        *(f"x {special}y" for special in rng.sample(measure.specials, 8)),
    ]
    for n, text in enumerate(texts):
        yield Case(text, {"q": _choice_list(f"Is it {text}?", f"1{text}", "2")}, golden=n < 3 or n in (7, 8))
        criteria = {text: text, "other": [text]}
        questions = {
            "choice": {"type": "choice", "instructions": {text: text}, "criteria": criteria},
            "score": {"type": "score", "instructions": text, "criteria": [text, {text: 1}]},
            "noul": {"type": "noul", "instructions": "?", "criteria": {"true": text}, "labels": None},
        }
        yield Case({text: [text, {"k": text}], "b": text}, questions, golden=n == 2)
        yield Case([text, f"{text} b"], {"q": _noul(text)})


def unicode_text(measure: Measure, rng: Random) -> Cases:
    """Scripts, combining marks in both forms, emoji, controls and line ends, in states, options and instructions."""
    texts = list(_SENTENCES) + list(_ODD_TEXTS)
    texts += [unicodedata.normalize("NFD", text) for text in _SENTENCES]
    for n, text in enumerate(texts):
        other = rng.choice(texts)
        golden = n == 7 or len(_SENTENCES) <= n < len(_SENTENCES) + 8
        yield Case(text, {"q": _choice_list(other, f"{text} 1", f"{other} 2")}, golden=golden)
        if n % 4 == 0:
            criteria = {text: other, f"{other} 2": {other: text}}
            question = {"type": "choice", "instructions": [text], "criteria": criteria}
            yield Case({text: other, "list": [text]}, {text: question, "noul": _noul(other)})


# -- everything at once ---------------------------------------------------------------------------------------------


def several_questions(measure: Measure, rng: Random) -> Cases:
    for count in (2, 3, 5, 8):
        yield Case(_state(measure, rng), _some_questions(measure, rng, count), golden=count == 5)


def mixtures(measure: Measure, rng: Random) -> Cases:
    for n in range(40):
        yield Case(_state(measure, rng), _some_questions(measure, rng, rng.randint(1, 4)), golden=n < 3)


_KINDS: dict[str, Callable[[Measure, Random], Cases]] = {
    "state types": state_types,
    "state lengths": state_lengths,
    "long states": long_states,
    "short lists": short_lists,
    "option counts": option_counts,
    "long options": long_options,
    "options at the head budget": options_at_the_head_budget,
    "many long options": many_long_options,
    "tight limits": tight_limits,
    "raised limits": raised_limits,
    "long instructions": long_instructions,
    "structured instructions": structured_instructions,
    "label types": label_types,
    "descriptions": descriptions,
    "noul criteria": noul_criteria,
    "special text": special_text,
    "unicode text": unicode_text,
    "several questions": several_questions,
    "mixtures": mixtures,
}


def raw_texts(measure: Measure) -> list[str]:
    """Texts for the tokenizer alone.

    The flags of the mask token show here only: in a request its text never reaches the tokenizer.
    """
    mask = measure.mask
    texts = ["", " ", *_ODD_TEXTS, f"a {mask} b", f"a    {mask}b", f"{mask} {mask}", f"\u00a0{mask}\n {mask}"]
    texts += [f"a{special}b  {special} c" for special in measure.specials[::3]]
    return texts + [unicodedata.normalize("NFD", text) for text in _SENTENCES[2:6]]


# Bodies both sides refuse, by what is wrong with them.
REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "no state": (None, {"q": {"type": "noul", "instructions": "Is it?"}}),
    "a question that is no object": ("s", {"q": "Is it?"}),
    "no type": ("s", {"q": {"instructions": "Is it?"}}),
    "an unknown type": ("s", {"q": {"type": "boolean", "instructions": "Is it?"}}),
    "a type in capitals": ("s", {"q": {"type": "Noul", "instructions": "Is it?"}}),
    "no instructions": ("s", {"q": {"type": "noul"}}),
    "a choice without criteria": ("s", {"q": {"type": "choice", "instructions": "?"}}),
    "a choice of nothing": ("s", {"q": {"type": "choice", "instructions": "?", "criteria": []}}),
    "a choice of no labels": ("s", {"q": {"type": "choice", "instructions": "?", "criteria": {}}}),
    "a choice of text": ("s", {"q": {"type": "choice", "instructions": "?", "criteria": "a|b"}}),
    "a null label": ("s", {"q": {"type": "choice", "instructions": "?", "criteria": ["a", None]}}),
    "a list label": ("s", {"q": {"type": "choice", "instructions": "?", "criteria": ["a", ["b"]]}}),
    "an object label": ("s", {"q": {"type": "choice", "instructions": "?", "criteria": ["a", {"b": 1}]}}),
    "a label twice": ("s", {"q": {"type": "choice", "instructions": "?", "criteria": ["a", "b", "a"]}}),
    "1 and 1.0 as labels": ("s", {"q": {"type": "choice", "instructions": "?", "criteria": [1, 1.0]}}),
    "1 and true as labels": ("s", {"q": {"type": "choice", "instructions": "?", "criteria": [True, 1]}}),
    "labels on a choice": ("s", {"q": {"type": "choice", "instructions": "?", "criteria": ["a"], "labels": None}}),
    "a score without criteria": ("s", {"q": {"type": "score", "instructions": "?"}}),
    "a score of nothing": ("s", {"q": {"type": "score", "instructions": "?", "criteria": []}}),
    "a score by labels": ("s", {"q": {"type": "score", "instructions": "?", "criteria": {"low": "x"}}}),
    "a null level": ("s", {"q": {"type": "score", "instructions": "?", "criteria": ["a", None]}}),
    "a noul by list": ("s", {"q": {"type": "noul", "instructions": "?", "criteria": ["no", "yes"]}}),
    "an unknown noul key": ("s", {"q": {"type": "noul", "instructions": "?", "criteria": {"yes": "x"}}}),
    "one noul word": ("s", {"q": {"type": "noul", "instructions": "?", "labels": {"true": "x"}}}),
    "blank noul words": ("s", {"q": {"type": "noul", "instructions": "?", "labels": {"true": "x", "false": "\u2028"}}}),
    "equal noul words": ("s", {"q": {"type": "noul", "instructions": "?", "labels": {"true": "x", "false": " x"}}}),
    "noul words of numbers": ("s", {"q": {"type": "noul", "instructions": "?", "labels": {"true": 1, "false": 0}}}),
    "one bad question of two": ("s", {"ok": {"type": "noul", "instructions": "?"}, "q": {"type": "noul"}}),
}

# Bodies that only layactl refuses: the specification's limits, and what JSON cannot say.
REFUSED_HERE_ONLY: dict[str, tuple[Any, dict[str, Any]]] = {
    "21 options": ("s", {"q": {"type": "choice", "instructions": "?", "criteria": [*map(str, range(21))]}}),
    "21 levels": ("s", {"q": {"type": "score", "instructions": "?", "criteria": ["x"] * 21}}),
    "two labels with one answer key": ("s", {"q": {"type": "choice", "instructions": "?", "criteria": ["1", 1]}}),
    "NaN in the state": ({"n": math.nan}, {"q": {"type": "noul", "instructions": "?"}}),
    "an integer beyond 64 bits": (2**64, {"q": {"type": "noul", "instructions": "?"}}),
}


def _choice_list(instructions: Any, *labels: Any) -> dict[str, Any]:
    return {"type": "choice", "instructions": instructions, "criteria": list(labels)}


def _noul(instructions: Any) -> dict[str, Any]:
    return {"type": "noul", "instructions": instructions}


def _some_questions(measure: Measure, rng: Random, count: int) -> dict[str, Any]:
    return {f"q{n}": _question(measure, rng) for n in range(count)}


def _question(measure: Measure, rng: Random) -> dict[str, Any]:
    question_type = rng.choice(QUESTION_TYPES)
    instructions = _text(measure, rng) if rng.random() < 0.85 else _value(measure, rng)
    question: dict[str, Any] = {"type": question_type, "instructions": instructions}
    count = rng.choice((1, 2, 2, 3, 3, 4, 5, 6, 8, 10, 11, 15, 20))
    if question_type == "choice" and rng.random() < 0.5:
        question["criteria"] = [f"{_text(measure, rng)} {n}" for n in range(count)]
    elif question_type == "choice":
        question["criteria"] = {f"{n} {_text(measure, rng)}": _value(measure, rng) for n in range(count)}
    elif question_type == "score":
        levels = (_value(measure, rng) for _ in range(count))
        question["criteria"] = ["nothing" if level is None else level for level in levels]
    elif rng.random() < 0.7:
        keys = rng.sample(("true", "false", "True", "FALSE"), k=rng.randint(0, 3))
        question["criteria"] = {key: _value(measure, rng) for key in keys}
    return question


def _text(measure: Measure, rng: Random) -> str:
    draw = rng.random()
    if draw < 0.45:
        return measure.text(rng.randint(1, 12), rng)
    if draw < 0.7:
        return rng.choice(_SENTENCES)
    if draw < 0.8:
        return rng.choice(_ODD_TEXTS)
    if draw < 0.9:
        return f"{rng.choice(measure.words)}{rng.choice((' ', ''))}{rng.choice(measure.specials)} {measure.mask} end"
    return measure.text(rng.randint(40, 90), rng)


def _value(measure: Measure, rng: Random, depth: int = 0) -> Any:
    draw = rng.random()
    if draw < 0.5 or depth > 2:
        return _text(measure, rng)
    if draw < 0.7:
        return rng.choice((None, "", True, False, *_NUMBERS))
    if draw < 0.85:
        return [_value(measure, rng, depth + 1) for _ in range(rng.randint(0, 4))]
    return {f"{rng.choice(measure.words)}{n}": _value(measure, rng, depth + 1) for n in range(rng.randint(0, 4))}


def _state(measure: Measure, rng: Random) -> Any:
    draw = rng.random()
    if draw < 0.35:
        return " ".join(_text(measure, rng) for _ in range(rng.randint(1, 12)))
    if draw < 0.65:
        return [{"role": rng.choice(("user", "agent")), "text": _text(measure, rng)} for _ in range(rng.randint(1, 14))]
    if draw < 0.9:
        return {f"{n} {rng.choice(measure.words)}": _value(measure, rng) for n in range(rng.randint(1, 8))}
    # Never null, which is no state.
    return rng.choice((_value(measure, rng) or "empty", rng.choice(_NUMBERS)))
