"""fixtures/golden/<checkpoint>.jsonl: what the reference said once, so that it need not be installed to be checked.

The first line says what the numbers came from; then one line a request, and a last line with texts for the tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .request_kinds import Case

FOLDER = Path(__file__).parents[2] / "fixtures" / "golden"
# The files that a checkpoint's numbers follow from.
_SOURCES = ("model.safetensors", "rl_agent_config.json", "encoder/config.json", "tokenizer/tokenizer.json")


@dataclass(frozen=True)
class Expected:
    """One question as the reference read and answered it.

    options: its count of options, how many stayed distinct, and the cap forced on each; logits: raw, of the question
    run alone; answer: as JSON would show it, rounded.
    """

    ids: list[int]
    markers: list[int]
    options: dict[str, int | None]
    logits: list[float]
    act_logits: list[float]
    answer: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What the reference made of a request. questions: empty when `refusal` says why there are none."""

    questions: dict[str, Expected] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    state_tokens: int = 0
    refusal: str | None = None


@dataclass(frozen=True)
class Golden:
    """checkpoint: its name; sha256: of its files; versions: of the packages that gave the numbers; texts: -> ids."""

    checkpoint: str
    sha256: str
    versions: dict[str, str]
    requests: list[tuple[Case, Outcome]]
    texts: dict[str, list[int]]

    def write(self, path: Path) -> None:
        # ASCII only: no editor and no checkout may normalize a combining mark or a line end.
        lines = [json.dumps(record, separators=(",", ":")) for record in self._records()]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii", newline="\n")

    def _records(self) -> Iterator[dict[str, Any]]:
        yield {"checkpoint": self.checkpoint, "sha256": self.sha256, "versions": self.versions}
        for case, outcome in self.requests:
            request = {key: value for key, value in asdict(case).items() if key != "golden" and value is not None}
            reference = {key: value for key, value in asdict(outcome).items() if value}
            for expected in reference.get("questions", {}).values():
                for name in ("logits", "act_logits"):
                    expected[name] = [_shortest(value) for value in expected[name]]
            yield {"request": request, "reference": reference}
        yield {"texts": [[text, ids] for text, ids in self.texts.items()]}


def golden_path(checkpoint: str) -> Path:
    return FOLDER / f"{checkpoint}.jsonl"


def read_golden(path: Path) -> Golden:
    header, *records, texts = map(json.loads, path.read_text(encoding="ascii").splitlines())
    return Golden(**header, requests=[_request(record) for record in records], texts=dict(texts["texts"]))


def checkpoint_sha256(folder: Path) -> str:
    """One digest over the files that answers follow from."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()


def _request(record: dict[str, Any]) -> tuple[Case, Outcome]:
    request, reference = record["request"], record["reference"]
    limits = request.pop("limits", None)
    questions = {key: Expected(**value) for key, value in reference.pop("questions", {}).items()}
    return Case(**request, limits=limits and tuple(limits)), Outcome(questions=questions, **reference)


def _shortest(value: float) -> float:
    """A float32 as the double with its shortest decimal spelling: a third of the digits, and the same float32."""
    return float(str(np.float32(value)))
