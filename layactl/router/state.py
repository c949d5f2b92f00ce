"""Card, criterion and task -> the state of one candidate, as text and as tokens.

The task comes last, so that a cut, which drops the end, costs the task only. All candidates of a request share the
tokens of criterion and task where the vocabulary allows it (specification, "Tokenization matches the HF tokenizer").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from layactl.core.decision_spec import ESCAPE_CONTROL
from layactl.core.tokenizer import Tokenizer

# What the two boundaries of a state are probed with: card endings, criteria and task starts of every kind.
_CARD_ENDS = (
    "checks: none",
    "kind: local",
    "kind: 42",
    "kind: caf\u00e9",
    "kind: cafe\u0301",
    "kind: \u672c\u5730",
    "kind: \u0438\u0442\u043e\u0433",
    "kind: \u05e9\u05dc\u05d5\u05dd",
    "description: 4B model (Q4_K_M)",
    "kind: api.",
    "kind: a-",
    "kind: a:",
    "kind: it's",
    "kind: x\u2581",
    "kind: \U0001f600",
    "kind: x\u200b",
    "kind: <b>",
    "- extraction: passed 188 of 200; criterion: exact match; source: evals/extract 2026-09",
)
_CRITERIA = ("All three fields exact; nothing invented.", "x", "\u6b63\u786e", " padded ", "two\nlines\n", "\u0301")
_TASKS = (
    "",
    "x",
    "Extract invoice number, date and total",
    " one space first",
    "   spaces first",
    "\nnewline first",
    "\n\nnewlines first",
    "\ttab first",
    "\r\nline end first",
    "42 items",
    "\u63d0\u53d6\u53d1\u7968",
    "\u0418\u0442\u043e\u0433",
    "!?",
    "'s",
    "caf\u00e9",
    "\u0301mark first",
    "\u2581metaspace first",
    "\u3000wide space first",
    "\u0085next line first",
    "\u200bzero width first",
    "\U0001f600 smile",
    "<b>bold</b>",
    "https://example.org/a?b=c",
    '{"a": [1]}',
)


@dataclass(frozen=True)
class CandidateState:
    """One candidate's state.

    text: as it was put together; model_text: what the tokenizer reads, special-token text replaced; ids: its tokens;
    card_tokens: of the card alone; fixed_tokens: of all before the task, which no cut may touch.
    """

    text: str
    model_text: str
    ids: list[int]
    card_tokens: int
    fixed_tokens: int


class StateReader:
    """Puts states together and tokenizes them for one model.

    special_tokens: "mask-to-space" replaces the mask literal only, "escape-control" the text of every control token.
    """

    def __init__(self, tokenizer: Tokenizer, special_tokens: str) -> None:
        self._tokenizer = tokenizer
        texts = tokenizer.control_texts if special_tokens == ESCAPE_CONTROL else {tokenizer.mask_text}
        self._special = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))

    @cached_property
    def state_split(self) -> bool:
        """Whether pieces are tokenized separately. Probed once, on first use."""
        return split_is_exact(self._tokenizer)

    def read(self, cards: Sequence[str], criterion: str, task: str) -> list[CandidateState]:
        """The states of a request's candidates. cards: card-v1 texts."""
        head, tail = _head(criterion), _tail(task)
        model_head, model_tail = self._replaced(head), self._replaced(tail)
        head_ids, tail_ids = self._tokenizer.encode(model_head), self._tokenizer.encode(model_tail)
        states = []
        for card in cards:
            text = card + head + tail
            model_card, model_text = self._replaced(card), self._replaced(text)
            card_ids = self._tokenizer.encode(model_card)
            # What was probed: a card that ends in text. Replaced special text, or a space that card-v1 does not count
            # as one, at its end would join the line ends that follow.
            ends_in_text = not model_card[-1:].isspace()
            if self.state_split and ends_in_text and model_text == model_card + model_head + model_tail:
                fixed_tokens = len(card_ids) + len(head_ids)
                ids = card_ids + head_ids + tail_ids
            else:
                fixed_tokens = len(self._tokenizer.encode(self._replaced(card + head)))
                ids = self._tokenizer.encode(model_text)
            states.append(CandidateState(text, model_text, ids, len(card_ids), fixed_tokens))
        return states

    def _replaced(self, text: str) -> str:
        """`text` with one space for every special-token text, so that user text cannot place structure."""
        # Again until nothing changes: in a vocabulary with control tokens that hold spaces one could form another.
        while (replaced := self._special.sub(" ", text)) != text:
            text = replaced
        return text


def state_text(card: str, criterion: str, task: str) -> str:
    """The state of one candidate as text. card: card-v1."""
    return card + _head(criterion) + _tail(task)


def split_is_exact(tokenizer: Tokenizer) -> bool:
    """Whether the three pieces of a state, tokenized one by one, give the tokens of the whole.

    So it is where both boundaries are token boundaries of the vocabulary: a line end after text, a space after a colon.
    """
    encode = tokenizer.encode
    texts = sorted(tokenizer.control_texts)
    special = [*texts[:: max(1, len(texts) // 5)], tokenizer.mask_text]
    card_ends = (*_CARD_ENDS, *(f"kind: x{text}" for text in special))
    tasks = (*_TASKS, *special, *(f"{text} after" for text in special))
    for criterion in _CRITERIA:
        head = _head(criterion)
        fixed, fixed_ids = _CARD_ENDS[0] + head, encode(_CARD_ENDS[0] + head)
        if any(encode(card + head) != encode(card) + encode(head) for card in card_ends):
            return False
        if any(encode(fixed + _tail(task)) != fixed_ids + encode(_tail(task)) for task in tasks):
            return False
    return True


def _head(criterion: str) -> str:
    return f"\n\nsuccess criterion: {criterion}\n\ntask:"


def _tail(task: str) -> str:
    return f" {task}"
