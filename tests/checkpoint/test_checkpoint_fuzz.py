"""Mutated checkpoint folders: refused with one clean error or read, never a traceback, a hang or a memory blow-up."""

from __future__ import annotations

import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from layactl.checkpoint.folder import read_checkpoint
from layactl.convert.convert import convert
from layactl.errors import LayactlError

FILES = (
    "rl_agent_config.json",
    "encoder/config.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
    "model.safetensors",
)
# What a number, a name or a piece of structure may turn into.
SPLICES = (
    b"-1", b"0", b"1e999", b"NaN", b"null", b"true", b'""', b"[]", b"{}", b"99999999999999999999", b"4294967296",
    b"1.5", b'"\\ud83d"', b"[[[[[[[[", b"}", b",", b":", b"\xff", b"\x00", b'"F64"', b'"I8"', b"18446744073709551615",
)  # fmt: skip


def mutate(data: bytes, limit: int, rng: random.Random) -> bytes:
    """One to three changes within the first `limit` bytes."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(min(limit, len(data)) or 1)
        span = rng.choice((0, 1, 1, 2, 5, 20))
        kind = rng.randrange(5)
        if kind == 0:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + rng.choice(SPLICES) + data[at + span :]
        elif kind == 2:
            data = data[:at] + data[at + span :]
        elif kind == 3:
            data = data[: at + span] + data[at:]
        else:
            data = data[:at]
    return data


def header_bytes(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


def _value(rng: random.Random, data: bytes) -> bytes:
    """Replace one whole JSON number or string by something else: the changes that parse, and must be checked."""
    starts = [i for i, c in enumerate(data) if c in b'0123456789"' and data[i - 1 : i] in (b" ", b":", b"[", b",")]
    at = rng.choice(starts)
    end = at + 1
    while end < len(data) and data[end] not in b',]}\n"':
        end += 1
    end += data[end : end + 1] == b'"' and data[at : at + 1] == b'"'
    return data[:at] + rng.choice(SPLICES[:12]) + data[end:]


@pytest.fixture
def mutated(tmp_path: Path, family: str, checkpoint: Callable[[str], Path]) -> Callable[[random.Random], Path]:
    """A function that gives the folder with one file mutated (and the others whole again)."""
    root = checkpoint(family)
    whole = {name: (root / name).read_bytes() for name in FILES}

    def get(rng: random.Random) -> Path:
        for name, data in whole.items():
            (root / name).write_bytes(data)
        name = rng.choice(FILES)
        data = whole[name]
        limit = header_bytes(data) if name == "model.safetensors" else len(data)
        if name != "model.safetensors" and rng.random() < 0.5:
            data = _value(rng, data)
        else:
            data = mutate(data, limit, rng)
        (root / name).write_bytes(data)
        return root

    return get


def _fuzz(mutated: Callable[[random.Random], Path], count: int, seed: int, out: Path) -> tuple[int, int]:
    refused = read = 0
    for n in range(count):
        root = mutated(random.Random(seed + n))
        try:
            read_checkpoint(root)
            read += 1
            # What is read must also convert, or be refused in the same way. (Not every time: the tokenizers library
            # never gives back the word cache of a tokenizer that is gone, 8 MB a piece here.)
            if read % 10 == 1:
                convert(root, out, outtype="f16")
        except LayactlError as error:
            assert "\n" not in str(error).strip()[:200] or error.where
            refused += 1
        assert not list(out.parent.glob("*.tmp"))
    return refused, read


def test_mutated_checkpoints_are_read_or_refused(mutated, tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused, read = _fuzz(mutated, 250, 1000, tmp_path / "out.gguf")
    assert refused > 100 and read > 10
    # ru_maxrss is in KiB here; a checkpoint of under 1 MB must not cost hundreds of megabytes.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


@pytest.mark.full
def test_thousands_of_mutated_checkpoints_are_read_or_refused(mutated, tmp_path):
    refused, read = _fuzz(mutated, 2500, 5_000, tmp_path / "out.gguf")
    assert refused > 1000 and read > 100


def test_a_folder_without_any_one_of_its_files_is_refused_by_name(checkpoint, family):
    root = checkpoint(family)
    for name in FILES:
        (root / name).unlink()
        with pytest.raises(LayactlError, match=Path(name).name):
            read_checkpoint(root)
        shutil.copy(Path(__file__).parents[2] / "fixtures" / family / name, root / name)
