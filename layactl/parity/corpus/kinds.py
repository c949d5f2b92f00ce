"""The kinds of items the parity corpus is made of, one function each: prose and lexicon -> states and questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from layactl.parity.corpus.states import (
    STATES,
    Content,
    Draw,
    Question,
    Questions,
    Sources,
    as_turns,
    at_least,
    domain_of,
    endless,
    language_of,
    make_passage,
    make_state,
    make_story,
    other_languages,
)

QUESTION_TYPES = ("choice", "score", "noul")
WORKFLOW_QUESTIONS = 5
MOST_OPTIONS = 20

# In words. An option of 90 is far above its 48 tokens in any vocabulary, ten of 30 are above any head budget in use,
# and 2,500 words are more than twice 1,024 tokens; 350 words make about 512 tokens together with a question.
LONG_OPTION = 90
MANY_OPTION = 30
LONG_INSTRUCTIONS = 250
LONG_STATE = 2500
WINDOW_STATE = 350


# -- questions ------------------------------------------------------------------------------------------------------


def _of_type(sources: Sources, draw: Draw, domain: str, *types: str) -> Questions:
    """One question of each type from a domain's workflow."""
    found: Questions = {}
    for question_type in types:
        ids = [name for name, question in sources.workflows[domain].items() if question["type"] == question_type]
        name = draw.pick(f"question {question_type}", ids)
        found[name] = sources.workflows[domain][name]
    return found


def _rotated_type(number: int) -> str:
    return QUESTION_TYPES[number % len(QUESTION_TYPES)]


def _sized_question(sources: Sources, draw: Draw, question_type: str, instructions: Any) -> Question:
    """A question with short options, whatever its instructions."""
    question: Question = {"type": question_type, "instructions": instructions}
    if question_type == "choice":
        question["criteria"] = draw.some("labels", list(sources.labels), 3)
    elif question_type == "score":
        question["criteria"] = draw.pick("ladder", sources.ladders)[::6]
    return question


# -- the kinds ------------------------------------------------------------------------------------------------------


def _workflow(shape: str, sources: Sources, number: int) -> Content:
    draw = Draw(f"workflow_{shape}", number)
    domain = domain_of(sources, number)
    story = make_story(sources, draw, domain, language_of(sources, number, 7))
    kinds = {"text": ("paragraphs",), "object": ("mail", "record", "nested"), "turns": ("turns", "turns", "texts")}
    questions = sources.workflows[domain]
    names = draw.some("questions", list(questions), WORKFLOW_QUESTIONS)
    state = make_state(draw.pick("state", kinds[shape]), sources, draw, story)
    return state, {name: questions[name] for name in names}


def workflow_text(sources: Sources, draw: Draw) -> Content:
    return _workflow("text", sources, draw.number)


def workflow_object(sources: Sources, draw: Draw) -> Content:
    return _workflow("object", sources, draw.number)


def workflow_turns(sources: Sources, draw: Draw) -> Content:
    return _workflow("turns", sources, draw.number)


