"""No speed number without parity: which results a passing gate report covers (specification, "No speed number without
parity").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.core import strict_json
from layactl.durable import read_limited
from layactl.errors import InputError, RequestError

_GATE_FORMAT = "layactl.parity-gate/1"
_MAX_BYTES = 64 * 2**20
# What must be the same in the gated run and in the measured one, and how a difference is told; most telling last.
_FIELDS = (
    ("model", "another model file"),
    ("source_manifest", "other source files of layactl"),
    ("kernels", "other kernels"),
    ("precision", "another precision"),
)


@dataclass(frozen=True)
class Gate:
    """One gate report. runs: identities of both sides that ran the engine; a baseline is covered too."""

    path: Path
    verdict: str
    tier: str
    mismatches: bool
    runs: tuple[dict[str, Any], ...]


def read_gates(paths: Sequence[Path]) -> list[Gate]:
    """Gate reports: files, or all JSON files of folders. Raises InputError."""
    files = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    return [gate for file in files for gate in _gates(file)]


def _gates(file: Path) -> list[Gate]:
    try:
        content = strict_json.loads_strict(read_limited(file, _MAX_BYTES))
    except RequestError as error:
        raise InputError(error.message, where=str(file)) from None
    found = []
    for report in content if isinstance(content, list) else [content]:
        if not isinstance(report, dict) or report.get("format") != _GATE_FORMAT:
            continue
        sides = [report.get(name) for name in ("baseline", "candidate")]
        identities = [side.get("identity") for side in sides if isinstance(side, dict)]
        engines = [one for one in identities if isinstance(one, dict) and one.get("side") == "engine"]
        mismatches = bool(report.get("identity_mismatches"))
        found.append(Gate(file, str(report.get("verdict")), str(report.get("tier")), mismatches, tuple(engines)))
    return found


def key_of(identity: dict[str, Any]) -> dict[str, Any]:
    """What a gate covers: model file, numeric source files, kernels, precision."""
    model = identity.get("model")
    sha256 = model.get("sha256") if isinstance(model, dict) else None
    return {"model": sha256, **{name: identity.get(name) for name, _ in _FIELDS[1:]}}


def refusal(identity: dict[str, Any], gates: Sequence[Gate]) -> str | None:
    """Why no speed of a run may be told, the nearest reason; None where a gate covers it.

    identity: of the run. A peer is no run of layactl: it needs no gate of its own.
    """
    if identity.get("side") != "engine":
        return None if identity else "it has no identity"
    if not gates:
        return "no gate report was given"
    wanted = key_of(identity)
    nearest, reason = -1, "no gate report is about layactl"
    for gate in gates:
        for run in gate.runs:
            found = key_of(run)
            same = [name for name, _ in _FIELDS if found[name] == wanted[name] and wanted[name] is not None]
            if len(same) == len(_FIELDS):
                if gate.verdict == "pass" and not gate.mismatches:
                    return None
                what = "was passed over an identity mismatch" if gate.verdict == "pass" else f"says {gate.verdict}"
                nearest, reason = len(_FIELDS), f"the gate {gate.tier} {what} ({gate.path.name})"
            elif len(same) > nearest:
                text = next(text for name, text in _FIELDS if name not in same)
                nearest, reason = len(same), f"the nearest gate is of {text} ({gate.path.name})"
    return reason
