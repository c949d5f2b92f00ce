"""core.tokenizer: data that makes no tokenizer is refused, whatever file it came from."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from layactl.core.tokenizer import (
    BYTELEVEL_BPE,
    METASPACE_BPE,
    AddedToken,
    SpecialIds,
    Tokenizer,
    TokenizerData,
    from_huggingface_json,
)

# Byte-level: "\u0120" is a space. Ids 0-2 are the structural tokens.
BYTELEVEL = TokenizerData(
    family=BYTELEVEL_BPE,
    pieces=["[CLS]", "[SEP]", "[MASK]", "a", "b", "\u0120", "ab", "\u0120ab", None],
    merges=["a b", "\u0120 ab"],
    added=[
        AddedToken(0, "[CLS]", control=True),
        AddedToken(1, "[SEP]", control=True),
        AddedToken(2, "[MASK]", control=True, lstrip=True),
    ],
    special=SpecialIds(cls=0, sep=1, mask=2),
)
METASPACE = TokenizerData(
    family=METASPACE_BPE,
    pieces=["<bos>", "<eos>", "<mask>", "<unk>", "\u2581", "a", "\u2581a", "\n\n", "<0xC3>", "<0xA9>"],
    merges=["\u2581 a"],
    added=[
        AddedToken(0, "<bos>", control=True),
        AddedToken(1, "<eos>", control=True),
        AddedToken(2, "<mask>", control=True),
        AddedToken(3, "<unk>", control=True),
        AddedToken(7, "\n\n", control=False),
    ],
    special=SpecialIds(cls=0, sep=1, mask=2, unk=3),
)
EMBEDDED = json.dumps(
    {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[CLS]",
        },
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"[CLS]": 0, "[SEP]": 1, "[MASK]": 2, "a": 3}, "unk_token": "[CLS]"},
    }
)

TEXTS = {
    "merges": (BYTELEVEL, "ab ab", [6, 7]),
    "special text in the middle": (BYTELEVEL, "a[SEP]b", [3, 1, 4]),
    "a token with lstrip takes the spaces before it": (BYTELEVEL, "a [MASK]b", [3, 2, 4]),
    "no special tokens are added": (BYTELEVEL, "", []),
    "metaspace before every word": (METASPACE, "a a", [6, 6]),
    "metaspace after an added token too": (METASPACE, "a\n\na", [6, 7, 6]),
    "byte fallback": (METASPACE, "\u00e9", [4, 8, 9]),
    "unknown without its byte": (METASPACE, "\u00ff", [4, 3]),
    "embedded": (replace(BYTELEVEL, huggingface_json=EMBEDDED), "A [MASK] a", [3, 0, 3]),
}


@pytest.mark.parametrize("name", TEXTS)
def test_ids(name: str):
    data, text, ids = TEXTS[name]
    tokenizer = Tokenizer(data)
    assert tokenizer.encode(text) == ids
    assert all(tokenizer.tokens(ids))


def test_special_ids_and_the_text_of_the_mask():
    tokenizer = Tokenizer(METASPACE)
    assert (tokenizer.special, tokenizer.mask_text) == (SpecialIds(0, 1, 2, None, 3), "<mask>")


def test_an_id_without_a_piece_is_shown_by_its_number():
    assert Tokenizer(BYTELEVEL).tokens([3, 8]) == ["a", "[8]"]


def with_piece(data: TokenizerData, token_id: int, piece: str | None) -> TokenizerData:
    pieces = list(data.pieces)
    pieces[token_id] = piece
    return replace(data, pieces=pieces)


DAMAGED = {
    "the mask id has no text": (replace(BYTELEVEL, special=SpecialIds(0, 1, mask=8)), "mask id 8"),
    "two ids with one piece": (with_piece(BYTELEVEL, 8, "ab"), "two ids share one piece"),
    "a merge of one piece": (replace(BYTELEVEL, merges=["ab"]), "not a merge of two pieces: 'ab'"),
    "a merge of three pieces": (replace(BYTELEVEL, merges=["a b \u0120"]), "not a merge of two pieces"),
    "a merge without a left side": (replace(BYTELEVEL, merges=[" b"]), "not a merge of two pieces"),
    "a merge without a right side": (replace(BYTELEVEL, merges=["a "]), "not a merge of two pieces"),
    "an empty merge": (replace(BYTELEVEL, merges=[""]), "not a merge of two pieces"),
    "a merge of an unknown piece": (replace(BYTELEVEL, merges=["a z"]), "z"),
    "a merge into an unknown piece": (replace(BYTELEVEL, merges=["b a"]), "'b a' makes a piece outside"),
    "a merge that the library panics on": (
        replace(with_piece(BYTELEVEL, 6, "\u00e9"), merges=["\u00e9 b"]),
        "'\u00e9 b' makes a piece outside the vocabulary",
    ),
    "an added token under another id": (
        replace(BYTELEVEL, added=[AddedToken(3, "[SEP]", control=True)]),
        "'[SEP]' does not keep its id 3",
    ),
    "an added token that is no piece": (
        replace(BYTELEVEL, added=[AddedToken(3, "new", control=False)]),
        "'new' does not keep its id 3",
    ),
    "an embedded file that is no tokenizer": (replace(BYTELEVEL, huggingface_json='{"a": 1}'), ""),
    "an embedded file that is no JSON": (replace(BYTELEVEL, huggingface_json="{"), ""),
    "an embedded tokenizer with ids beyond the vocabulary": (
        replace(BYTELEVEL, pieces=BYTELEVEL.pieces[:3], huggingface_json=EMBEDDED),
        "id 3",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_data_is_a_value_error(name: str):
    data, fragment = DAMAGED[name]
    with pytest.raises(ValueError) as error:
        Tokenizer(data)
    assert fragment in str(error.value)


def test_an_embedded_tokenizer_neither_pads_nor_truncates():
    assert from_huggingface_json(EMBEDDED).encode("a a a").ids == [3, 3, 3]


PANICKING = {
    "added_tokens": [],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "\u00e9": 2}, "merges": [["\u00e9", "b"]]},
}


def test_a_panic_of_the_library_is_a_value_error(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(ValueError, match="out of range"):
        from_huggingface_json(json.dumps(PANICKING))
    capfd.readouterr()  # the library's own report of it
