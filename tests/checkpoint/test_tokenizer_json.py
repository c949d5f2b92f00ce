"""checkpoint.tokenizer_files and refusals: a tokenizer outside the two families is refused, never approximated."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_edit import AGENT, ENCODER, TOKENIZER, TOKENIZER_CONFIG, edit_json, set_fields

from layactl.checkpoint.folder import read_checkpoint
from layactl.convert.convert import prove_tokenizer
from layactl.core.tokenizer import METASPACE
from layactl.errors import CheckpointError

ENGLISH, MULTILINGUAL = "tiny-english", "tiny-multilingual"
Change = Callable[[dict[str, Any]], object]


def put(path: str, value: Any) -> Change:
    """Set the field at a dotted path; a number is a list index."""

    def change(node: Any) -> None:
        *parents, last = (int(key) if key.isdecimal() else key for key in path.split("."))
        for key in parents:
            node = node[key]
        node[last] = value

    return change


def drop(path: str) -> Change:
    def change(node: Any) -> None:
        *parents, last = (int(key) if key.isdecimal() else key for key in path.split("."))
        for key in parents:
            node = node[key]
        del node[last]

    return change


def token(content: str, token_id: int, **flags: bool) -> dict[str, Any]:
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": token_id, "content": content} | off | flags


def add_token(content: str, token_id: int, **flags: bool) -> Change:
    return lambda tokenizer: tokenizer["added_tokens"].append(token(content, token_id, **flags))


def without_token(content: str) -> Change:
    return lambda t: t.update(added_tokens=[entry for entry in t["added_tokens"] if entry["content"] != content])


def decoder(key: str, value: Any) -> Change:
    """An entry of added_tokens_decoder in tokenizer_config.json."""
    return lambda config: config["added_tokens_decoder"].update({key: value})


# (family, change of tokenizer.json, what the refusal names)
TOKENIZERS: dict[str, tuple[str, Change, str]] = {
    # pipeline
    "NFKC": (ENGLISH, put("normalizer", {"type": "NFKC"}), "normalizer is neither NFC nor absent"),
    "a sequence of normalizers": (
        ENGLISH,
        put("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}]}),
        "normalizer is neither NFC nor absent",
    ),
    "a prefix space": (ENGLISH, put("pre_tokenizer.add_prefix_space", True), "pre_tokenizer has ByteLevel settings"),
    "no regex": (ENGLISH, put("pre_tokenizer.use_regex", False), "pre_tokenizer has ByteLevel settings"),
    "no pre-tokenizer": (ENGLISH, put("pre_tokenizer", None), "pre_tokenizer is neither"),
    "another pre-tokenizer": (ENGLISH, put("pre_tokenizer", {"type": "Whitespace"}), "pre_tokenizer is neither"),
    "metaspace, first word only": (
        MULTILINGUAL,
        put("pre_tokenizer.prepend_scheme", "first"),
        "pre_tokenizer is neither",
    ),
    "metaspace without split": (MULTILINGUAL, put("pre_tokenizer.split", False), "pre_tokenizer is neither"),
    "metaspace of another sign": (MULTILINGUAL, put("pre_tokenizer.replacement", "_"), "pre_tokenizer is neither"),
    "metaspace with a setting more": (MULTILINGUAL, put("pre_tokenizer.new", 1), "pre_tokenizer is neither"),
    "metaspace without its normalizer": (MULTILINGUAL, put("normalizer", None), "normalizer is not Replace"),
    "metaspace with NFC": (MULTILINGUAL, put("normalizer", {"type": "NFC"}), "normalizer is not Replace"),
    # model
    "WordPiece": (ENGLISH, put("model.type", "WordPiece"), "model.type is 'WordPiece'"),
    "no model type": (ENGLISH, drop("model.type"), "model.type is None"),
    "no model": (ENGLISH, drop("model"), "model is missing"),
    "dropout": (ENGLISH, put("model.dropout", 0.1), "model.dropout is 0.1, not None"),
    "ignore_merges": (ENGLISH, put("model.ignore_merges", True), "model.ignore_merges is True"),
    "subword prefix": (
        ENGLISH,
        put("model.continuing_subword_prefix", "##"),
        "model.continuing_subword_prefix is '##'",
    ),
    "word suffix": (ENGLISH, put("model.end_of_word_suffix", "</w>"), "model.end_of_word_suffix is '</w>'"),
    "byte fallback of bytelevel": (ENGLISH, put("model.byte_fallback", True), "model.byte_fallback is True"),
    "no byte fallback of metaspace": (MULTILINGUAL, put("model.byte_fallback", False), "model.byte_fallback is False"),
    "no fuse_unk of metaspace": (MULTILINGUAL, put("model.fuse_unk", False), "model.fuse_unk is False"),
    "unk of bytelevel": (ENGLISH, put("model.unk_token", "<unk>"), "model.unk_token is '<unk>'"),
    "no unk of metaspace": (MULTILINGUAL, put("model.unk_token", None), "model.unk_token is missing"),
    # vocabulary and merges
    "vocabulary as a list": (ENGLISH, put("model.vocab", []), "model.vocab must be an object"),
    "an id beyond vocab_size": (ENGLISH, put("model.vocab.a", 960), "the id 960, outside vocab_size 960"),
    "a negative id": (ENGLISH, put("model.vocab.a", -1), "the id -1, outside vocab_size"),
    "an id as a float": (ENGLISH, put("model.vocab.a", 5.0), "the id 5.0"),
    "an id as a bool": (ENGLISH, put("model.vocab.a", True), "the id True"),
    "one id for two pieces": (ENGLISH, lambda t: t["model"]["vocab"].update(a=t["model"]["vocab"]["b"]), "the id"),
    "no merges": (ENGLISH, drop("model.merges"), "model.merges is missing"),
    "empty merges": (ENGLISH, put("model.merges", []), "model.merges"),
    "a merge of three": (ENGLISH, put("model.merges.2", ["a", "b", "c"]), "model.merges[2] is not a pair"),
    "a merge of one": (ENGLISH, put("model.merges.2", "ab"), "model.merges[2] is not a pair"),
    "a merge with an empty side": (ENGLISH, put("model.merges.2", ["", "a"]), "model.merges[2] is not a pair"),
    "a merge with a space inside": (
        ENGLISH,
        put("model.merges.2", ["a b", "c"]),
        "model.merges[2] has a piece with a space",
    ),
    "a merge into no piece": (
        ENGLISH,
        put("model.merges.2", ["[CLS]", "[CLS]"]),
        "model.merges[2] makes a piece outside the vocabulary",
    ),
    "a merge of numbers": (ENGLISH, put("model.merges.2", [1, 2]), "model.merges[2] is not a pair"),
    # added tokens
    "no added tokens": (ENGLISH, drop("added_tokens"), "added_tokens is missing"),
    "an added token as text": (ENGLISH, put("added_tokens.0", "[CLS]"), "added_tokens[0] must be an object"),
    "an added token without an id": (ENGLISH, drop("added_tokens.0.id"), "added_tokens[0].id is missing"),
    "an added token without content": (ENGLISH, drop("added_tokens.0.content"), "added_tokens[0].content is missing"),
    "a flag that is missing": (ENGLISH, drop("added_tokens.0.lstrip"), "added_tokens[0].lstrip must be true or false"),
    "a flag as a number": (ENGLISH, put("added_tokens.0.normalized", 0), "added_tokens[0].normalized must be true"),
    "rstrip": (ENGLISH, put("added_tokens.0.rstrip", True), "added_tokens[0].rstrip is set on"),
    "single_word": (ENGLISH, put("added_tokens.0.single_word", True), "added_tokens[0].single_word is set on"),
    "an added token twice": (ENGLISH, add_token("[CLS]", 925), "'[CLS]' is there twice"),
    "an added token beyond vocab_size": (ENGLISH, add_token("new", 960), "gives 'new' the id 960"),
    "an added token under a taken id": (ENGLISH, add_token("new", 5), "gives 'new' the id 5"),
    # A GGUF spells U+2581 of such a piece as a space, so the two would be read back as one.
    "a space in a metaspace token": (MULTILINGUAL, add_token("two words", 1270), "'two words' holds a space"),
    "no mask token": (ENGLISH, without_token("[MASK]"), "'[MASK]' is not an added token of tokenizer.json"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_outside_the_families_is_refused_by_name(name: str, checkpoint: Callable[..., Path]):
    family, change, fragment = TOKENIZERS[name]
    root = checkpoint(family)
    edit_json(root / TOKENIZER, change)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(root)
    assert fragment in error.value.message
    assert error.value.where is not None and str(root / "tokenizer") in error.value.where


# (change of tokenizer_config.json, what the refusal names)
CONFIGS: dict[str, tuple[Change, str]] = {
    "no mask token": (drop("mask_token"), "mask_token is missing"),
    "no CLS token": (put("cls_token", None), "cls_token is missing"),
    "a mask that is no token": (put("mask_token", "[BLANK]"), "special token '[BLANK]' is not an added token"),
    "a mask as a number": (put("mask_token", 928), "mask_token must name a token"),
    "an empty mask": (put("mask_token", ""), "mask_token must name a token"),
    "a mask without content": (put("mask_token", {"lstrip": True}), "mask_token must name a token"),
    "a mask with other flags": (put("mask_token", {"content": "[MASK]", "lstrip": False}), "another lstrip"),
    "an extra special that is no token": (put("extra_special_tokens", ["<x>"]), "special token '<x>' is not"),
    "extra specials as text": (put("extra_special_tokens", "<x>"), "extra_special_tokens must be a list or an object"),
    "an added token that is not there": (decoder("5", {"content": "<x>"}), "adds '<x>'"),
    "an added token under another id": (decoder("5", {"content": "[CLS]"}), "adds '[CLS]'"),
    "an added token with other flags": (
        lambda config: next(iter(config["added_tokens_decoder"].values())).update(normalized=True),
        "another normalized",
    ),
    "an added token as text": (decoder("925", "[CLS]"), "must be an object"),
    "an id of 5,000 digits": (decoder("9" * 5000, {"content": "[CLS]"}), "adds '[CLS]'"),
    "added tokens as a list": (put("added_tokens_decoder", []), "added_tokens_decoder must be an object"),
    "a class of its own": (put("tokenizer_class", "LlamaTokenizer"), "tokenizer_class is 'LlamaTokenizer'"),
    "code of its own": (put("auto_map", {"AutoTokenizer": "x.y"}), "auto_map names code"),
    "several chat templates": (put("chat_template", [{"name": "x"}]), "chat_template is a list"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_tokenizer_config_that_says_something_else_is_refused(name: str, checkpoint: Callable[..., Path]):
    root = checkpoint()
    change, fragment = CONFIGS[name]
    edit_json(root / TOKENIZER_CONFIG, change)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(root)
    assert fragment in str(error.value)
    assert len(str(error.value)) < 400


# -- what changes nothing --------------------------------------------------------------------------------------------

HARMLESS: dict[str, tuple[str, str, Change]] = {
    "no normalizer": (ENGLISH, TOKENIZER, put("normalizer", None)),
    "merges as text": (
        ENGLISH,
        TOKENIZER,
        lambda t: t["model"].update(merges=[" ".join(m) if isinstance(m, list) else m for m in t["model"]["merges"]]),
    ),
    "merges as pairs": (
        ENGLISH,
        TOKENIZER,
        lambda t: t["model"].update(merges=[m.split(" ") if isinstance(m, str) else m for m in t["model"]["merges"]]),
    ),
    "an empty prefix": (ENGLISH, TOKENIZER, put("model.continuing_subword_prefix", "")),
    "a post-processor": (ENGLISH, TOKENIZER, put("post_processor", None)),
    "truncation and padding": (
        MULTILINGUAL,
        TOKENIZER,
        put("truncation", {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}),
    ),
    "extra specials as an object": (
        MULTILINGUAL,
        TOKENIZER_CONFIG,
        put("extra_special_tokens", {"a": "<start_of_turn>", "b": "<end_of_turn>"}),
    ),
    "a mask with its own flags": (ENGLISH, TOKENIZER_CONFIG, put("mask_token", {"content": "[MASK]", "lstrip": True})),
    "no extra specials": (MULTILINGUAL, TOKENIZER_CONFIG, drop("extra_special_tokens")),
    "another class name of the same": (ENGLISH, TOKENIZER_CONFIG, put("tokenizer_class", "TokenizersBackend")),
    "keys nobody reads": (ENGLISH, TOKENIZER_CONFIG, put("new", {"a": [1]})),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_not_shape_ids_is_accepted_and_proved(name: str, checkpoint: Callable[..., Path]):
    family, file, change = HARMLESS[name]
    root = checkpoint(family)
    before = read_checkpoint(root).tokenizer
    edit_json(root / file, change)
    read = read_checkpoint(root)
    prove_tokenizer(read, 200)
    assert (read.tokenizer.pieces, read.tokenizer.merges) == (before.pieces, before.merges)
    assert read.tokenizer.special == before.special


def test_a_user_defined_run_of_metaspaces_survives(checkpoint: Callable[..., Path]):
    root = checkpoint(MULTILINGUAL)
    pieces = read_checkpoint(root).tokenizer.pieces
    run, free = METASPACE * 11, pieces.index(None)
    edit_json(root / TOKENIZER, add_token(run, free))
    read = read_checkpoint(root)
    prove_tokenizer(read, 200)
    assert read.tokenizer.pieces[free] == run


# -- files beside the ones that are read -----------------------------------------------------------------------------

FOREIGN: dict[str, tuple[str, str, str]] = {
    "pickled weights": ("pytorch_model.bin", "x", "pytorch_model.bin holds pickled weights"),
    "pickled shards": ("pytorch_model-00001-of-00002.bin", "x", "pytorch_model-00001-of-00002.bin holds pickled"),
    "quantization config": ("hf_quant_config.json", "{}", "hf_quant_config.json describes quantized weights"),
    "sentence transformer": ("modules.json", "[]", "modules.json makes this"),
    "added tokens": ("added_tokens.json", "{}", "added_tokens.json adds tokens"),
    "added tokens of the tokenizer": ("tokenizer/added_tokens.json", "{}", "tokenizer/added_tokens.json adds tokens"),
    "special tokens map of another token": (
        "tokenizer/special_tokens_map.json",
        '{"mask_token": "[BLANK]"}',
        "mask_token does not restate",
    ),
    "special tokens map with other flags": (
        "tokenizer/special_tokens_map.json",
        '{"mask_token": {"content": "[MASK]", "lstrip": false}}',
        "gives '[MASK]' other flags",
    ),
    "special tokens map with a token more": (
        "tokenizer/special_tokens_map.json",
        '{"additional_special_tokens": ["[CLS]"]}',
        "additional_special_tokens does not restate",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_makes_it_another_model_is_refused(name: str, checkpoint: Callable[..., Path]):
    root = checkpoint()
    file, content, fragment = FOREIGN[name]
    (root / file).write_text(content)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(root)
    assert fragment in error.value.message


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", '{"model_type": "bert"}'),
        ("tokenizer/special_tokens_map.json", '{"mask_token": "[MASK]", "cls_token": {"content": "[CLS]"}}'),
        ("tokenizer/vocab.txt", "x"),
        ("notes.bin", "x"),
    ],
)
def test_a_file_that_changes_nothing_is_ignored(file: str, content: str, checkpoint: Callable[..., Path]):
    root = checkpoint()
    before = read_checkpoint(root).source_sha256()
    (root / file).write_text(content)
    assert read_checkpoint(root).source_sha256() == before


# -- damage of every kind --------------------------------------------------------------------------------------------

JUNK: list[Any] = [None, True, 0, -1, 2**31, 2**63, 1e39, -0.5, "", "x", METASPACE, "<mask>", [], [[]], ["a", "b"], {}]
JUNK += [{"type": "x"}, {"a": 1}, "9" * 5000]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths into a JSON value; of long lists and objects only the first few."""
    yield path
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, child in items if len(items) <= 60 else items[:4]:
        yield from places(child, (*path, key))


