"""tiers.json: how far a run may be from its baseline, registered before the runs that are judged by it.

Source of the rules and of the published numbers: specification, Backend parity tiers (Gate, Derivation, Tiers v2).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.core import strict_json
from layactl.core.json_fields import JsonObject
from layactl.durable import read_limited
from layactl.errors import InputError, RequestError, UsageError

SCHEMA = "layactl.parity-tiers/1"
EXACT, STATISTICAL = "exact", "statistical"
# The bounds a row holds, by the rule of its tier.
BOUNDS: dict[str, tuple[str, ...]] = {
    EXACT: ("max_abs_error", "act_max_rel_dlogit"),
    STATISTICAL: ("flip_max_gap", "max_flip_fraction", "max_abs_dp", "mean_abs_dp", "act_max_rel_dlogit"),
}
# What two runs may differ in on purpose; a tier allows those it names (specification, Known intentional differences).
KNOWN_DIFFERENCES: dict[str, str] = {
    "server_answer_shape": "only one side gives answer_confidence or action",
    "server_no_act_head": "a whole run has no act logits",
    "null_state_refused": "only one side refuses a null state",
    "list_state_truncation": "list states of the same length are cut from different ends",
}
_FIELDS = {"side", "device", "activations"}
_MAX_BYTES = 4 * 2**20

# What others have published, against which `parity derive --check` holds the file: all of a tier but its derived rows.
PUBLISHED: dict[str, dict[str, Any]] = {
    "strict-f32": {
        "rule": "exact",
        "baseline": {"side": ["reference"], "device": ["cpu"], "activations": ["f32"]},
        "candidate": {"side": ["engine"], "device": ["cpu"], "activations": ["f32"]},
        "same": "checkpoint",
        "known_differences": ["server_answer_shape", "null_state_refused"],
        "rows": [
            {
                "weights": ["F32"],
                "activations": ["f32"],
                "max_abs_error": 0.0001,
                "act_max_rel_dlogit": 0.0002,
                "citation": "Backend parity tiers v2, gate strict-f32 (2026-10-01)",
            }
        ],
    },
    "f16-class": {
        "rule": "statistical",
        "baseline": {"side": ["engine"], "device": ["cpu"]},
        "candidate": {"side": ["engine"], "activations": ["f32", "f16", "int8"]},
        "same": "model",
        "known_differences": ["server_no_act_head"],
        "rows": [
            {
                "weights": ["F16", "F32", "Q8_0"],
                "activations": ["f32", "f16"],
                "flip_max_gap": 0.009,
                "max_flip_fraction": 0.003,
                "max_abs_dp": 0.5,
                "mean_abs_dp": 0.002,
                "act_max_rel_dlogit": 0.2,
                "citation": "Backend parity tiers v2, f16-class (2026-10-01)",
            },
            {
                "weights": ["Q8_0"],
                "activations": ["int8"],
                "flip_max_gap": 0.4,
                "max_flip_fraction": 0.02,
                "max_abs_dp": 0.5,
                "mean_abs_dp": 0.005,
                "act_max_rel_dlogit": 0.3,
                "citation": "Backend parity tiers v2, f16-class, Q8_0 with quantized activations (2026-10-01)",
            },
        ],
    },
}


@dataclass(frozen=True)
class Row:
    """Bounds for runs with these weights and activations. pairs: of a derived row, what it was derived from."""

    weights: tuple[str, ...]
    activations: tuple[str, ...]
    bounds: Mapping[str, float]
    source: str
    citation: str
    pairs: tuple[Pair, ...]

    @property
    def name(self) -> str:
        return f"{'/'.join(self.weights)} weights, {'/'.join(self.activations)} activations"


@dataclass(frozen=True)
class Pair:
    """Two runs on the CPU, the baseline being the more exact. seen: the largest values of their comparison."""

    baseline: str
    candidate: str
    seen: Mapping[str, float]


@dataclass(frozen=True)
class Tier:
    """One tier. rule: "exact" or "statistical"; baseline, candidate: identity fields and the values they may have;
    same: what both runs must share, "checkpoint" (source digest) or "model" (GGUF).
    """

    name: str
    registered: bool
    rule: str
    baseline: Mapping[str, tuple[str, ...]]
    candidate: Mapping[str, tuple[str, ...]]
    same: str
    known_differences: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Tiers:
    """sha256: of the file, for the reports of the gates that used it."""

    path: Path
    version: int
    sha256: str
    tiers: Mapping[str, Tier]

    def __getitem__(self, name: str) -> Tier:
        if name not in self.tiers:
            raise UsageError(f"no tier is called {name!r:.40}", hint=f"tiers: {', '.join(self.tiers)}")
        return self.tiers[name]


def read_tiers(path: Path) -> Tiers:
    """Raises InputError naming the file and the field."""
    data = read_limited(path, _MAX_BYTES)
    try:
        content = strict_json.loads_strict(data)
    except RequestError as error:
        raise InputError(f"is no tiers file: {error.message}", where=str(path)) from None
    if not isinstance(content, dict):
        raise InputError("is no tiers file: it must be a JSON object", where=str(path))
    top = JsonObject(content, str(path), InputError)
    if top.text("schema") != SCHEMA:
        raise top.error("schema", f"is not {SCHEMA}")
    tiers = top.object("tiers")
    return Tiers(
        path,
        top.integer("version"),
        hashlib.sha256(data).hexdigest(),
        {name: _tier(name, tiers.object(name)) for name in tiers.values},
    )


def _tier(name: str, fields: JsonObject) -> Tier:
    status = _one_of(fields, "status", ("registered", "unregistered"))
    rule = _one_of(fields, "rule", tuple(BOUNDS))
    rows = [
        _row(fields.inside(row, f"rows[{n}]"), rule) if isinstance(row, dict) else _no_object(fields, f"rows[{n}]")
        for n, row in enumerate(fields.items("rows"))
    ]
    for n, row in enumerate(rows):
        for other in rows[:n]:
            if set(row.weights) & set(other.weights) and set(row.activations) & set(other.activations):
                raise fields.error(f"rows[{n}]", f"is for runs that another row is for: {other.name}")
    if (status == "registered") != bool(rows):
        raise fields.error("rows", f"must {'hold a row' if not rows else 'be empty'} for a tier that is {status}")
    known = _texts(fields, "known_differences")
    if unknown := sorted(set(known) - set(KNOWN_DIFFERENCES)):
        raise fields.error("known_differences", f"holds {unknown[0]!r:.60}, which is none")
    return Tier(
        name=name,
        registered=status == "registered",
        rule=rule,
        baseline=_wanted(fields.object("baseline")),
        candidate=_wanted(fields.object("candidate")),
        same=_one_of(fields, "same", ("checkpoint", "model")),
        known_differences=known,
        rows=tuple(rows),
    )


def _row(fields: JsonObject, rule: str) -> Row:
    bounds = {}
    for key in BOUNDS[rule]:
        bounds[key] = fields.number(key)
        if bounds[key] < 0:
            raise fields.error(key, "must not be negative")
    allowed = {"weights", "activations", "source", "citation", "pairs", *BOUNDS[rule]}
    if unknown := sorted(set(fields.values) - allowed):
        raise fields.error(unknown[0], "is no field of a row")
    source = _one_of(fields, "source", ("published", "derived"))
    pairs = []
    for n, pair in enumerate(fields.items("pairs") if "pairs" in fields.values else []):
        inside = fields.inside(pair, f"pairs[{n}]") if isinstance(pair, dict) else _no_object(fields, f"pairs[{n}]")
        seen = inside.object("seen")
        values = {key: seen.number(key) for key in seen.values}
        pairs.append(Pair(inside.text("baseline"), inside.text("candidate"), values))
    if (source == "derived") != bool(pairs):
        raise fields.error("pairs", "must name the runs of a derived row, and only of one")
    return Row(
        _texts(fields, "weights"),
        _texts(fields, "activations"),
        bounds,
        source,
        fields.text("citation", ""),
        tuple(pairs),
    )


def _wanted(fields: JsonObject) -> dict[str, tuple[str, ...]]:
    if unknown := sorted(set(fields.values) - _FIELDS):
        raise fields.error(unknown[0], "is no field that a tier looks at")
    return {key: _texts(fields, key) for key in fields.values}


def _texts(fields: JsonObject, key: str) -> tuple[str, ...]:
    values = fields.items(key)
    if not all(isinstance(value, str) for value in values):
        raise fields.error(key, "must be a list of texts")
    return tuple(values)


def _one_of(fields: JsonObject, key: str, choices: tuple[str, ...]) -> str:
    value = fields.text(key)
    if value not in choices:
        raise fields.error(key, f"must be one of {', '.join(choices)}, not {value!r:.40}")
    return value


def _no_object(fields: JsonObject, key: str) -> Any:
    raise fields.error(key, "must be an object")
