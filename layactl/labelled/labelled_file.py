"""A labelled file of either kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layactl.labelled import decisions, outcomes
from layactl.labelled.decisions import LabelledDecision, read_decisions
from layactl.labelled.outcomes import RouterOutcomes, read_outcomes
from layactl.reporting.json_lines import read_records
from layactl.reporting.record_stream import file_sha256


@dataclass(frozen=True)
class Labelled:
    """records: all of one kind, "router" or "decision"; sha256: of the file."""

    path: Path
    kind: str
    records: Sequence[LabelledDecision] | Sequence[RouterOutcomes]
    sha256: str


def read_labelled(path: Path) -> Labelled:
    """A file of router outcomes, told by the "candidates" of its first record, or of labelled decisions.

    Raises InputError naming the line and the field.
    """
    first = next((fields for fields in read_records(path)), None)
    if first is not None and "candidates" in first.values:
        return Labelled(path, outcomes.KIND, read_outcomes(path), file_sha256(path))
    return Labelled(path, decisions.KIND, read_decisions(path), file_sha256(path))
