"""Run files for the tests of the gate: real records of a tiny model, to be corrupted one value at a time."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from layactl.parity.run import run_meta
from layactl.parity.run_file import Run, read_run
from layactl.reporting.record_stream import sidecar

Record = dict[str, Any]

LIMITS = {"max_len": 128, "head_max_len": 64}
REFERENCE: Record = {
    "format": "layactl.identity/1",
    "side": "reference",
    "device": "cpu",
    "activations": "f32",
    "kernels": "torch",
    "model": {"source_sha256": "c" * 64},
    "corpus": {"sha256": "a" * 64, "subset": "all", "items": 0},
    "limits": LIMITS,
}
ENGINE: Record = {
    "format": "layactl.identity/1",
    "side": "engine",
    "device": "cpu",
    "activations": "f32",
    "kernels": "reference",
    "spec_sha256": "d" * 64,
    "model": {"sha256": "b" * 64, "source_sha256": "c" * 64, "weights": "F32"},
    "corpus": {"sha256": "a" * 64, "subset": "all", "items": 0},
    "limits": LIMITS,
}


def items() -> list[Record]:
    """Every question type, several option counts, a list state, a refused null state."""
    labels = ["billing", "shipping", "technical", "other", "none"]
    made: list[Record] = [
        {
            "id": f"item_{n}",
            "state": f"Ticket {n}: the parcel came late and the invoice was wrong.",
            "questions": {
                "team": {"type": "choice", "instructions": f"Which team for {n}?", "criteria": labels[: 2 + n % 4]},
                "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["low", "middle", "high"]},
                "refund": {"type": "noul", "instructions": "Is money asked back?"},
            },
        }
        for n in range(5)
    ]
    noul = {"yes": {"type": "noul", "instructions": "Is it?"}}
    return [
        *made,
        {"id": "turns", "state": [f"turn {n} of a long talk about parcels" for n in range(60)], "questions": noul},
        {"id": "null", "state": None, "questions": noul},
    ]


def write_run(path: Path, identity: Record, records: list[Record]) -> Path:
    """A run file as `parity ref` and `parity run` write one."""
    identity = copy.deepcopy(identity)
    identity["corpus"]["items"] = identity["corpus"]["items"] or len(records)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    sidecar(path).write_text(json.dumps(run_meta(identity)), encoding="utf-8")
    return path


class Pair:
    """A baseline and a candidate that agree, until a test changes one of them."""

    def __init__(self, folder: Path, records: list[Record], baseline: Record, candidate: Record) -> None:
        self.folder = folder
        self.identities = [copy.deepcopy(baseline), copy.deepcopy(candidate)]
        self.records = [copy.deepcopy(records), copy.deepcopy(records)]
        if baseline["side"] == "reference":
            for record in self.records[0]:
                for question in record.get("questions", {}).values():
                    question["answer"] = rounded(question["answer"])

    @property
    def candidate(self) -> list[Record]:
        return self.records[1]

    def question(self, side: int, item: str, name: str) -> Record:
        record = next(record for record in self.records[side] if record["id"] == item)
        found: Record = record["questions"][name]
        return found

    def questions(self, side: int) -> list[Record]:
        return [question for record in self.records[side] for question in record.get("questions", {}).values()]

    def runs(self) -> tuple[Run, Run]:
        paths = []
        for name, identity, records in zip(("baseline", "candidate"), self.identities, self.records, strict=True):
            paths.append(write_run(self.folder / f"{name}.jsonl", identity, records))
        return read_run(paths[0]), read_run(paths[1])


def rounded(value: Any) -> Any:
    """Every number of an answer with the four digits that the reference gives."""
    if isinstance(value, float):
        return round(value, 4)
    return {key: rounded(item) for key, item in value.items()} if isinstance(value, dict) else value


Change = Callable[[Pair], object]
