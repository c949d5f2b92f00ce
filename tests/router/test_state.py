"""router.state: the text of a state, what escaping leaves of it, and that tokenizing pieces changes no token."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_examples import CARD, CARD_TEXT, body, candidate

from layactl.core.decision_spec import ESCAPE_CONTROL, MASK_TO_SPACE
from layactl.core.tokenizer import AddedToken, Tokenizer, TokenizerData
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.reader import GgufFile
from layactl.router.state import StateReader, split_is_exact

MODES = (MASK_TO_SPACE, ESCAPE_CONTROL)
CONTROL = {
    "tiny-multilingual": {
        *("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<2mass>", "[@BOS@]", "<start_of_turn>", "<end_of_turn>"),
        *(f"<unused{n}>" for n in range(10)),
    },
    "tiny-english": {
        *("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "<|padding|>", "<|endoftext|>"),
        *(f"[unused{n}]" for n in range(10)),
    },
}


@pytest.fixture(scope="session")
def tokenizer_data(gguf_for: Callable[..., Path]) -> Callable[[str], TokenizerData]:
    return lambda name: read_model(GgufFile(gguf_for(name))).tokenizer


@pytest.fixture
def tokenizer(family: str, model_for) -> Tokenizer:
    return model_for(family).tokenizer


@pytest.fixture(scope="session")
def reader_for(model_for) -> Callable[[str, str], StateReader]:
    """(checkpoint name, special_tokens) -> a reader, which has probed its vocabulary at most once."""
    return cache(lambda name, mode: StateReader(model_for(name).tokenizer, mode))


def with_token(data: TokenizerData, content: str, control: bool = False) -> Tokenizer:
    """A tokenizer in which <unused3> or [unused3] is another added token."""
    (old,) = (token for token in data.added if token.content in ("<unused3>", "[unused3]"))
    pieces = [content if i == old.id else piece for i, piece in enumerate(data.pieces)]
    added = [AddedToken(old.id, content, control) if token is old else token for token in data.added]
    return Tokenizer(replace(data, pieces=pieces, added=added))


def with_merges_of(data: TokenizerData, text: str) -> Tokenizer:
    """A byte-level tokenizer that reads this text as one piece, put in the place of unused tokens."""
    plain = Tokenizer(data)
    whole, *rest = plain.tokens(plain.encode(text))
    spare = [token for token in data.added if token.content.startswith("[unused")]
    pieces, merges = list(data.pieces), list(data.merges)
    for token, part in zip(spare, rest, strict=False):
        merges.append(f"{whole} {part}")
        whole += part
        pieces[token.id] = whole
    added = [token for token in data.added if pieces[token.id] == token.content]
    tokenizer = Tokenizer(replace(data, pieces=pieces, merges=merges, added=added))
    assert tokenizer.tokens(tokenizer.encode(text)) == [whole]
    return tokenizer


# -- the text --------------------------------------------------------------------------------------------------------


def test_the_state_is_card_then_criterion_then_task(tokenizer: Tokenizer):
    (state,) = StateReader(tokenizer, MASK_TO_SPACE).read([CARD_TEXT], "is 4", "Sum \u4e2d\n\nnow")
    assert state.text == f"{CARD_TEXT}\n\nsuccess criterion: is 4\n\ntask: Sum \u4e2d\n\nnow"
    assert state.model_text == state.text


def test_criterion_and_task_are_read_as_they_are(tokenizer: Tokenizer):
    (state,) = StateReader(tokenizer, ESCAPE_CONTROL).read(["x"], "  two\n\n\tlines ", "\n task  ")
    assert state.text == "x\n\nsuccess criterion:   two\n\n\tlines \n\ntask: \n task  "


# -- special-token text ----------------------------------------------------------------------------------------------


def test_the_control_texts_are_those_of_the_vocabulary(family: str, tokenizer: Tokenizer):
    assert tokenizer.control_texts == CONTROL[family]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["card", "criterion", "task"])
def test_special_token_text_becomes_one_space_wherever_it_stands(place: str, mode: str, family: str, tokenizer):
    reader = StateReader(tokenizer, mode)
    for special in CONTROL[family]:
        texts = {"card": "executor: A", "criterion": "c", "task": "t"} | {place: f"a{special}b {special}"}
        (state,) = reader.read([texts["card"]], texts["criterion"], texts["task"])
        replaced = mode == ESCAPE_CONTROL or special == tokenizer.mask_text
        assert state.model_text == (state.text.replace(special, " ") if replaced else state.text)
        assert (special in state.text, special in state.model_text) == (True, not replaced)


def test_no_structural_token_comes_out_of_escaped_text(family: str, tokenizer: Tokenizer):
    everything = "".join(sorted(CONTROL[family])) + " ".join(sorted(CONTROL[family]))
    (state,) = StateReader(tokenizer, ESCAPE_CONTROL).read([f"executor: {everything}"], everything, everything)
    ids = {token for text in CONTROL[family] for token in tokenizer.encode(text)}
    assert all(len(tokenizer.encode(text)) == 1 for text in CONTROL[family])
    assert not ids & set(state.ids)


KEPT = {
    "tiny-multilingual": ["\n\n", "\t\t", "<b>", "</table>", "<unused>", "<unused10>", "<Mask>", "< mask>", "[MASK]"],
    "tiny-english": ["   ", "|||IP_ADDRESS|||", "[unused]", "[unused10]", "[mask]", "[ MASK]", "<mask>", "<|pad|>"],
}


def test_other_text_and_other_added_tokens_stay(family: str, tokenizer: Tokenizer):
    for text in KEPT[family]:
        (state,) = StateReader(tokenizer, ESCAPE_CONTROL).read(["executor: A"], text + "c", text)
        assert state.model_text == state.text


def test_overlapping_text_is_replaced_from_the_left():
    tokenizer = StateReader(_FakeTokenizer({"<eos>"}), ESCAPE_CONTROL)  # type: ignore[arg-type]
    assert [tokenizer._replaced(text) for text in ("<<eos>>", "<eo<eos>s>", "<eos><eos>", "<eos")] == [
        "< >",
        "<eo s>",
        "  ",
        "<eos",
    ]


def test_a_space_cannot_form_a_control_text_that_stays():
    reader = StateReader(_FakeTokenizer({"<a b>", "<x>"}), ESCAPE_CONTROL)  # type: ignore[arg-type]
    assert reader._replaced("<a<x>b>") == " "


def test_of_two_control_texts_that_begin_alike_the_longer_is_replaced():
    reader = StateReader(_FakeTokenizer({"<t>", "<t>x"}), ESCAPE_CONTROL)  # type: ignore[arg-type]
    assert reader._replaced("a<t>xb<t>") == "a b "


class _FakeTokenizer:
    def __init__(self, control_texts: set[str]) -> None:
        self.control_texts, self.mask_text = control_texts, "<mask>"


@given(data=st.data())
@settings(max_examples=200)
def test_escaping_equals_replacing_one_text_after_another_in_any_order(data, reader_for):
    family = data.draw(st.sampled_from(sorted(CONTROL)))
    pieces = st.sampled_from([*sorted(CONTROL[family]), "<", ">", "[", "]", "unused", "1", "<eo", " ", "a", "\n"])
    text = "".join(data.draw(st.lists(pieces, max_size=20)))
    expected = text
    for special in data.draw(st.permutations(sorted(CONTROL[family]))):
        expected = expected.replace(special, " ")
    assert reader_for(family, ESCAPE_CONTROL)._replaced(text) == expected


# -- tokens ----------------------------------------------------------------------------------------------------------

# What is odd about boundaries: every kind of space, marks, metaspace, special-token text, digits, quotes.
PIECES = (
    *("a", "Z", "42", "caf\u00e9", "e\u0301", "\u672c\u5730", "\u0418\u0442\u043e\u0433", "\U0001f600", "'s", "-", ":"),
    *(" ", "  ", "\n", "\n\n", "\r\n", "\t", "\x0b", "\x1f", "\x85", "\u00a0", "\u2028", "\u3000", "\u200b", "\u0301"),
    *(
        "\u2581",
        "\u2581\u2581",
        "<b>",
        "<mask>",
        "[MASK]",
        "<eos>",
        "[CLS]",
        "[SEP]",
        "<unused1>",
        "[unused1]",
        "<|padding|>",
    ),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
NAMES = TEXTS.map(lambda text: "".join(" " if c < " " or c == "\x7f" else c for c in text).strip(" "))


def assert_tokens_of_the_whole(reader: StateReader, tokenizer: Tokenizer, cards, criterion: str, task: str) -> None:
    head = f"\n\nsuccess criterion: {criterion}\n\ntask:"
    for card, state in zip(cards, reader.read(cards, criterion, task), strict=True):
        assert state.ids == tokenizer.encode(state.model_text)
        assert state.card_tokens == len(tokenizer.encode(reader._replaced(card)))
        assert state.fixed_tokens == len(tokenizer.encode(reader._replaced(card + head)))


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
@settings(max_examples=300)
def test_pieces_give_the_tokens_of_the_whole(mode: str, data, reader_for, model_for):
    family = data.draw(st.sampled_from(sorted(CONTROL)))
    tokenizer, reader = model_for(family).tokenizer, reader_for(family, mode)
    assert reader.state_split
    cards = [f"kind: {name}" for name in data.draw(st.lists(NAMES, min_size=1, max_size=3))]
    assert_tokens_of_the_whole(reader, tokenizer, cards, data.draw(TEXTS), data.draw(TEXTS))


@pytest.mark.parametrize("mode", MODES)
def test_every_pair_at_the_boundaries(mode: str, tokenizer: Tokenizer):
    reader = StateReader(tokenizer, mode)
    cards = [f"kind: x{end}".rstrip(" \n\t\r\x0b\x1f") for end in PIECES]
    for task in PIECES:
        assert_tokens_of_the_whole(reader, tokenizer, cards, task, task + "x")


def test_both_published_families_split(tokenizer: Tokenizer):
    started = time.perf_counter()
    assert split_is_exact(tokenizer)
    assert time.perf_counter() - started < 2.0


# An added token that lies across a boundary, so that pieces would lose it.
ACROSS = {
    "after the colon": ": ",
    "after the card": "none\n",
    "over both line ends": "e\n\ns",
    "at the task": "task: E",
}


@pytest.mark.parametrize("name", ACROSS)
def test_a_vocabulary_without_the_boundaries_is_found_out_and_read_whole(name: str, family: str, tokenizer_data):
    tokenizer = with_token(tokenizer_data(family), ACROSS[name])
    reader = StateReader(tokenizer, ESCAPE_CONTROL)
    assert not split_is_exact(tokenizer)
    assert not reader.state_split
    for task in ("Extract", "x", " "):
        assert_tokens_of_the_whole(reader, tokenizer, ["checks: none", "kind: x<eos>"], "c", task)


def test_a_control_text_across_a_boundary_is_replaced_all_the_same(family: str, tokenizer_data):
    """Then the text itself has no piece boundary left: such a state is read whole."""
    tokenizer = with_token(tokenizer_data(family), "q\n\nsuccess", control=True)
    reader = StateReader(tokenizer, ESCAPE_CONTROL)
    assert reader.state_split
    (state,) = reader.read(["kind: q"], "c", "t")
    assert state.model_text == "kind:   criterion: c\n\ntask: t"
    assert state.ids == tokenizer.encode(state.model_text)


# Ends of a card that become, or are, white space to the pre-tokenizer although card-v1 does not strip them.
SPACE_ENDS = {
    "replaced token": "x[CLS]",
    "replaced mask": "x[MASK]",
    "no-break space": "x\u00a0",
    "wide space": "x\u3000",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SPACE_ENDS)
def test_a_card_that_ends_in_space_is_read_whole(name: str, mode: str, tokenizer_data):
    """In GPT-2 words a space before line ends belongs to them, and published vocabularies hold such pieces."""
    space = SPACE_ENDS[name][1:].replace("[CLS]", " ").replace("[MASK]", " ")
    tokenizer = with_merges_of(tokenizer_data("tiny-english"), f"{space}\n")
    reader = StateReader(tokenizer, mode)
    assert reader.state_split
    assert_tokens_of_the_whole(reader, tokenizer, [f"kind: {SPACE_ENDS[name]}", "kind: x"], "c", "t")


def test_criterion_and_task_are_tokenized_once_a_request(family: str, router_with, monkeypatch: pytest.MonkeyPatch):
    router = router_with(family, router={"max_card_tokens": 0})
    reader, read = router._states, []
    assert reader.state_split
    encode = reader._tokenizer.encode
    monkeypatch.setattr(reader._tokenizer, "encode", lambda text: read.append(text) or encode(text))
    request = router.parse(
        body(*(candidate(f"c{i}", CARD) for i in range(5)), task="The task", criterion="The criterion")
    )
    reader.read([c.card.text for c in request.candidates], request.criterion, request.task)
    assert [sum(part in text for text in read) for part in ("The task", "The criterion", "executor:")] == [1, 1, 5]


def test_the_mode_of_a_router_is_the_specs(family: str, router_with):
    special = sorted(CONTROL[family] - {"<mask>", "[MASK]"})[0]
    for mode, (place, contract) in itertools.product(MODES, enumerate(("laya-v1", "laya-router-v1"))):
        if place and mode == MASK_TO_SPACE:
            continue
        router = router_with(family, special_tokens=mode, input_contract=contract)
        rendered = router.render(router.parse(body(task=f"a{special}b")))
        assert rendered["special_tokens"] == mode
        assert rendered["items"][0]["model_text"].endswith("a b" if mode == ESCAPE_CONTROL else f"a{special}b")
