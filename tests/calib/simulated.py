"""Answers and scores drawn from a model whose calibration is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from layactl.calib.bootstrap import Bootstrap
from layactl.calib.calibrator import recorded
from layactl.calib.fit import DECISION_MINIMUMS, ROUTER_MINIMUMS, Fit, Minimums, fit
from layactl.calib.logits import LabelledAnswer, LabelledScore, LogitsFile
from layactl.labelled.gold import Gold
from layactl.labelled.split import Member
from tests.calib.examples import card


def member(i: int, group: int | None = None) -> Member:
    return Member(f"r{i}", None if group is None else f"g{group}", None, f"line {i}")


def answer(logits: Sequence[float], label: int, i: int = 0, **fields: Any) -> LabelledAnswer:
    """One labelled choice; fields of LabelledAnswer replace the defaults."""
    one_hot = tuple(float(k == label) for k in range(len(logits)))
    values: dict[str, Any] = {
        "member": member(i),
        "question": "q",
        "type": "choice",
        "options": tuple(f"o{k}" for k in range(len(logits))),
        "logits": tuple(map(float, logits)),
        "temperature": None,
        "gold": Gold(label, one_hot),
        "tags": {},
        "state": "",
    } | fields
    return LabelledAnswer(**values)


def answers(
    rng: np.random.Generator,
    n: int,
    temperature: float,
    *,
    options: int = 4,
    spread: float = 3.0,
    per_group: int = 1,
    **fields: Any,
) -> list[LabelledAnswer]:
    """n answers whose labels are drawn from softmax(z / temperature): calibrated at that temperature, exactly."""
    z = rng.normal(0.0, spread, (n, options))
    p = np.exp((z - z.max(axis=1, keepdims=True)) / temperature)
    p /= p.sum(axis=1, keepdims=True)
    labels = (rng.random((n, 1)) > np.cumsum(p, axis=1)).sum(axis=1).clip(0, options - 1)
    group = [None if per_group == 1 else i // per_group for i in range(n)]
    return [answer(z[i].tolist(), int(labels[i]), i, **({"member": member(i, group[i])} | fields)) for i in range(n)]


def scores(
    rng: np.random.Generator, n: int, a: float, b: float, *, per_task: int = 1, split: str = ""
) -> list[LabelledScore]:
    """n candidates whose outcomes are drawn from sigmoid(a z + b)."""
    z = rng.normal(0.5, 2.0, n)
    y = rng.random(n) < 1.0 / (1.0 + np.exp(-(a * z + b)))
    return [
        LabelledScore(member(i // per_task), f"c{i % per_task}", card(), int(y[i]), float(z[i]), split)
        for i in range(n)
    ]


def logits_file(items: Sequence[LabelledAnswer] | Sequence[LabelledScore], **fields: Any) -> LogitsFile:
    """A file in memory that holds these items."""
    decisions = [item for item in items if isinstance(item, LabelledAnswer)]
    routed = [item for item in items if isinstance(item, LabelledScore)]
    values: dict[str, Any] = {
        "path": Path("simulated.jsonl"),
        "sha256": "0" * 64,
        "kind": "router" if routed else "decision",
        "answers": decisions,
        "scores": routed,
        "records": len(items),
        "refused": 0,
        "engines": [{"model": "simulated", "kernels": "reference"}],
    } | fields
    return LogitsFile(**values)


def halves(items: list[Any]) -> list[Any]:
    """Two thirds of the items to fit on, one to judge by; clusters stay whole where they are multiples of three."""
    return [replace(item, split="eval" if i % 3 == 2 else "fit") for i, item in enumerate(items)]


def fit_of(items: list[LabelledAnswer] | list[LabelledScore], minimums: Minimums | None = None, **fields: Any) -> Fit:
    found = logits_file(items, **fields)
    chosen = minimums or (ROUTER_MINIMUMS if found.kind == "router" else DECISION_MINIMUMS)
    return fit(found, recorded(found), chosen, Bootstrap(100))


def record(item: LabelledAnswer) -> dict[str, Any]:
    """The line of a logits file that holds this answer alone."""
    answer = {"type": item.type, "options": item.options, "logits": item.logits, "gold": item.gold.to_json()}
    engine = {"model": "simulated", "kernels": "reference"}
    return {"id": item.member.id, "split": item.split, "answers": {item.question: answer}, "engine": engine}
