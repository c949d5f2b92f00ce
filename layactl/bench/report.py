"""Results -> the tables of a report. A result that no parity gate covers shows no number."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from layactl.bench.kpi import Measurement, cpu_seconds, latency_rows, memory_row, phase_medians, quantile, ratio
from layactl.bench.load_run import LoadFile, load_table
from layactl.bench.parity_cover import Gate, refusal
from layactl.bench.subjects import PHASES
from layactl.errors import UsageError
from layactl.reporting.text_table import TextTable

UNGATED = "(ungated)"


@dataclass(frozen=True)
class Report:
    """shown: what may be told, with the name it is told under; refused: (label, why); tables: of the shown ones; loads:
    load runs that may be told.
    """

    shown: dict[str, Measurement]
    refused: list[tuple[str, str]]
    tables: list[TextTable]
    loads: list[LoadFile]

    def markdown(self) -> str:
        return "\n".join(table.markdown() for table in self.tables)


def build_report(
    measurements: Sequence[Measurement],
    gates: Sequence[Gate],
    *,
    reference: str | None,
    allow_ungated: bool,
    loads: Sequence[LoadFile] = (),
) -> Report:
    """reference: the label that ratios are against (None: the first peer, else the first of all); loads: load runs.

    Raises UsageError.
    """
    shown: dict[str, Measurement] = {}
    refused = []
    for measurement in measurements:
        reason = refusal(measurement.identity, gates)
        if reason is None:
            shown[measurement.label] = measurement
        elif allow_ungated:
            shown[f"{measurement.label} {UNGATED}"] = measurement
        else:
            refused.append((measurement.label, reason))
    if reference is not None and all(one.label != reference for one in measurements):
        raise UsageError(f"no configuration is called {reference!r:.80}", where="--ref")
    tables = [*_tables(shown, reference)] if shown else []
    shown_loads = []
    for load in loads:
        reason = refusal(load.identity, gates)
        if reason is None or allow_ungated:
            shown_loads.append(load)
            tables.append(load_table(load.cells, f"{load.path.name}: {load.verdict}{f' {UNGATED}' if reason else ''}"))
        else:
            refused.append((load.path.name, reason))
    if refused:
        tables.append(
            TextTable("Refused by the parity gate", ["configuration", "nearest reason"], [list(row) for row in refused])
        )
    return Report(shown, refused, tables, shown_loads)


def _tables(shown: dict[str, Measurement], reference: str | None) -> list[TextTable]:
    groups = list(dict.fromkeys(group for one in shown.values() for group in one.groups))
    tables = [_latency(shown, groups)]
    base = reference_of(shown, reference)
    if base is not None and len(shown) > 1:
        tables.append(_ratios(shown, groups, base))
    tables += [_phases(name, one) for name, one in shown.items() if one.identity.get("side") == "engine"]
    tables += [_resources(shown), *_same_outputs(shown), *_after_idle(shown)]
    return [*tables, *_servers(shown), *_throughput(shown)]


def reference_of(shown: dict[str, Measurement], reference: str | None) -> str | None:
    """The name that ratios are against; None where the one that was asked for is not shown."""
    if reference is not None:
        return next((name for name, one in shown.items() if one.label == reference), None)
    peers = [name for name, one in shown.items() if one.identity.get("side") != "engine"]
    return (peers or list(shown))[0]


def _latency(shown: dict[str, Measurement], groups: Sequence[str]) -> TextTable:
    cells = {name: dict(latency_rows(one)) for name, one in shown.items()}

    def cell(name: str, group: str) -> str:
        row = cells[name].get(group)
        return f"{row['p50']:.1f} / {row['p95']:.1f} / {row['p99']:.1f}" if row else _why_not(shown[name], group)

    rows = [[group, *(cell(name, group) for name in shown)] for group in groups]
    return TextTable("Latency per request, ms: p50 / p95 / p99", ["group", *shown], rows)


def _why_not(measurement: Measurement, group: str) -> str:
    if group not in measurement.groups:
        return "-"
    refusals = measurement.refusals(group)
    return refusals[0].partition(":")[0] if refusals else "-"


def _ratios(shown: dict[str, Measurement], groups: Sequence[str], base: str) -> TextTable:
    others = [name for name in shown if name != base]
    rows = []
    for group in groups:
        found = [ratio(shown[name], shown[base], group) for name in others]
        if any(found):
            rows.append(
                [group, *(f"{r.median:.2f}x ({r.low:.2f} - {r.high:.2f}, n={r.cycles})" if r else "-" for r in found)]
            )
    return TextTable(
        f"Speed against {base}",
        ["group", *others],
        rows,
        "p50 of the reference over p50 of the configuration, of the same cycle: median (smallest - largest). Above 1: "
        "faster.",
    )


def _phases(name: str, measurement: Measurement) -> TextTable:
    rows = []
    for group in measurement.groups:
        medians = phase_medians(measurement, group, PHASES)
        if medians:
            seconds = cpu_seconds(measurement, group)
            rows.append([group, *(f"{medians[phase]:.2f}" for phase in PHASES), f"{seconds:.3f}" if seconds else "-"])
    note = "tokenize is a pass of its own, and part of render."
    return TextTable(f"Phases of {name}, p50 in ms", ["group", *PHASES, "CPU s"], rows, note)


def _resources(shown: dict[str, Measurement]) -> TextTable:
    def median(values: Sequence[float | None], text: Callable[[float], str]) -> str:
        known = [value for value in values if value is not None]
        return text(statistics.median(known)) if known else "-"

    def mib(value: int | None) -> str:
        return f"{value / 2**20:.0f}" if value is not None else "-"

    rows = []
    for name, one in shown.items():
        blocks, resident = one.blocks, memory_row(one)
        foreign = [block["foreign_cores"] for block in blocks if block["foreign_cores"] is not None]
        deterministic = {True: "yes", False: "NO", None: "-"}[one.deterministic]
        disturbed = sum(block["disturbed"] is not None for block in blocks)
        rows.append(
            [
                name,
                median([block["load_ms"] for block in blocks], "{:.0f}".format),
                median([block["first_ms"] for block in blocks], "{:.1f}".format),
                f"{mib(resident['loaded'])} / {mib(resident['warm'])} / {mib(resident['peak'])}",
                deterministic,
                f"{max(foreign):.2f}" if foreign else "-",
                f"{len(one.record['blocks']) - len(blocks)}",
                f"{disturbed} of {len(blocks)}",
            ]
        )
    columns = ["configuration", "load ms", "first ms", "RSS MiB loaded / warm / peak", "same logits", "foreign cores"]
    note = "same logits: raw outputs bitwise equal in all repeats and blocks. disturbed: blocks that stayed so."
    return TextTable("Resources", [*columns, "measured again", "disturbed"], rows, note)


def _same_outputs(shown: dict[str, Measurement]) -> Iterator[TextTable]:
    """Configurations of one model file whose raw outputs can be held to each other: other threads, plans, kernels."""
    rows = []
    first: dict[str, tuple[str, Measurement]] = {}
    for name, one in shown.items():
        sha256 = (one.identity.get("model") or {}).get("sha256")
        if one.identity.get("side") != "engine" or sha256 is None:
            continue
        if sha256 not in first:
            first[sha256] = name, one
            continue
        base, other = first[sha256]
        pairs = [(logits, other.logits().get(i)) for i, logits in one.logits().items() if logits is not None]
        same = sum(a == b for a, b in pairs)
        rows.append([name, base, f"{same} of {len(pairs)}", "yes" if same == len(pairs) else "no"])
    if rows:
        columns = ["configuration", "against", "requests with the same bits", "all"]
        yield TextTable("Raw outputs between configurations", columns, rows)


def _after_idle(shown: dict[str, Measurement]) -> Iterator[TextTable]:
    groups = list(dict.fromkeys(group for one in shown.values() for group in one.groups))
    rows = []
    for group in groups:
        values = [idle_ratio(one, group) if group in one.groups else None for one in shown.values()]
        if any(value is not None for value in values):
            rows.append([group, *(f"{value:.2f}x" if value is not None else "-" for value in values)])
    if rows:
        yield TextTable("First request after the idle pause, against p50", ["group", *shown], rows)


def _servers(shown: dict[str, Measurement]) -> Iterator[TextTable]:
    def cell(values: Sequence[float | None], digits: int = 1) -> str:
        known = [value for value in values if value is not None]
        return f"{statistics.median(known):.{digits}f}" if known else "-"

    rows = []
    for name, one in shown.items():
        server = one.record.get("server")
        if not server:
            continue
        warm = [value for start in server["warm_ms"] for value in start if value is not None]
        inside = [ms for b in one.blocks for ms in b["requests"][server["request"]].get("ms", {}).get("total", ())]
        adds = f"{statistics.median(warm) - statistics.median(inside):+.2f}" if warm and inside else "-"
        rss = [f"{value / 2**20:.0f}" for value in server["rss_ready"][:1] if value]
        idle = cell(server["after_idle_ms"])
        ready, first = cell(server["ready_ms"], 0), cell(server["first_ms"])
        rows.append([name, ready, first, cell(warm), adds, idle, *(rss or ["-"])])
    if rows:
        columns = ["configuration", "start to ready ms", "first ms", "warm p50 ms", "HTTP adds ms", "after idle ms"]
        yield TextTable("Server", [*columns, "RSS MiB ready"], rows, "Medians over starts, over a Unix socket.")


def _throughput(shown: dict[str, Measurement]) -> Iterator[TextTable]:
    rows = []
    for name, one in shown.items():
        found = one.record.get("throughput")
        if found and not found["engine"]:
            rows.append([name, "too few rows to tell", "-", "-", "-"])
        elif found:
            seconds = statistics.median(found["engine"])
            rates = [f"{found[what] / seconds:,.1f}" for what in ("rows", "questions", "tokens")]
            rows.append([name, *rates, f"{found['ratio']:.2f}x" if found["ratio"] else "-"])
    if rows:
        columns = ["configuration", "rows/s", "questions/s", "tokens/s", "against laya"]
        note = "Tokenizing and writing included, the start not; laya: the faster of its predict loop and predict_batch."
        yield TextTable("decide --jsonl", columns, rows, note)


def idle_ratio(measurement: Measurement, group: str) -> float | None:
    """Time of the first request of a group after the idle pause, over its p50."""
    warm = measurement.times(group)
    values = [
        block["after_idle"][request_id]
        for block in measurement.blocks
        for request_id in measurement.groups[group]
        if block.get("after_idle", {}).get(request_id) is not None
    ]
    return statistics.median(values) / quantile(warm, 0.5) if values and warm else None
