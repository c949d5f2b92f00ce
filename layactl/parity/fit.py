"""Do the identities of two runs fit a tier? (specification, Backend parity tiers, Identity)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from layactl.parity.tiers import Row, Tier
from layactl.reporting.identity import FORMAT

# Between runs of one model, what else decides the public numbers.
_SHARED_BY_ENGINES = ("spec_sha256", "limits")


def pick_row(tier: Tier, candidate: Mapping[str, Any], weights: str | None) -> tuple[Row | None, list[str]]:
    """The row of the candidate's weights and activations, and why it may not be the right one.

    weights: asked for by name; it must be what the candidate records.
    """
    recorded, activations = model_of(candidate).get("weights"), candidate.get("activations")
    problems = []
    if weights is not None and weights.upper() != recorded:
        problems.append(f"the candidate's weights are {recorded}, not {weights.upper()}")
    wanted = weights.upper() if weights else recorded
    for row in tier.rows:
        if wanted in row.weights and activations in row.activations:
            return row, problems
    if tier.rows:
        problems.append(f"the tier has no row for {wanted} weights and {activations} activations")
        return tier.rows[0], problems
    return None, problems


def mismatches(tier: Tier, baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[str]:
    """Every reason for which the gate refuses the pair, in words; empty for a pair that fits."""
    return list(_mismatches(tier, baseline, candidate))


def _mismatches(tier: Tier, baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> Iterator[str]:
    for field in ("sha256", "subset"):
        b, c = _text(_object(baseline, "corpus"), field), _text(_object(candidate, "corpus"), field)
        if b != c or b is None:
            yield f"the runs asked different items: corpus {field} {b} and {c}"
    for name, identity, wanted in (("baseline", baseline, tier.baseline), ("candidate", candidate, tier.candidate)):
        if identity.get("format") != FORMAT:
            yield f"the {name}'s identity has another format: {identity.get('format')!s:.40}"
        for field, values in wanted.items():
            if identity.get(field) not in values:
                verb = "are" if field.endswith("s") else "is"
                needed = " or ".join(values)
                yield f"the {name}'s {field} {verb} {identity.get(field)!s:.40}; {tier.name} needs {needed}"
    if tier.same == "checkpoint":
        yield from _same_checkpoint(baseline, candidate)
    else:
        yield from _same_model(baseline, candidate)


def _same_checkpoint(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> Iterator[str]:
    b, c = _text(model_of(baseline), "source_sha256"), _text(model_of(candidate), "source_sha256")
    if c is None:
        yield "the candidate's GGUF does not say which checkpoint it was made of (layactl.source.sha256)"
    elif b != c:
        yield f"the candidate was made of another checkpoint: source digest {c}, the baseline ran {b}"


def _same_model(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> Iterator[str]:
    b, c = _text(model_of(baseline), "sha256"), _text(model_of(candidate), "sha256")
    if b != c or b is None:
        yield f"the runs used different files: model sha256 {b} and {c}"
    for field in _SHARED_BY_ENGINES:
        if baseline.get(field) != candidate.get(field):
            yield f"the runs differ in {field}"
    quantized = candidate.get("activations") == "int8"
    if quantized and (candidate.get("kernels"), "int8") != (baseline.get("kernels"), baseline.get("activations")):
        yield "the candidate quantizes activations: its baseline must run the same kernels"
    if not quantized and baseline.get("activations") != "f32":
        yield f"the baseline's activations are {baseline.get('activations')}, not f32"


def model_of(identity: Mapping[str, Any]) -> Mapping[str, Any]:
    """The "model" of an identity, empty where it has none."""
    return _object(identity, "model")


def _object(identity: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = identity.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    return value if isinstance(value, str) and value else None
