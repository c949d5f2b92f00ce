"""Items: the requests that both sides of a comparison answer."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.core import strict_json
from layactl.durable import read_limited
from layactl.errors import InputError, RequestError, UsageError
from layactl.parity.corpus.build import build_corpus, corpus_bytes, english_items
from layactl.parity.shipped import shipped

_MAX_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Items:
    """sha256: of the whole item file, whichever part of it is asked; subset: which part, as identities record it;
    total: items of the subset, of which a shard holds fewer.
    """

    items: tuple[dict[str, Any], ...]
    sha256: str
    subset: str
    total: int

    def identity(self) -> dict[str, Any]:
        """The "corpus" of an identity. A run with fewer records than "items" is a shard, or was stopped."""
        return {"sha256": self.sha256, "subset": self.subset, "items": self.total}


def load_items(
    path: Path | None,
    *,
    english: bool = False,
    every: int = 1,
    only: Sequence[str] = (),
    shard: tuple[int, int] = (0, 1),
) -> Items:
    """Items of a JSONL file, or (None) the shipped corpus, made afresh.

    english: only items whose letters are all ASCII; every: only one item of so many, the first included; only: only
    these ids; shard: (i, n), every n-th item from the i-th on, which is no subset of its own: shards are merged.
    Raises InputError naming the line, UsageError also where no item is left.
    """
    if path is None:
        built = build_corpus(shipped("corpus"))
        data, items = corpus_bytes(built), built
    else:
        data = read_limited(path, _MAX_BYTES)
        items = parse_items(data, str(path))
    subset = []
    if english:
        items = english_items(items)
        subset.append("english")
    if every != 1:
        items = items[::every]
        subset.append(f"every {every}")
    if only:
        if missing := sorted(set(only) - {item["id"] for item in items}):
            raise UsageError(f"no item is called {missing[0]!r:.60}")
        items = [item for item in items if item["id"] in set(only)]
        subset.append("only " + hashlib.sha256("\n".join(sorted(set(only))).encode()).hexdigest()[:16])
    first, step = shard
    chosen = tuple(items[first::step])
    if not chosen:
        raise UsageError("no items are left", where="the corpus" if path is None else str(path))
    return Items(chosen, hashlib.sha256(data).hexdigest(), ", ".join(subset) or "all", len(items))


def parse_items(data: bytes, where: str) -> list[dict[str, Any]]:
    """One object a line with a text "id" of its own, "questions" an object; only LF ends a line. Raises InputError."""
    items: list[dict[str, Any]] = []
    seen: set[str] = set()
    for number, line in enumerate(io.BytesIO(data), start=1):
        at = f"{where}, line {number}"
        try:
            item = strict_json.loads_strict(line)
        except RequestError as error:
            raise InputError(f"is no item: {error.message}", where=at) from None
        if not isinstance(item, dict) or not isinstance(item.get("questions"), dict) or "state" not in item:
            raise InputError('is no item: it needs "id", "state" and an object of "questions"', where=at)
        if not isinstance(item.get("id"), str) or not item["id"]:
            raise InputError("the id of an item must be text", where=at)
        if item["id"] in seen:
            raise InputError(f"the id {item['id']!r:.60} is there twice", where=at)
        seen.add(item["id"])
        items.append(item)
    return items
