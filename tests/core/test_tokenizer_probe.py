"""core.tokenizer_probe: the same texts everywhere, with what tokenizers disagree about among them."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from layactl.core.tokenizer import Tokenizer, from_huggingface_json
from layactl.core.tokenizer_probe import differences, probe_texts
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.reader import GgufFile

SPECIALS = ("<mask>", "[CLS]", "\n\n")
DIGEST = """
import hashlib
from layactl.core.tokenizer_probe import probe_texts
print(hashlib.sha256("\\0".join(probe_texts(1500, ("<mask>", "[CLS]", "\\n\\n"))).encode()).hexdigest())
"""


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_texts_are_the_same_in_every_process(hash_seed: str):
    here = hashlib.sha256("\0".join(probe_texts(1500, SPECIALS)).encode()).hexdigest()
    there = subprocess.run(
        [sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": hash_seed}
    )
    assert there.stdout.strip() == here


def test_more_texts_only_adds_to_them():
    assert list(probe_texts(40, SPECIALS)) == list(itertools.islice(probe_texts(400, SPECIALS), 40))


@pytest.mark.parametrize("count", [0, 1, 25, 300])
def test_the_count_is_exact(count: int):
    assert len(list(probe_texts(count, SPECIALS))) == count


def test_another_seed_gives_other_texts():
    assert list(probe_texts(100, SPECIALS)) != list(probe_texts(100, SPECIALS, seed=1))


KINDS = {
    "empty": lambda text: text == "",
    "decomposed accents": lambda text: "e\u0301" in text,
    "emoji sequences": lambda text: "\u200d" in text,
    "carriage returns": lambda text: "\r" in text,
    "line separators": lambda text: "\u2028" in text,
    "NUL": lambda text: "\x00" in text,
    "beyond the BMP": lambda text: any(ord(c) > 0xFFFF for c in text),
    "space runs": lambda text: "   " in text,
    "long words": lambda text: max(map(len, text.split()), default=0) > 1000,
    "a special token inside a word": lambda text: "a<mask>b" in text,
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_trouble_is_among_the_texts(name: str):
    assert any(KINDS[name](text) for text in probe_texts(300, SPECIALS))


def test_every_text_can_be_encoded():
    for text in probe_texts(1500, SPECIALS):
        assert text.encode("utf-8").decode("utf-8") == text


def test_differences_yields_exactly_the_texts_read_differently(family: str, gguf_for: Callable[..., Path]):
    path = gguf_for(family)
    data = read_model(GgufFile(path)).tokenizer
    source = Path(__file__).parents[2] / "fixtures" / family / "tokenizer" / "tokenizer.json"
    original = from_huggingface_json(source.read_text(encoding="utf-8"))
    texts = list(probe_texts(600, [token.content for token in data.added]))
    assert list(differences(original, Tokenizer(data), texts)) == []

    tampered = Tokenizer(replace(data, merges=list(data.merges)[::-1]))
    expected = [text for text in texts if original.encode(text, add_special_tokens=False).ids != tampered.encode(text)]
    assert expected
    assert list(differences(original, tampered, texts)) == expected
