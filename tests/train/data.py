"""Small labelled files that something can be learned from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COLOURS = ("red", "blue", "green", "black")
QUESTIONS = {
    "wanted": {"type": "noul", "instructions": "Is a refund wanted?"},
    "colour": {"type": "choice", "instructions": "Which colour?", "criteria": dict.fromkeys(COLOURS, "")},
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["low", "medium", "high"]},
}


def decision(name: str, number: int) -> dict[str, Any]:
    """A record whose facts follow from its number; its urgency is a matter of opinion."""
    wanted, colour = bool(number % 2), COLOURS[number % 4]
    state = f"{name} {number}: the {colour} one. I {'want' if wanted else 'keep'} my money."
    gold = {"wanted": wanted, "colour": colour, "urgency": {"0": 0.2, "1": 0.5, "2": 0.3}}
    return {"id": f"{name}-{number}", "state": state, "questions": QUESTIONS, "gold": gold}


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def data_files(folder: Path, train: int = 24, dev: int = 8) -> tuple[Path, Path]:
    """train.jsonl and dev.jsonl."""
    sizes = {"train": train, "dev": dev}
    first, second = (
        write(folder / f"{name}.jsonl", [decision(name, number) for number in range(count)])
        for name, count in sizes.items()
    )
    return first, second
