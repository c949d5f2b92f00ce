"""Open-loop load: the schedule does not wait for the server, and a verdict follows from a rule that was there first."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from layactl.bench.load import Ask, Cell, arrivals, run_cell
from layactl.bench.load_rule import judge, read_rule
from layactl.errors import InputError, RequestError

RULE = {"format": "layactl.load-rule/1", "rates": [5, 20], "seconds": 10, "budget_ms": 100}


def connected(ask: Ask) -> Callable[[], AbstractContextManager[Ask]]:
    @contextmanager
    def connect() -> Iterator[Ask]:
        yield ask

    return connect


def test_arrivals_are_a_poisson_process_drawn_from_the_seed():
    times = list(arrivals(50.0, 200.0, seed=1))
    assert times == list(arrivals(50.0, 200.0, seed=1)) != list(arrivals(50.0, 200.0, seed=2))
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    count, mean = len(gaps), sum(gaps) / len(gaps)
    # Ten standard errors of the mean of an exponential variable, and of its standard deviation.
    assert abs(mean - 0.02) < 10 * 0.02 / math.sqrt(count)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / count)
    assert abs(deviation - 0.02) < 10 * 0.02 / math.sqrt(count)


def test_a_latency_counts_from_the_scheduled_arrival():
    import threading

    one_at_a_time = threading.Lock()

    def ask() -> None:
        with one_at_a_time:
            time.sleep(0.05)

    cell = run_cell(40.0, 1.0, 3, connected(ask))
    # Twenty a second are served where forty arrive: the last ones have waited for all before them.
    assert cell.sent == len(list(arrivals(40.0, 1.0, 3))) == len(cell.latencies)
    assert max(cell.latencies) > 300.0
    assert cell.latencies == sorted(cell.latencies)


def test_a_backlog_that_is_not_gone_by_twice_the_time_is_saturation():
    import threading

    one_at_a_time = threading.Lock()

    def ask() -> None:
        with one_at_a_time:
            time.sleep(0.1)

    cell = run_cell(50.0, 0.5, 1, connected(ask))
    assert cell.saturated
    assert cell.drained > 1.0


def test_refusals_and_failures_are_counted_apart():
    outcomes = iter([429, 500] * 1000)

    def ask() -> None:
        raise RequestError("X", "x", code=next(outcomes))

    cell = run_cell(100.0, 0.3, 2, connected(ask))
    assert cell.rejected + cell.errors == cell.sent > 5
    assert abs(cell.rejected - cell.errors) <= 1
    assert cell.quantile(0.95) is None


def cell(rate: float, p95: float = 50.0, **more: Any) -> Cell:
    values = {"seconds": 10.0, "sent": 3, "rejected": 0, "errors": 0, "saturated": False, "drained": 10.0, **more}
    return Cell(rate=rate, latencies=[p95] * 3, **values)


def props(kernels: str = "onednn", threads: int = 2) -> dict[str, Any]:
    return {"decision": {"plan": {"kernels": kernels, "n_threads": threads}}}


VERDICTS = {
    "every cell within the budget": ({}, [cell(5), cell(20)], "pass", ""),
    "a slow cell": ({}, [cell(5), cell(20, 150.0)], "fail", "p95 150.0 ms, over 100"),
    "a saturated cell": ({}, [cell(5), cell(20, saturated=True)], "fail", "saturated"),
    "a rejected request": ({}, [cell(5), cell(20, rejected=1)], "fail", "1 rejected"),
    "a failed request": ({}, [cell(5, errors=2), cell(20)], "fail", "2 failed"),
    "a rate too few": ({}, [cell(5)], "not_a_gate_run", "no cell at 20"),
    "too short a time": ({}, [cell(5), cell(20, seconds=9.0)], "not_a_gate_run", "less than 10"),
    "other kernels": ({"kernels": "reference"}, [cell(5), cell(20)], "not_a_gate_run", "kernels onednn"),
    "other threads": ({"threads": 8}, [cell(5), cell(20)], "not_a_gate_run", "threads 2"),
    "a slow cell the rule does not ask for": ({}, [cell(5), cell(20), cell(80, 900.0)], "pass", ""),
    "no gate run however slow": ({}, [cell(5, 900.0)], "not_a_gate_run", "no cell at 20"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_follows_from_the_rule_alone(name: str, tmp_path: Path):
    changes, cells, word, reason = VERDICTS[name]
    path = tmp_path / "rule.json"
    path.write_text(json.dumps(RULE | changes))
    verdict = judge(read_rule(path), cells, props())
    assert verdict.word == word
    assert bool(verdict.reasons) == (word != "pass")
    assert reason in " ".join(verdict.reasons)


BAD = {
    "another format": {"format": "x"},
    "no rates": {"rates": []},
    "a rate of nothing": {"rates": [0]},
    "a rate that is text": {"rates": ["5"]},
    "no budget": {"budget_ms": None},
    "a budget below nothing": {"budget_ms": -1},
    "a quantile of one": {"quantile": 1},
    "threads that are none": {"threads": 0},
    "a field nobody knows": {"target_ms": 5},
}


@pytest.mark.parametrize("name", BAD)
def test_a_rule_that_says_nothing_certain_is_refused(name: str, tmp_path: Path):
    path = tmp_path / "rule.json"
    path.write_text(json.dumps(RULE | BAD[name]))
    with pytest.raises(InputError):
        read_rule(path)