def workflow_single(sources: Sources, draw: Draw) -> Content:
    """The first workflows of each shape once more, one question an item."""
    workflow, nth = divmod(draw.number, WORKFLOW_QUESTIONS)
    shape = ("text", "object", "turns")[workflow % 3]
    state, questions = _workflow(shape, sources, workflow // 3)
    name = list(questions)[nth]
    return state, {name: questions[name]}


def preset(sources: Sources, draw: Draw) -> Content:
    """A ready-made set of questions that knows nothing of the state."""
    sets = list(sources.presets.values())
    story = make_story(sources, draw, domain_of(sources, draw.number), language_of(sources, draw.number, 8))
    kind = draw.pick("state", ("paragraph", "paragraphs", "mail", "turns"))
    return make_state(kind, sources, draw, story), sets[draw.number % len(sets)]


def mixed(sources: Sources, draw: Draw) -> Content:
    """All types of questions at once, on every kind of state."""
    kinds = list(STATES)
    domain = draw.pick("domain", list(sources.workflows))
    story = make_story(sources, draw, domain, language_of(sources, draw.number, 9))
    questions = _of_type(sources, draw, domain, *draw.some("types", QUESTION_TYPES, 3))
    questions |= _of_type(sources, Draw(f"{draw.category} more", draw.number), domain, "noul", "choice")
    return make_state(kinds[draw.number % len(kinds)], sources, draw, story), questions


def language(sources: Sources, draw: Draw) -> Content:
    """State and questions in one language, and sometimes an English question among them."""
    others = other_languages(sources)
    code = others[draw.number % len(others)]
    domain = draw.pick("domain", list(sources.prose[code]))
    story = make_story(sources, draw, domain, code)
    kind = ("paragraph", "mail", "turns", "paragraphs", "texts", "record")[draw.number // len(others) % 6]
    questions = dict(sources.languages[code])
    if draw.below("english", 3) == 0:
        questions |= _of_type(sources, draw, domain, "noul")
    return make_state(kind, sources, draw, story), questions


def option_counts(sources: Sources, draw: Draw) -> Content:
    """2 to 20 options, with descriptions, without, and with some."""
    count = 2 + draw.number % (MOST_OPTIONS - 1)
    form = draw.number // (MOST_OPTIONS - 1)
    labels = draw.some("labels", list(sources.labels), count)
    criteria: Any = {
        0: {label: sources.labels[label] for label in labels},
        1: labels,
        2: {label: None if n % 2 else sources.labels[label] for n, label in enumerate(labels)},
    }[form % 3]
    ladder = sources.ladders[form % len(sources.ladders)]
    levels = sorted(draw.some("levels", range(len(ladder)), count))
    questions = {
        "subject": {"type": "choice", "instructions": "Which subject comes closest?", "criteria": criteria},
        "degree": {
            "type": "score",
            "instructions": "Which level describes the text?",
            "criteria": [ladder[level] for level in levels],
        },
    }
    return make_story(sources, draw, domain_of(sources, draw.number))[0], questions


def long_options(sources: Sources, draw: Draw) -> Content:
    """Options that lose what is beyond their own cap."""
    labels = draw.some("labels", list(sources.labels), 2 + draw.number % 2)
    long = [make_passage(sources, draw, f"option {n}", LONG_OPTION) for n in range(len(labels))]
    ask = "Which description fits the text?"
    as_choice: Question = {"type": "choice", "instructions": ask, "criteria": dict(zip(labels, long, strict=True))}
    if draw.number % 3 == 1:
        as_choice["criteria"] = [*long, "none of them"]
    other: Question = {"type": "noul", "instructions": ask, "criteria": {"false": long[1], "true": long[0]}}
    if draw.number % 2:
        other = {"type": "score", "instructions": ask, "criteria": ["nothing like it", *long]}
    return make_story(sources, draw, domain_of(sources, draw.number))[0], {"which": as_choice, "other": other}


def many_long_options(sources: Sources, draw: Draw) -> Content:
    """Options that together leave the head no room, so that all are cut to an equal share."""
    count = 10 + draw.number % (MOST_OPTIONS - 9)
    long = [make_passage(sources, draw, f"option {n}", MANY_OPTION) for n in range(count)]
    labels = draw.some("labels", list(sources.labels), count)
    questions: Questions = {
        "which": {
            "type": "choice",
            "instructions": "Which of these passages speaks of the same matter as the text?",
            "criteria": dict(zip(labels, long, strict=True)),
        },
        "how": {"type": "score", "instructions": "How far along is it?", "criteria": long},
    }
    return make_story(sources, draw, domain_of(sources, draw.number))[0], questions


def long_instructions(sources: Sources, draw: Draw) -> Content:
    """Instructions beyond what the options leave of the head."""
    questions = {}
    for n in range(2):
        task = f"Decide for the text below. {make_passage(sources, draw, f'instructions {n}', LONG_INSTRUCTIONS)}"
        questions[f"long{n + 1}"] = _sized_question(sources, draw, _rotated_type(draw.number + n), task)
    return make_story(sources, draw, domain_of(sources, draw.number))[0], questions


def _long_story(sources: Sources, draw: Draw) -> list[str]:
    paragraphs = endless(sources, draw, "long", language_of(sources, draw.number, 3))
    return at_least(LONG_STATE, paragraphs)


def _one_question(sources: Sources, draw: Draw) -> Questions:
    return _of_type(sources, draw, domain_of(sources, draw.number), _rotated_type(draw.number))


def long_text(sources: Sources, draw: Draw) -> Content:
    return "\n\n".join(_long_story(sources, draw)), _one_question(sources, draw)


def long_object(sources: Sources, draw: Draw) -> Content:
    state = {"title": draw.pick("title", sources.slots["product"]), "chapters": _long_story(sources, draw), "end": True}
    return state, _one_question(sources, draw)


def long_turns(sources: Sources, draw: Draw) -> Content:
    """Cut from the left: the newest turns stay."""
    return as_turns(sources, draw, _long_story(sources, draw)), _one_question(sources, draw)


def window(sources: Sources, draw: Draw) -> Content:
    """About 512 tokens, the edge of the smaller models."""
    passage = make_passage(sources, draw, "window", WINDOW_STATE + 4 * (draw.number % 8))
    kind = ("paragraph", "turns", "record")[draw.number % 3]
    domain = domain_of(sources, draw.number)
    types = draw.some("types", QUESTION_TYPES, 2)
    return make_state(kind, sources, draw, [passage]), _of_type(sources, draw, domain, *types)


def structured(sources: Sources, draw: Draw) -> Content:
    """Criteria, and now and then instructions, that are no text."""
    count = 3 + draw.number % 3
    rotation = [sources.structured[(3 * draw.number + n) % len(sources.structured)] for n in range(count)]
    levels = [value for value in rotation if value is not None]
    pair = draw.some("pair", sources.structured, 2)
    ask: list[Any] = [
        "Which entry applies?",
        "Which level is reached?",
        "Does the condition hold?",
    ]
    if draw.number % 4 == 0:
        shown = sources.structured_instructions
        ask[draw.number // 4 % 3] = shown[draw.number // 4 % len(shown)]
    labels = draw.some("labels", list(sources.labels), count)
    questions: Questions = {
        "entry": {"type": "choice", "instructions": ask[0], "criteria": dict(zip(labels, rotation, strict=True))},
        "level": {"type": "score", "instructions": ask[1], "criteria": levels},
        "holds": {
            "type": "noul",
            "instructions": ask[2],
            "criteria": dict(zip(("true", "false"), pair, strict=True)),
        },
    }
    story = make_story(sources, draw, domain_of(sources, draw.number))
    return make_state(draw.pick("state", ("paragraph", "record", "turns")), sources, draw, story), questions


def _edge(sources: Sources, draw: Draw) -> tuple[str, str]:
    """The item's edge text, and an ordinary paragraph beside it."""
    text = list(sources.edge.values())[draw.number % len(sources.edge)]
    return text, make_story(sources, draw, domain_of(sources, draw.number))[0]


def edge_state(sources: Sources, draw: Draw) -> Content:
    text, _ = _edge(sources, draw)
    return text, _of_type(sources, draw, domain_of(sources, draw.number), "choice", "noul")


def edge_object(sources: Sources, draw: Draw) -> Content:
    """Edge texts as the keys and values of JSON, where some of their characters become escapes."""
    first, second, third = draw.some("texts", list(sources.edge.values()), 3)
    state: Any = {first: second, "list": [third]} if draw.number % 2 else [{"role": "user", "content": first}, second]
    return state, _of_type(sources, draw, domain_of(sources, draw.number), "score", "noul")


def edge_instructions(sources: Sources, draw: Draw) -> Content:
    text, paragraph = _edge(sources, draw)
    return paragraph, {
        question_type: _sized_question(sources, draw, question_type, text)
        for question_type in draw.some("types", QUESTION_TYPES, 2)
    }


def edge_labels(sources: Sources, draw: Draw) -> Content:
    text, paragraph = _edge(sources, draw)
    criteria: Any = {text: "the odd one", "other": None} if draw.number % 2 else [text, "plain", "other"]
    questions: Questions = {
        "label": {"type": "choice", "instructions": "Which name is right?", "criteria": criteria},
        "words": {"type": "noul", "instructions": "Is it right?", "labels": {"false": "no", "true": text}},
    }
    return paragraph, questions


def edge_descriptions(sources: Sources, draw: Draw) -> Content:
    text, paragraph = _edge(sources, draw)
    questions: Questions = {
        "choice": {"type": "choice", "instructions": "Which?", "criteria": {"first": text, "second": "plain words"}},
        "score": {"type": "score", "instructions": "How much?", "criteria": ["nothing", text]},
        "noul": {"type": "noul", "instructions": "Is it so?", "criteria": {"true": text}},
    }
    del questions[draw.pick("left out", list(questions))]
    return paragraph, questions


def scalar(sources: Sources, draw: Draw) -> Content:
    """A state that is one value: short text, a number, true or false."""
    state = sources.scalars[draw.number % len(sources.scalars)]
    return state, _of_type(sources, draw, domain_of(sources, draw.number), *draw.some("types", QUESTION_TYPES, 2))


def null_state(sources: Sources, draw: Draw) -> Content:
    """No state: the one thing here that is refused, by both sides."""
    return None, _one_question(sources, draw)


def compat(sources: Sources, draw: Draw) -> Content:
    """Every way of writing a question that is accepted."""
    story = make_story(sources, draw, domain_of(sources, draw.number + draw.number // 20))
    kind = ("paragraph", "mail", "turns")[draw.number // len(sources.compat) % 3]
    return make_state(kind, sources, draw, story), sources.compat[draw.number % len(sources.compat)]


def empty(sources: Sources, draw: Draw) -> Content:
    """Objects and lists with nothing, or next to nothing, in them."""
    state = sources.empties[draw.number % len(sources.empties)]
    return state, _of_type(sources, draw, domain_of(sources, draw.number), "choice", "score")


def unicode_keys(sources: Sources, draw: Draw) -> Content:
    """Keys of states, question ids and labels in any script."""
    keys = draw.some("keys", sources.keys, 8)
    code = draw.pick("language", other_languages(sources))
    story = make_story(sources, draw, "support", code)
    state = {keys[0]: story[0], keys[1]: {keys[2]: draw.below("value", 100), keys[3]: [keys[4], None]}}
    questions: Questions = {
        keys[5]: {"type": "choice", "instructions": "Which key?", "criteria": dict.fromkeys(keys[:4])},
        keys[6]: {"type": "choice", "instructions": "Which key?", "criteria": {keys[5]: keys[6], keys[7]: "x"}},
        keys[7]: {"type": "noul", "instructions": f"Is {keys[0]} set?"},
    }
    return state, questions


@dataclass(frozen=True)
class Kind:
    """A category of items: `make` is called with draws numbered from 0. count: items, None = one for each edge text."""

    make: Callable[[Sources, Draw], Content]
    count: int | None = None

    @property
    def category(self) -> str:
        return self.make.__name__

    def items(self, sources: Sources) -> Iterator[dict[str, Any]]:
        for number in range(len(sources.edge) if self.count is None else self.count):
            state, questions = self.make(sources, Draw(self.category, number))
            yield {
                "id": f"{self.category}_{number + 1:04d}",
                "cat": self.category,
                "state": state,
                "questions": questions,
            }


# In the order of the corpus.
KINDS = (
    Kind(workflow_text, 46),
    Kind(workflow_object, 46),
    Kind(workflow_turns, 46),
    Kind(workflow_single, 105),
    Kind(preset, 60),
    Kind(mixed, 80),
    Kind(language, 84),
    Kind(option_counts, 57),
    Kind(long_options, 24),
    Kind(many_long_options, 22),
    Kind(long_instructions, 24),
    Kind(long_text, 12),
    Kind(long_object, 12),
    Kind(long_turns, 12),
    Kind(window, 24),
    Kind(structured, 40),
    Kind(edge_state),
    Kind(edge_object, 12),
    Kind(edge_instructions),
    Kind(edge_labels),
    Kind(edge_descriptions),
    Kind(scalar, 23),
    Kind(null_state, 4),
    Kind(compat, 60),
    Kind(empty, 8),
    Kind(unicode_keys, 17),
)
