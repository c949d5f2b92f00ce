"""tokenizer/tokenizer.json and tokenizer_config.json -> tokenizer data of one of the two families.

Everything that shapes token ids is compared with what the families do; a setting outside them is refused by name, so
that a rebuilt tokenizer can only be right or absent.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from layactl.core.json_fields import JsonObject
from layactl.core.tokenizer import (
    BYTELEVEL_BPE,
    EMBEDDED,
    METASPACE,
    METASPACE_BPE,
    AddedToken,
    SpecialIds,
    TokenizerData,
    from_huggingface_json,
    merge_outside,
)
from layactl.errors import CheckpointError

_METASPACE_NORMALIZER = {"type": "Replace", "pattern": {"String": " "}, "content": METASPACE}
_METASPACE_PRE = {"type": "Metaspace", "replacement": METASPACE, "prepend_scheme": "always", "split": True}
_BYTELEVEL_PRE = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_MODEL_SETTINGS: dict[str, dict[str, Any]] = {
    METASPACE_BPE: {"byte_fallback": True, "fuse_unk": True},
    BYTELEVEL_BPE: {"byte_fallback": False, "fuse_unk": False, "unk_token": None},
}
_MODEL_DEFAULTS: dict[str, Any] = {
    "dropout": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "ignore_merges": False,
}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

# Added tokens that the converters of the field mark as control although tokenizer.json does not call them special
# (convert_hf_to_gguf.py, does_token_look_special).
_CONTROL_LOOKING = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")


def read_tokenizer(
    tokenizer: JsonObject, config: JsonObject, vocab_size: int, *, embed: str | None = None
) -> TokenizerData:
    """Tokenizer data with ids up to vocab_size (fillers are None).

    embed: the text of tokenizer.json to carry whole; any setting is then allowed.
    Raises CheckpointError naming the setting.
    """
    specials = _special_names(config)
    added = _added_tokens(tokenizer, config, set(specials.values()) | _extra_specials(config), strict=embed is None)
    if embed is None:
        model = tokenizer.object("model")
        family = _family(tokenizer)
        _check_spaces(tokenizer, added, family)
        _check_model(model, family)
        vocab, merges = model.object("vocab").values, _merges(model)
        if (bad := merge_outside(vocab, merges)) is not None:
            raise model.error(f"merges[{merges.index(bad)}]", "makes a piece outside the vocabulary")
    else:
        family, merges = EMBEDDED, []
        try:
            vocab = from_huggingface_json(embed).get_vocab(with_added_tokens=True)
        except ValueError as error:
            raise CheckpointError(f"the tokenizer cannot be built: {error}", where=tokenizer.where) from None
    pieces = _pieces(tokenizer, vocab, added, vocab_size)
    ids = {piece: i for i, piece in enumerate(pieces) if piece is not None}

    def special_id(kind: str, required: bool) -> int | None:
        name = specials.get(kind)
        if name is None:
            if required:
                raise config.error(kind, "is missing")
            return None
        return ids[name]

    cls, sep, mask = (special_id(kind, True) for kind in ("cls_token", "sep_token", "mask_token"))
    assert cls is not None and sep is not None and mask is not None
    return TokenizerData(
        family=family,
        pieces=pieces,
        merges=merges,
        added=added,
        special=SpecialIds(cls, sep, mask, special_id("pad_token", False), special_id("unk_token", False)),
        normalizer="nfc" if tokenizer.get("normalizer") == {"type": "NFC"} else "none",
        huggingface_json=embed,
    )


def _family(tokenizer: JsonObject) -> str:
    normalizer, pre = tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")
    if isinstance(pre, dict) and pre.get("type") == "ByteLevel":
        if {key: pre.get(key, default) for key, default in _BYTELEVEL_PRE.items()} != _BYTELEVEL_PRE:
            raise tokenizer.error("pre_tokenizer", "has ByteLevel settings outside the bytelevel-bpe family")
        if normalizer not in (None, {"type": "NFC"}):
            raise tokenizer.error("normalizer", "is neither NFC nor absent, as bytelevel-bpe has it")
        return BYTELEVEL_BPE
    if pre != _METASPACE_PRE:
        raise tokenizer.error("pre_tokenizer", "is neither the Metaspace nor the ByteLevel step of the known families")
    if normalizer != _METASPACE_NORMALIZER:
        raise tokenizer.error("normalizer", "is not Replace(' ' -> U+2581), as metaspace-bpe has it")
    return METASPACE_BPE


def _check_model(model: JsonObject, family: str) -> None:
    if model.get("type") != "BPE":
        raise model.error("type", f"is {model.get('type')!r:.40}; only BPE is understood")
    for key, wanted in (_MODEL_DEFAULTS | _MODEL_SETTINGS[family]).items():
        found = model.values.get(key, _MODEL_DEFAULTS.get(key))
        # An empty affix is how some files spell "none".
        if found != wanted and not (wanted is None and found == ""):
            raise model.error(key, f"is {found!r:.40}, not {wanted!r} as {family} has it")
    if family == METASPACE_BPE:
        model.text("unk_token")


def _special_names(config: JsonObject) -> dict[str, str]:
    """{"mask_token": "<mask>", ...}: each name is a string or an AddedToken object."""
    names = {}
    for kind in ("bos_token", "eos_token", "cls_token", "sep_token", "mask_token", "pad_token", "unk_token"):
        if config.get(kind) is not None:
            names[kind] = _content(config, kind, config.get(kind))
    return names


def _extra_specials(config: JsonObject) -> set[str]:
    """extra_special_tokens as a list or a mapping (both are published), and additional_special_tokens."""
    found: set[str] = set()
    for key in ("extra_special_tokens", "additional_special_tokens"):
        value = config.get(key)
        if isinstance(value, dict):
            value = list(value.values())
        if value is None:
            continue
        if not isinstance(value, list):
            raise config.error(key, "must be a list or an object")
        found |= {_content(config, key, item) for item in value}
    return found


def _content(config: JsonObject, key: str, value: Any) -> str:
    content = value.get("content") if isinstance(value, dict) else value
    if not isinstance(content, str) or not content:
        raise config.error(key, "must name a token")
    return content


def _added_tokens(tokenizer: JsonObject, config: JsonObject, specials: set[str], strict: bool) -> list[AddedToken]:
    added: list[AddedToken] = []
    entries: dict[str, dict[str, Any]] = {}
    for n, value in enumerate(tokenizer.items("added_tokens")):
        field = f"added_tokens[{n}]"
        if not isinstance(value, dict):
            raise tokenizer.error(field, "must be an object")
        entry = tokenizer.inside(value, field)
        content = entry.text("content")
        for flag in _FLAGS:
            if not isinstance(entry.get(flag), bool):
                raise entry.error(flag, "must be true or false")
        for flag in ("rstrip", "single_word"):
            if strict and entry.get(flag):
                raise entry.error(flag, f"is set on {content!r:.40}, which is outside the known families")
        if content in entries:
            raise entry.error("content", f"{content!r:.40} is there twice")
        entries[content] = value
        control = content in specials or entry.get("special") or _looks_like_control(content)
        added.append(
            AddedToken(
                id=entry.integer("id"),
                content=content,
                control=bool(control),
                lstrip=bool(entry.get("lstrip")),
                normalized=bool(entry.get("normalized")),
            )
        )
    for name in sorted(specials - set(entries)):
        raise CheckpointError(f"special token {name!r:.40} is not an added token of tokenizer.json", where=config.where)
    _check_added_decoder(config, entries)
    return added


def _check_spaces(tokenizer: JsonObject, added: list[AddedToken], family: str) -> None:
    """A GGUF spells U+2581 in user-defined pieces of metaspace-bpe as a space, so a real space would not come back."""
    for n, token in enumerate(added):
        if family == METASPACE_BPE and not token.control and " " in token.content:
            raise tokenizer.error(
                f"added_tokens[{n}].content", f"{token.content!r:.40} holds a space, which is outside {family}"
            )


def _check_added_decoder(config: JsonObject, entries: dict[str, dict[str, Any]]) -> None:
    """added_tokens_decoder and AddedToken objects override tokenizer.json in transformers, so they must restate it."""
    overrides: list[tuple[str, Any]] = list(config.object("added_tokens_decoder", {}).values.items())
    for kind in ("bos_token", "eos_token", "cls_token", "sep_token", "mask_token", "pad_token", "unk_token"):
        if isinstance(config.get(kind), dict):
            overrides.append((kind, config.get(kind)))
    for key, value in overrides:
        if not isinstance(value, dict):
            raise config.error(f"added_tokens_decoder.{key}", "must be an object")
        content = _content(config, key, value)
        entry = entries.get(content)
        if entry is None or (key.isdecimal() and key != str(entry["id"])):
            raise config.error(key, f"adds {content!r:.40}, which tokenizer.json does not have under this id")
        for flag in ("single_word", "lstrip", "rstrip", "normalized"):
            if flag in value and value[flag] != entry[flag]:
                raise config.error(key, f"gives {content!r:.40} another {flag} than tokenizer.json")


def _looks_like_control(content: str) -> bool:
    return (
        content in _CONTROL_LOOKING
        or (content.startswith("<|") and content.endswith("|>"))
        or (content.startswith("<unused") and content.endswith(">"))
    )


def _pieces(tokenizer: JsonObject, vocab: dict[str, Any], added: list[AddedToken], vocab_size: int) -> list[str | None]:
    pieces: list[str | None] = [None] * vocab_size
    entries: list[tuple[str, Any]] = [*vocab.items(), *((token.content, token.id) for token in added)]
    for piece, token_id in entries:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise tokenizer.error(
                "vocab", f"gives {piece!r:.40} the id {token_id!r:.20}, outside vocab_size {vocab_size}"
            )
        if pieces[token_id] not in (None, piece):
            raise tokenizer.error("vocab", f"gives {piece!r:.40} the id {token_id} of {pieces[token_id]!r:.40}")
        pieces[token_id] = piece
    return pieces


def _merges(model: JsonObject) -> list[str]:
    """Merges as "left right"; a file writes each as that string or as a pair.

    There may be 580,000 of them, so they are checked as a whole and one by one only to name a bad one.
    """
    items = model.items("merges")
    if not items:
        raise model.error("merges", "is empty")
    pairs = [item.split(" ") if isinstance(item, str) else item for item in items]
    if set(map(type, pairs)) != {list} or set(map(len, pairs)) != {2} or not _all_pieces(pairs):
        bad = next(n for n, pair in enumerate(pairs) if not _is_pair(pair))
        raise model.error(f"merges[{bad}]", f"is not a pair of pieces: {items[bad]!r:.60}")
    merges = list(map(" ".join, pairs))
    if "".join(merges).count(" ") != len(merges):
        bad = next(n for n, merge in enumerate(merges) if merge.count(" ") != 1)
        raise model.error(f"merges[{bad}]", f"has a piece with a space in it: {items[bad]!r:.60}")
    return merges


def _all_pieces(pairs: list[list[Any]]) -> bool:
    return set(map(type, chain.from_iterable(pairs))) == {str} and all(map(all, pairs))


def _is_pair(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and type(value[0]) is type(value[1]) is str and "" not in value