@pytest.mark.parametrize("family", [ENGLISH, MULTILINGUAL])
def test_random_damage_is_refused_or_harmless(family: str, checkpoint: Callable[..., Path]):
    root = checkpoint(family)
    rng = random.Random(20_260_930)
    files = {
        name: json.loads((root / name).read_text("utf-8")) for name in (AGENT, ENCODER, TOKENIZER, TOKENIZER_CONFIG)
    }
    refused = 0
    for _ in range(200):
        name = rng.choice(list(files))
        *parents, last = rng.choice(list(places(files[name]))[1:])
        damaged = copy.deepcopy(files[name])
        node = damaged
        for key in parents:
            node = node[key]
        if rng.random() < 0.2:
            del node[last]
        else:
            node[last] = rng.choice(JUNK)
        (root / name).write_text(json.dumps(damaged), encoding="utf-8")
        try:
            read = read_checkpoint(root, embed_tokenizer=rng.random() < 0.3)
            if name.startswith("tokenizer"):
                prove_tokenizer(read, 20)
        except CheckpointError as error:
            refused += 1
            assert str(root) in str(error)
            assert len(str(error)) < 600
        (root / name).write_text(json.dumps(files[name]), encoding="utf-8")
    assert 60 < refused < 180


@pytest.mark.parametrize("file", [AGENT, ENCODER, TOKENIZER, TOKENIZER_CONFIG])
@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must hold a JSON object"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", "nested deeper than 127 levels"),
        (b'{"a": ' + b"[" * 100_000, "not valid JSON"),
    ],
    ids=["empty", "cut", "array", "NaN", "not UTF-8", "200 levels", "100,000 levels"],
)
def test_a_file_that_is_no_json_object_is_named(
    file: str, content: bytes, fragment: str, checkpoint: Callable[..., Path]
):
    root = checkpoint()
    (root / file).write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(root)
    assert fragment in error.value.message
    assert error.value.where == str(root / file)


@pytest.mark.parametrize("file", [AGENT, ENCODER, TOKENIZER, TOKENIZER_CONFIG])
def test_a_missing_file_is_named(file: str, checkpoint: Callable[..., Path]):
    root = checkpoint()
    (root / file).unlink()
    with pytest.raises(CheckpointError, match=Path(file).name):
        read_checkpoint(root)


def test_a_special_token_may_be_named_by_an_object_everywhere(checkpoint: Callable[..., Path]):
    root = checkpoint()
    before = read_checkpoint(root).tokenizer.special
    set_fields(root / TOKENIZER_CONFIG, cls_token={"content": "[CLS]"}, sep_token={"content": "[SEP]", "special": True})
    assert read_checkpoint(root).tokenizer.special == before
