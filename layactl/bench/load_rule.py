"""The rule a load run is judged by, fixed in a file before the run (specification of the gate: "Pre-registered decision
rule").

A run is judged only where it is what the rule asks for; flags can take it out of the rule, never change the rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.bench.load import Cell
from layactl.core import strict_json
from layactl.durable import read_limited
from layactl.errors import InputError, RequestError

FORMAT = "layactl.load-rule/1"
PASS, FAIL, NOT_A_GATE_RUN = "pass", "fail", "not_a_gate_run"
_MAX_BYTES = 2**16


@dataclass(frozen=True)
class LoadRule:
    """rates: requests a second that all must pass; seconds: of each, at least; budget_ms: what the quantile may take;
    kernels, threads: what the server must run, None for any.
    """

    rates: tuple[float, ...]
    seconds: float
    budget_ms: float
    quantile: float
    kernels: str | None
    threads: int | None
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def read_rule(path: Path) -> LoadRule:
    """Raises InputError naming the field."""
    data = read_limited(path, _MAX_BYTES)
    try:
        value = strict_json.loads_strict(data)
    except RequestError as error:
        raise InputError(error.message, where=str(path)) from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise InputError(f"is no rule for a load run (format {FORMAT})", where=str(path))
    unknown = set(value) - {"format", "rates", "seconds", "budget_ms", "quantile", "kernels", "threads"}
    if unknown:
        raise InputError(f"the rule has no field {min(unknown)!r:.40}", where=str(path))
    rates = value.get("rates")
    if not isinstance(rates, list) or not rates or not all(_positive(rate) for rate in rates):
        raise InputError("rates must be a list of requests a second", where=str(path))
    for name in ("seconds", "budget_ms"):
        if not _positive(value.get(name)):
            raise InputError(f"{name} must be a positive number", where=str(path))
    q = value.get("quantile", 0.95)
    if not _positive(q) or q >= 1:
        raise InputError("quantile must be between 0 and 1", where=str(path))
    kernels, threads = value.get("kernels"), value.get("threads")
    if kernels is not None and not isinstance(kernels, str):
        raise InputError("kernels must be a name", where=str(path))
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise InputError("threads must be a number of threads", where=str(path))
    return LoadRule(
        tuple(float(rate) for rate in rates),
        float(value["seconds"]),
        float(value["budget_ms"]),
        float(q),
        kernels,
        threads,
        hashlib.sha256(data).hexdigest(),
    )


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e6


@dataclass(frozen=True)
class Verdict:
    """word: pass, fail or not_a_gate_run; reasons: why it is not a pass."""

    word: str
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.word, "reasons": list(self.reasons)}


def judge(rule: LoadRule, cells: Sequence[Cell], props: dict[str, Any]) -> Verdict:
    """props: of the server, which says what it runs."""
    plan = props.get("decision", {}).get("plan", {})
    deviations = [f"no cell at {rate:g} a second" for rate in rule.rates if all(c.rate != rate for c in cells)]
    deviations += [
        f"the cell at {cell.rate:g} a second took {cell.seconds:g} s, less than {rule.seconds:g}"
        for cell in cells
        if cell.rate in rule.rates and cell.seconds < rule.seconds
    ]
    for name, wanted, key in (("kernels", rule.kernels, "kernels"), ("threads", rule.threads, "n_threads")):
        if wanted is not None and plan.get(key) != wanted:
            deviations.append(f"{name} {plan.get(key)}, and not {wanted}")
    if deviations:
        return Verdict(NOT_A_GATE_RUN, tuple(deviations))
    failures = [text for cell in cells if cell.rate in rule.rates for text in _failures(rule, cell)]
    return Verdict(FAIL if failures else PASS, tuple(failures))


def _failures(rule: LoadRule, cell: Cell) -> list[str]:
    where = f"at {cell.rate:g} a second"
    if cell.saturated:
        return [f"{where}: saturated"]
    reasons = [f"{where}: {cell.rejected} rejected"] if cell.rejected else []
    reasons += [f"{where}: {cell.errors} failed"] if cell.errors else []
    found = cell.quantile(rule.quantile)
    if found is None:
        return [*reasons, f"{where}: nothing was answered"]
    if found > rule.budget_ms:
        reasons.append(f"{where}: p{rule.quantile * 100:g} {found:.1f} ms, over {rule.budget_ms:g}")
    return reasons
