"""Text -> token ids, from the tokenizer data a GGUF carries.

The two families of the specification ("Scheduling and determinism", tokenizer table) are rebuilt as Hugging Face
`tokenizers` pipelines, so normalization, pre-tokenization and merging are that library's own code and its own Unicode
tables; only the data is ours.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

METASPACE_BPE = "metaspace-bpe"
BYTELEVEL_BPE = "bytelevel-bpe"
# Neither family: the file carries tokenizer.json whole. Another engine that reads this name refuses the file, where a
# family's name would have it build the wrong tokenizer.
EMBEDDED = "huggingface-json"
METASPACE = "\u2581"

_UNUSED_TOKEN = re.compile(r"<unused[0-9]+>|\[unused[0-9]+\]")


@dataclass(frozen=True)
class AddedToken:
    """A token matched in the text before BPE runs.

    control: a structural token (`<mask>`, `[CLS]`) as opposed to a user-defined piece (newline runs);
    normalized: matched after the normalizer instead of on the raw text; lstrip: also takes the spaces before it.
    """

    id: int
    content: str
    control: bool
    lstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the structural tokens; pad and unk may be absent from a file."""

    cls: int
    sep: int
    mask: int
    pad: int | None = None
    unk: int | None = None


@dataclass(frozen=True)
class TokenizerData:
    """What a tokenizer is made of.

    pieces: id -> piece, None where the id is a filler that no text produces; merges: "left right", by rank;
    normalizer: "nfc" or "none" (bytelevel-bpe only); huggingface_json: the whole tokenizer.json of an embedded one,
    used instead of a rebuilt pipeline.
    """

    family: str
    pieces: Sequence[str | None]
    merges: Sequence[str]
    added: Sequence[AddedToken]
    special: SpecialIds
    normalizer: str = "none"
    huggingface_json: str | None = None


class Tokenizer:
    """Encodes text without adding special tokens; safe to share between threads.

    mask_text: the text that would place a marker; control_texts: the texts of all control tokens, of the added tokens
    named <unusedN> or [unusedN], and the mask's: what user text must not hold where escape-control is in force.
    """

    def __init__(self, data: TokenizerData) -> None:
        """Raises ValueError when the data does not make a tokenizer."""
        self.special = data.special
        mask = data.pieces[data.special.mask]
        if not mask:
            raise ValueError(f"the mask id {data.special.mask} has no text")
        self.mask_text: str = mask
        self.control_texts = frozenset(
            {mask}
            | {
                token.content
                for token in data.added
                if token.content and (token.control or _UNUSED_TOKEN.fullmatch(token.content))
            }
        )
        if data.huggingface_json is not None:
            self._pipeline = from_huggingface_json(data.huggingface_json)
            highest = max(self._pipeline.get_vocab(with_added_tokens=True).values(), default=0)
            if highest >= len(data.pieces):
                raise ValueError(f"it gives id {highest}, outside the vocabulary of {len(data.pieces)}")
        else:
            self._pipeline = _rebuild(data)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, special-token text included (`tokenizer(text, add_special_tokens=False)`)."""
        ids: list[int] = self._pipeline.encode(text, add_special_tokens=False).ids
        return ids

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The pieces behind ids, as the vocabulary spells them."""
        return [self._pipeline.id_to_token(i) or f"[{i}]" for i in ids]


def from_huggingface_json(text: bytes | str) -> tokenizers.Tokenizer:
    """A tokenizer.json as the reference uses it: never padding, never truncating on its own.

    text: better its bytes, since as a str the 34 MB of a large vocabulary take up to four times that.
    Raises ValueError with the library's reason.
    """
    data = text.encode("utf-8") if isinstance(text, str) else text
    with _library_errors():
        pipeline = tokenizers.Tokenizer.from_buffer(data)
    pipeline.no_padding()
    pipeline.no_truncation()
    return pipeline


def _rebuild(data: TokenizerData) -> tokenizers.Tokenizer:
    vocab = {piece: i for i, piece in enumerate(data.pieces) if piece is not None}
    if len(vocab) != sum(piece is not None for piece in data.pieces):
        raise ValueError("two ids share one piece")
    merges = [_split_merge(merge) for merge in data.merges]
    if (bad := merge_outside(vocab, data.merges)) is not None:
        raise ValueError(f"the merge {bad!r:.80} makes a piece outside the vocabulary")
    metaspace = data.family == METASPACE_BPE
    unk = data.pieces[data.special.unk] if metaspace and data.special.unk is not None else None
    with _library_errors():
        model = models.BPE(vocab, merges, byte_fallback=metaspace, fuse_unk=metaspace, unk_token=unk)
    pipeline = tokenizers.Tokenizer(model)
    if metaspace:
        pipeline.normalizer = normalizers.Replace(" ", METASPACE)
        pipeline.pre_tokenizer = pre_tokenizers.Metaspace(METASPACE, prepend_scheme="always", split=True)
    else:
        if data.normalizer == "nfc":
            pipeline.normalizer = normalizers.NFC()
        pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    pipeline.add_tokens(
        [
            tokenizers.AddedToken(token.content, lstrip=token.lstrip, normalized=token.normalized, special=False)
            for token in data.added
        ]
    )
    for token in data.added:
        if pipeline.token_to_id(token.content) != token.id:
            raise ValueError(f"added token {token.content!r} does not keep its id {token.id}")
    return pipeline


def merge_outside(vocab: Container[str], merges: Sequence[str]) -> str | None:
    """The first merge whose result is not a piece. The library panics on some of them, and says so on stderr."""
    return next((merge for merge in merges if merge.replace(" ", "", 1) not in vocab), None)


@contextmanager
def _library_errors() -> Iterator[None]:
    """What the library raises for bad data (bare Exception, and a panic that is none) as ValueError."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{error!s:.200}") from error


def _split_merge(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space or not left or not right or " " in right:
        raise ValueError(f"not a merge of two pieces: {merge[:80]!r}")
    return left, right
