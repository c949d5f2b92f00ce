"""Recorded results: blocks as a fake engine would give them, with times that are known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layactl.bench.suite import SuiteRequest

GROUPS = {"systemone 1q": ["a", "b"], "router N=1": ["r"]}
REQUESTS = [
    SuiteRequest("a", "systemone", "systemone 1q", {"state": "x", "questions": {}}),
    SuiteRequest("b", "systemone", "systemone 1q", {"state": "y", "questions": {}}),
    SuiteRequest("r", "router", "router N=1", {"task": "t"}),
]
ENGINE = {
    "format": "layactl.identity/1",
    "side": "engine",
    "model": {"sha256": "m" * 64, "weights": "F32"},
    "source_manifest": "s" * 64,
    "kernels": "onednn",
    "precision": "f32",
}
REFERENCE = {"side": "reference"}


def block(
    times: Mapping[str, Sequence[float]] | float,
    *,
    cycle: int = 0,
    attempt: int = 0,
    disturbed: str | None = None,
    logits: str | None = "l",
    refused: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """times: by request, or one number of milliseconds for all."""
    rows: dict[str, Any] = {}
    for request in REQUESTS:
        values = [times, times] if isinstance(times, (int, float)) else list(times[request.id])
        values = [float(value) for value in values]
        if request.id in refused:
            rows[request.id] = {"refusal": "CARD_TOO_LONG: too long"}
            continue
        phases = {"parse": 0.1, "tokenize": 0.1, "render": 0.2, "compute": 0.6, "post": 0.1}
        rows[request.id] = {
            "ms": {"total": values, **{name: [share * v for v in values] for name, share in phases.items()}},
            "cpu_seconds": [value / 1000 for value in values],
            "tokens": 10,
            "logits": logits,
            "deterministic": None if logits is None else True,
        }
    sizes = {"rss": 100 * 2**20, "peak": 150 * 2**20, "anonymous": 80 * 2**20}
    return {
        "load_ms": 12.0,
        "first_ms": 34.0,
        "load_average": 0.1,
        "foreign_cores": 0.0,
        "memory": dict.fromkeys(("start", "loaded", "warm", "end"), sizes),
        "requests": rows,
        "cycle": cycle,
        "attempt": attempt,
        "disturbed": disturbed,
        **more,
    }


def write_result(
    folder: Path, label: str, blocks: Sequence[dict[str, Any]], identity: dict[str, Any] = ENGINE, **more: Any
) -> Path:
    """One result file."""
    record = {
        "format": "layactl.bench/1",
        "label": label,
        "config": {"kind": identity["side"]},
        "plan": {},
        "suite": {"sha256": "q" * 64, "groups": GROUPS},
        "machine": {"cpu": "one CPU"},
        "identity": identity,
        "complete": True,
        "blocks": list(blocks),
        **more,
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{label.replace('/', '-')}.json"
    path.write_text(json.dumps(record))
    return path


def gate_report(
    verdict: str = "pass", mismatches: Sequence[str] = (), baseline: dict[str, Any] = REFERENCE, **changes: Any
) -> dict[str, Any]:
    """A report of `parity compare --json` whose candidate is ENGINE with changes."""
    return {
        "format": "layactl.parity-gate/1",
        "verdict": verdict,
        "tier": "strict-f32",
        "identity_mismatches": list(mismatches),
        "baseline": {"file": "ref.jsonl", "identity": baseline},
        "candidate": {"file": "run.jsonl", "identity": {**ENGINE, **changes}},
    }
