"""Damage a GGUF in many ways and load each; a script, so that its memory can be limited.

`python header_fuzz.py FILE SEED CUTS FLIPS`: prints one JSON object: how many loads were tried, how many were refused,
and what went wrong otherwise. FILE is changed in place and restored.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from layactl.core.tokenizer import Tokenizer
from layactl.errors import GgufError, ModelLoadError
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.reader import GgufFile

# Room for what a sound load of the tiny checkpoints takes, and for nothing like a believed length or count.
HEADROOM = 256 * 2**20


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def load(path: Path, tokenizer: bool) -> str | None:
    """None when the file loads, "refused", or what else happened."""
    try:
        model = read_model(GgufFile(path))
        if tokenizer:
            Tokenizer(model.tokenizer)
    except (GgufError, ModelLoadError) as error:
        return "refused" if str(path) in str(error) and len(error.message) < 400 else f"unclear: {error}"
    except ValueError as error:  # from Tokenizer alone: the engine makes a GgufError of it
        return "refused" if tokenizer else repr(error)
    except BaseException as error:  # a panic of the tokenizers library is no Exception
        return f"{type(error).__name__}: {error}"
    return None


def structure(path: Path) -> list[int]:
    """Positions of the header that are not the text of a token or a merge: counts, keys, types, numbers, tensors."""
    file = GgufFile(path)
    positions = list(range(24))
    for value in file.keys.values():
        start, end = value.span
        positions += range(start, min(end, start + 120))
    return positions + list(range(max(value.span[1] for value in file.keys.values()), data_start(file)))


def data_start(file: GgufFile) -> int:
    return min(tensor.offset for tensor in file.tensors.values())


def cuts(path: Path, rng: random.Random, count: int) -> Iterator[tuple[str, str | None]]:
    whole = path.read_bytes()
    file = GgufFile(path)
    data_end = max(tensor.offset + tensor.nbytes for tensor in file.tensors.values())
    header = data_start(file)
    lengths = {0, 1, 3, 4, 8, 24, header - 1, header, header + 31, data_end - 1, data_end}
    lengths |= {rng.randrange(header) for _ in range(count // 2)} | {rng.randrange(data_end) for _ in range(count // 2)}
    # From long to short, so that the file shrinks in place.
    for length in sorted(lengths, reverse=True):
        with path.open("r+b") as out:
            out.truncate(length)
        result = load(path, tokenizer=False)
        expected = None if length >= data_end else "refused"
        yield f"cut at {length}", result if result == expected else f"not refused: {result}"
    path.write_bytes(whole)


@contextmanager
def flipped(path: Path, changes: dict[int, int]) -> Iterator[None]:
    with path.open("r+b", buffering=0) as file:
        saved = {}
        for position, value in changes.items():
            file.seek(position)
            saved[position] = file.read(1)
            file.seek(position)
            file.write(bytes([value]))
        yield
        for position, byte in saved.items():
            file.seek(position)
            file.write(byte)


def flips(path: Path, rng: random.Random, count: int) -> Iterator[tuple[str, str | None]]:
    positions, header_end = structure(path), data_start(GgufFile(path))
    for n in range(count):
        pool = positions if n % 4 else range(header_end)
        chosen = [rng.choice(pool) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
        changes = {position: rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))) for position in chosen}
        with flipped(path, changes):
            yield f"flip {changes}", load(path, tokenizer=n % 4 == 0)


def main() -> None:
    path, seed, cut_count, flip_count = Path(sys.argv[1]), *map(int, sys.argv[2:])
    rng = random.Random(seed)
    assert load(path, tokenizer=True) is None
    limit_memory()
    tried = refused = 0
    failures = []
    for what, result in (*cuts(path, rng, cut_count), *flips(path, rng, flip_count)):
        tried += 1
        refused += result == "refused"
        if result not in (None, "refused"):
            failures.append(f"{what}: {result}")
    print(json.dumps({"tried": tried, "refused": refused, "failures": failures[:20]}))


if __name__ == "__main__":
    main()
