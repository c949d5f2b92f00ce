"""Which records a calibration is fitted on and which it is judged by: stated, or told by a hash, never by chance."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layactl.errors import InputError

if TYPE_CHECKING:
    from layactl.core.json_fields import JsonObject

FIT, EVAL = "fit", "eval"
SPLITS = (FIT, EVAL)
# What data sets call their own parts. They say what a model was trained on, not what a calibration may be fitted on.
_DATASET_SPLITS = ("train", "validation", "dev", "test")
HELDOUT_FRACTION = 0.3


@dataclass(frozen=True)
class Member:
    """What the split of a record depends on.

    id: the record's; group: records that belong together, None for a record of its own; stated: the split the data
    gives it, None where it gives none; where: the file and line.
    """

    id: str
    group: str | None
    stated: str | None
    where: str

    @property
    def cluster(self) -> tuple[str, str]:
        """What it shares with the records it belongs together with, and with no other."""
        return ("id", self.id) if self.group is None else ("group", self.group)


def is_held_out(kind: str, name: str, fraction: float) -> bool:
    """Whether sha256("<kind>:<name>"), read as a fraction of 2^256, falls below `fraction`.

    kind: "router" or "decision"; name: the record's group, else its id (specification, Training and calibration tools).
    """
    digest = hashlib.sha256(f"{kind}:{name}".encode()).digest()
    # Exact: Python compares the integer with the double as numbers.
    return int.from_bytes(digest, "big") < fraction * 2.0**256


def assign_splits(kind: str, members: Sequence[Member], fraction: float, *, stated: bool = True) -> list[str]:
    """ "fit" or "eval" for every record; a group is never on both sides.

    A record without a stated split takes that of its group, or else the hash decides. stated: False leaves what the
    data states aside. Raises InputError for a group stated on both sides, naming both lines.
    """
    of_cluster: dict[tuple[str, str], tuple[str, str]] = {}
    for member in members:
        if not stated or member.stated is None:
            continue
        split, first = of_cluster.setdefault(member.cluster, (member.stated, member.where))
        if split != member.stated:
            raise InputError(
                f"the group {member.cluster[1]!r:.60} is in both splits: {member.stated} here, {split} in {first}",
                where=member.where,
            )
    found = []
    for member in members:
        split = of_cluster.get(member.cluster, ("", ""))[0]
        if not split:
            split = EVAL if is_held_out(kind, member.group or member.id, fraction) else FIT
        found.append(split)
    return found


def read_member(fields: JsonObject, seen: dict[str, str]) -> Member:
    """The "id", "group" and "split" of a record. seen: ids so far and their lines, which this one joins.

    A data set's own "train", "validation" or "test" is no split here. Raises InputError.
    """
    record_id = _name(fields, "id")
    if record_id is None:
        raise fields.error("id", "is missing")
    if (first := seen.setdefault(record_id, fields.where)) != fields.where:
        raise InputError(f"the id {record_id!r:.60} is there twice, first in {first}", where=fields.where)
    split = fields.get("split")
    if split is not None and split not in SPLITS + _DATASET_SPLITS:
        raise fields.error("split", f'must be "fit" or "eval", not {split!r:.40}')
    return Member(record_id, _name(fields, "group"), split if split in SPLITS else None, fields.where)


def _name(fields: JsonObject, key: str) -> str | None:
    """A text, or an integer as its text; None where it is absent or null."""
    value = fields.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is not None and (not isinstance(value, str) or not value):
        raise fields.error(key, f"must be text that is not empty, not {value!r:.40}")
    return value
