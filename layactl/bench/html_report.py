"""The report as one self-contained page: tables, latency by length, ratios, memory by phase, load curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from layactl.bench.kpi import Measurement, memory_row, quantile, ratio
from layactl.bench.load_run import LoadFile
from layactl.bench.report import Report, reference_of
from layactl.reporting.html_page import Html, facts, figures, page, paragraph, section, table
from layactl.reporting.svg_plot import SERIES, Plot

_PHASES = ("start", "loaded", "warm", "end")


def html_report(report: Report, *, reference: str | None, foot: str) -> Html:
    """foot: who made it."""
    blocks = []
    if report.shown:
        first = next(iter(report.shown.values()))
        blocks.append(section("Machine", [facts(_machine(first))]))
    plots = [*_plots(report.shown, reference), *_load_plots(report.loads)]
    if plots:
        blocks.append(section("Plots", [figures(plots)]))
    if report.tables:
        blocks.append(section("Tables", [table(one) for one in report.tables]))
    if not report.shown and not report.loads:
        blocks.insert(0, paragraph("No result is covered by a passing parity gate: there is no number to show."))
    return page("Benchmark", blocks, foot=foot)


def _machine(measurement: Measurement) -> dict[str, str]:
    machine, versions = measurement.record["machine"], measurement.identity.get("versions", {})
    sets = machine.get("instruction_sets")
    found = {
        "CPU": machine.get("cpu"),
        "cores": f"{machine.get('physical_cores')} physical, {machine.get('cpus')} CPUs of this process",
        "instruction sets": ", ".join(sets) if isinstance(sets, list) else None,
        "governor": machine.get("governor"),
        "cgroup": ", ".join(f"{name} {limit}" for name, limit in machine.get("cgroup", {}).items() if limit),
        "load before": machine.get("load_average"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


def _plots(shown: dict[str, Measurement], reference: str | None) -> Iterator[tuple[str, str]]:
    if not shown:
        return
    yield from _by_length(shown)
    base = reference_of(shown, reference)
    if base is not None and len(shown) > 1:
        for name, one in shown.items():
            if name != base:
                yield from _ratio_bars(name, one, shown[base], base)
    yield from _memory(shown)


def _by_length(shown: dict[str, Measurement]) -> Iterator[tuple[str, str]]:
    """p50 of every request against the tokens that it computes; a peer is asked the same requests."""
    tokens: dict[str, int] = {}
    for one in shown.values():
        for block in one.blocks:
            tokens |= {i: row["tokens"] for i, row in block["requests"].items() if row.get("tokens")}
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, one in shown.items():
        points = []
        for request_id, count in tokens.items():
            rows = [block["requests"].get(request_id, {}) for block in one.blocks]
            values = [ms for row in rows for ms in row.get("ms", {}).get("total", ())]
            if values:
                points.append((float(count), quantile(values, 0.5)))
        if points:
            lines[name] = sorted(points)
    if not lines:
        return
    x = max(point[0] for points in lines.values() for point in points)
    y = max(point[1] for points in lines.values() for point in points)
    plot = Plot("Latency by length", "tokens of a request", "p50 ms", (0.0, x * 1.05), (0.0, y * 1.1), width=480)
    for series, (name, points) in zip(SERIES * len(lines), lines.items(), strict=False):
        plot.line(points, series)
        plot.points(points, series, tips=[f"{name}: {t:.0f} tokens, {ms:.1f} ms" for t, ms in points], name=name)
    yield plot.svg(), "One dot a request of the suite, all its forward passes together."


def _ratio_bars(name: str, one: Measurement, reference: Measurement, base: str) -> Iterator[tuple[str, str]]:
    found = [(group, r) for group in one.groups if (r := ratio(one, reference, group)) is not None]
    if not found:
        return
    top = max(1.2, *(r.high for _, r in found)) * 1.15
    width = max(360, 70 * len(found) + 70)
    span = (0.0, float(len(found)))
    plot = Plot(f"{name} against {base}", "", "times faster", span, (0.0, top), width=width, x_ticks=())
    bars = [(n + 0.15, n + 0.85, r.median) for n, (_, r) in enumerate(found)]
    plot.bars(bars, SERIES[0], labels=[f"{r.median:.2f}x" for _, r in found])
    for n, (_, r) in enumerate(found):
        plot.line([(n + 0.5, r.low), (n + 0.5, r.high)], SERIES[1])
    plot.line([(0.0, 1.0), (span[1], 1.0)], SERIES[5], dashed=True)
    yield (
        plot.svg(),
        "Bars: median over cycles; lines: smallest to largest; dashed: as fast. From the left: "
        + ", ".join(group for group, _ in found)
        + ".",
    )


def _memory(shown: dict[str, Measurement]) -> Iterator[tuple[str, str]]:
    rows = {name: memory_row(one) for name, one in shown.items()}
    rows = {name: row for name, row in rows.items() if all(row[phase] for phase in _PHASES)}
    if not rows:
        return
    top = max(float(row["peak"] or row["end"] or 0) for row in rows.values()) / 2**20 * 1.1
    plot = Plot("Memory by phase", "start, loaded, warm, end", "RSS MiB", (-0.3, 3.3), (0.0, top), x_ticks=())
    for series, (name, row) in zip(SERIES * len(rows), rows.items(), strict=False):
        points = [(float(n), (row[phase] or 0) / 2**20) for n, phase in enumerate(_PHASES)]
        plot.line(points, series)
        tips = [f"{name}, {phase}: {mib:.0f} MiB" for phase, (_, mib) in zip(_PHASES, points, strict=True)]
        plot.points(points, series, tips=tips, name=name)
    yield plot.svg(), "Resident memory when a block's process had its libraries, its model, a round, and at the end."


def _load_plots(loads: Sequence[LoadFile]) -> Iterator[tuple[str, str]]:
    for load in loads:
        cells = [cell for cell in load.cells if cell.get("p95_ms") is not None]
        if not cells:
            continue
        x, y = max(cell["rate"] for cell in cells), max(cell["p99_ms"] for cell in cells)
        plot = Plot("Open-loop load", "requests a second", "ms", (0.0, x * 1.1), (0.0, y * 1.1), width=480)
        for series, name in zip(SERIES, ("p50", "p95", "p99"), strict=False):
            points = [(cell["rate"], cell[f"{name}_ms"]) for cell in cells]
            plot.line(points, series)
            tips = [
                f"{cell['rate']:g} a second: {name} {cell[f'{name}_ms']:.1f} ms"
                + (", saturated" if cell["saturated"] else "")
                for cell in cells
            ]
            plot.points(points, series, tips=tips, name=name)
        saturated = [f"{cell['rate']:g}" for cell in cells if cell["saturated"]]
        text = f"{load.path.name}: latency from the scheduled arrival; verdict {load.verdict}."
        yield plot.svg(), text + (f" Saturated at {', '.join(saturated)} a second." if saturated else "")
