"""A load run: a server of our own or a running one, rate after rate, and its verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.bench.load import Ask, Cell, run_cell
from layactl.bench.load_rule import LoadRule, Verdict, judge
from layactl.bench.machine import machine_record
from layactl.bench.subjects import engine_options
from layactl.bench.suite import SYSTEMONE, SuiteRequest
from layactl.client.http_client import ROUTER_SCORE, ServerClient
from layactl.client.http_client import SYSTEMONE as SYSTEMONE_ROUTE
from layactl.client.spawned_server import spawned_server
from layactl.core import strict_json
from layactl.durable import read_limited
from layactl.errors import InputError, RequestError
from layactl.reporting.identity import source_manifest
from layactl.reporting.record_stream import file_sha256
from layactl.reporting.text_table import TextTable

FORMAT = "layactl.load/1"
# The backlog is to be seen, not refused.
_QUEUE = "10000"
_WARM_UP = 3
_MAX_BYTES = 2**24


@dataclass(frozen=True)
class LoadTarget:
    """model: a GGUF that a server of our own serves; else url: of a running one."""

    model: Path | None
    url: str | None
    api_key: str | None
    threads: int | None
    kernels: str | None

    @contextmanager
    def opened(self) -> Iterator[str]:
        """Yields the URL. Raises ModelLoadError."""
        if self.model is None:
            assert self.url is not None
            yield self.url
            return
        engine = engine_options({"threads": self.threads, "kernels": self.kernels})
        options = ["--queue", _QUEUE, "--allow-uncalibrated", *engine]
        with spawned_server(self.model, options) as server:
            yield server.url


def _identity(target: LoadTarget, props: dict[str, Any]) -> dict[str, Any]:
    """What a parity gate covers of a server of our own; {} for one whose model nobody knows."""
    if target.model is None:
        return {}
    plan = props["decision"]["plan"]
    return {
        "side": "engine",
        "model": {"sha256": file_sha256(target.model)},
        "source_manifest": source_manifest(),
        "kernels": plan["kernels"],
        "precision": plan["precision"],
    }


@dataclass(frozen=True)
class LoadResult:
    cells: list[Cell]
    rule: LoadRule | None
    verdict: Verdict | None
    record: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            **self.record,
            "rule": self.rule.to_json() if self.rule else None,
            "cells": [cell.to_json() for cell in self.cells],
            **(self.verdict.to_json() if self.verdict else {"verdict": None}),
        }


def run_load(
    target: LoadTarget,
    request: SuiteRequest,
    rates: Sequence[float],
    seconds: float,
    seed: int,
    rule: LoadRule | None,
    tell: Callable[[str], None] = lambda text: None,
) -> LoadResult:
    """Offer each rate for `seconds`, one after the other. Raises ModelLoadError, ServerError."""
    route = SYSTEMONE_ROUTE if request.endpoint == SYSTEMONE else ROUTER_SCORE
    with ExitStack() as stack:
        url = stack.enter_context(target.opened())

        @contextmanager
        def connect() -> Iterator[Ask]:
            # Without patience: a refusal is a result here.
            with ServerClient(url, api_key=target.api_key, patience=0.0) as client:
                yield lambda: client.post(route, request.body)

        with ServerClient(url, api_key=target.api_key) as client:
            props = client.props()
            for _ in range(_WARM_UP):
                client.post(route, request.body)
        machine = machine_record()
        cells = []
        for rate in rates:
            tell(f"{rate:g} requests a second for {seconds:g} s")
            cells.append(run_cell(rate, seconds, seed, connect))
    record = {"request": request.id, "seed": seed, "machine": machine, "props": props}
    record["identity"] = _identity(target, props)
    verdict = judge(rule, cells, props) if rule else None
    return LoadResult(cells, rule, verdict, record)


def load_table(cells: Sequence[dict[str, Any]], title: str = "") -> TextTable:
    """cells: as `Cell.to_json` writes them."""

    def text(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    rows = [
        [
            f"{cell['rate']:g}",
            *(f"{cell[name]:,}" for name in ("sent", "answered", "rejected", "errors")),
            *(text(cell[f"{name}_ms"]) for name in ("p50", "p95", "p99")),
            "SATURATED" if cell["saturated"] else f"{cell['drained']:.1f}",
        ]
        for cell in cells
    ]
    columns = ["rate /s", "sent", "answered", "rejected", "failed", "p50 ms", "p95 ms", "p99 ms", "drained after s"]
    name = f"Open-loop load, {title}" if title else "Open-loop load"
    return TextTable(name, columns, rows, "Latency from the scheduled arrival.")


@dataclass(frozen=True)
class LoadFile:
    """A written result. cells: as `Cell.to_json` wrote them; identity: {} for a server whose model nobody knows."""

    path: Path
    cells: list[dict[str, Any]]
    identity: dict[str, Any]
    verdict: str


def read_loads(folder: Path) -> list[LoadFile]:
    """The load runs among the JSON files of a folder. Raises InputError naming the file."""
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else [folder]:
        try:
            record = strict_json.loads_strict(read_limited(path, _MAX_BYTES))
        except RequestError as error:
            raise InputError(error.message, where=str(path)) from None
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            continue
        load = LoadFile(path, record.get("cells", []), record.get("identity") or {}, str(record.get("verdict")))
        try:
            load_table(load.cells)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError("is no whole result of a load run", where=str(path)) from None
        found.append(load)
    return found
