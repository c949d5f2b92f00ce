"""Texts that two tokenizers must read alike, chosen for where tokenizers differ.

Every script the published vocabularies cover, combining marks, emoji sequences, control and format characters, line
ends of every kind, space runs, long words, and the text of special tokens in the middle of words.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

import tokenizers

from layactl.core.tokenizer import Tokenizer

_CHUNK = 256

_RANGES = (
    (0x20, 0x7E),  # ASCII
    (0xA0, 0x24F),  # Latin supplements
    (0x300, 0x36F),  # combining marks
    (0x370, 0x3FF),  # Greek
    (0x400, 0x4FF),  # Cyrillic
    (0x590, 0x5FF),  # Hebrew
    (0x600, 0x6FF),  # Arabic
    (0x900, 0x97F),  # Devanagari
    (0xE00, 0xE7F),  # Thai
    (0x1100, 0x11FF),  # Hangul jamo
    (0x1E00, 0x1EFF),  # Latin with marks (NFC targets)
    (0x2000, 0x206F),  # spaces, joiners, U+2028, U+2029
    (0x2070, 0x21FF),
    (0x2580, 0x259F),  # block elements around U+2581
    (0x3040, 0x30FF),  # kana
    (0x4E00, 0x4FFF),  # CJK
    (0xAC00, 0xACFF),  # Hangul syllables
    (0xF900, 0xFAFF),  # CJK compatibility (NFC changes them)
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFF00, 0xFFEF),  # full-width forms
    (0x1F300, 0x1F6FF),  # emoji
    (0x1D400, 0x1D4FF),  # mathematical letters
    (0xE0000, 0xE007F),  # tags
    (0x00, 0x1F),  # controls
    (0x80, 0x9F),
)
_FIXED = (
    "",
    " ",
    "\n",
    "\r\n",
    "a\r\nb\rc\nd",
    "line\u2028separator\u2029paragraph\u0085next",
    "cafe\u0301 is here, caf\u00e9 too",
    "\u0301leading mark",
    "e\u0323\u0302 \u1ec7 n\u0303",
    "\u1100\u1161\u11a8 \uac01",
    "\u212b \u00c5 \u2126 \u03a9",
    "I'll we've DON'T it's 'tis y'all'd",
    "tabs\t\tand   runs    of     spaces ",
    "  leading and trailing  ",
    "\u2581 literal \u2581\u2581 metaspace \u2581",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f \U0001f44d\U0001f3fd",
    "1234567.89 -0.5e-10 0x1F 1,000,000 \u0663\u0664 \u00bd\u2463",
    '{"a": [1, 2.5, null], "b": "x\\u00e9"}',
    "https://example.org/a?b=c&d=%20#frag user@example.org",
    "\ufeffbyte order mark \ufffd \ufffe \uffff \U0010ffff",
    "\x00null\x00 \x07bell \x1b[0m esc \x7f",
    "x" * 5000,
    "\u4f60\u597d" * 1500,
    "aGVsbG8gd29ybGQ" * 200,
)


def probe_texts(count: int, special_texts: Sequence[str], seed: int = 20260930) -> Iterator[str]:
    """`count` texts, the same for the same arguments; special_texts: token texts to place among the words."""
    yield from itertools.islice(_all_texts(special_texts, random.Random(seed)), count)


def _all_texts(special_texts: Sequence[str], rng: random.Random) -> Iterator[str]:
    yield from _FIXED
    for special in special_texts:
        yield special
        yield f"a{special}b {special} c"
    while True:
        yield _random_text(rng, special_texts)


def _random_text(rng: random.Random, special_texts: Sequence[str]) -> str:
    parts: list[str] = []
    home = rng.sample(_RANGES, k=rng.randint(1, 3))
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.12 and special_texts:
            parts.append(rng.choice(special_texts))
        elif kind < 0.22:
            parts.append(rng.choice(("\n", "\r\n", "\t", "  ", "   ", "\n\n\n", "\u2028", "\u00a0", "'s", "\u0301")))
        elif kind < 0.27:
            parts.append(str(rng.randint(0, 10**9)))
        else:
            low, high = rng.choice(home) if kind < 0.9 else rng.choice(_RANGES)
            word = "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 9)))
            parts.append(rng.choice(("", " ")) + word)
    return "".join(parts)


def piece_texts(original: tokenizers.Tokenizer, limit: int) -> Iterator[str]:
    """The text of each piece on its own, which takes every merge that makes it; evenly chosen beyond `limit` pieces."""
    size = original.get_vocab_size(with_added_tokens=True)
    for token_id in range(0, size, max(1, -(-size // limit))):
        yield original.decode([token_id], skip_special_tokens=False)


def differences(original: tokenizers.Tokenizer, rebuilt: Tokenizer, texts: Iterable[str]) -> Iterator[str]:
    """The texts that the two read differently."""
    iterator = iter(texts)
    while chunk := list(itertools.islice(iterator, _CHUNK)):
        expected = original.encode_batch(chunk, add_special_tokens=False)
        for text, encoding in zip(chunk, expected, strict=True):
            if rebuilt.encode(text) != encoding.ids:
                yield text
