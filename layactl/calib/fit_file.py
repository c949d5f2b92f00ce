"""FIT.json read back: a calibration, and which records it was fitted on, so that none of them is taken for a proof."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.calib.logits import LabelledAnswer, LabelledScore, LogitsFile
from layactl.core import strict_json
from layactl.core.json_fields import JsonObject
from layactl.durable import read_limited
from layactl.errors import InputError, RequestError
from layactl.labelled.split import FIT

FIT_FORMAT = "layactl.calib-fit/1"
_MAX_FIT_BYTES = 64 * 2**20
_FINGERPRINT_DIGITS = 32


@dataclass(frozen=True)
class FittedSplit:
    """heldout, resplit: how the records were told apart; records: fingerprints of those that were fitted on."""

    heldout: float
    resplit: bool
    records: frozenset[str]

    def to_json(self) -> dict[str, Any]:
        return {"heldout_frac": self.heldout, "resplit": self.resplit, "fitted_on": sorted(self.records)}


@dataclass(frozen=True)
class FitFile:
    """kind: "router" or "decision"; engine: that of the logits, None where they named none; block: of the spec."""

    path: Path
    kind: str
    engine: dict[str, Any] | None
    block: dict[str, Any]
    split: FittedSplit


def fitted_split(logits: LogitsFile) -> FittedSplit:
    """What a fit on the fit split of these logits has seen."""
    items: list[LabelledAnswer | LabelledScore] = [*logits.answers, *logits.scores]
    seen = (item for item in items if item.split == FIT)
    return FittedSplit(logits.heldout, not logits.stated_splits, frozenset(map(fingerprint, seen)))


def seen_by_fit(items: Iterable[LabelledAnswer | LabelledScore], records: frozenset[str]) -> int:
    """How many of the items are of records that were fitted on."""
    return sum(fingerprint(item) in records for item in items) if records else 0


def fingerprint(item: LabelledAnswer | LabelledScore) -> str:
    """Of the record: its id and what was asked about, so that the ids of two data sets may be the same."""
    text = strict_json.dumps([item.member.id, item.state])
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:_FINGERPRINT_DIGITS]


def read_fit(path: Path) -> FitFile:
    """What `calib fit -o` wrote. Raises InputError naming the field."""
    try:
        value = strict_json.loads_strict(read_limited(path, _MAX_FIT_BYTES))
    except RequestError as error:
        raise InputError(error.message, where=str(path)) from None
    fields = JsonObject(value if isinstance(value, dict) else {}, str(path), InputError)
    if fields.get("format") != FIT_FORMAT:
        raise InputError(f"is no fit: its format is {fields.get('format')!r:.60}", where=str(path))
    kind = fields.text("kind")
    engine = None if fields.get("engine") is None else fields.object("engine").values
    return FitFile(path, kind, engine, fields.object("calibration").values, _split(fields))


def _split(fields: JsonObject) -> FittedSplit:
    split = fields.object("split")
    heldout, resplit = split.number("heldout_frac"), split.get("resplit")
    if not 0.0 <= heldout <= 1.0:
        raise split.error("heldout_frac", f"must be between 0 and 1, not {heldout:g}")
    if not isinstance(resplit, bool):
        raise split.error("resplit", "must be true or false")
    records = split.items("fitted_on")
    if not records or not all(isinstance(record, str) and len(record) == _FINGERPRINT_DIGITS for record in records):
        raise split.error("fitted_on", "must hold the fingerprints of the records that were fitted on")
    return FittedSplit(heldout, resplit, frozenset(records))
