"""Counters of the decision routes, in Prometheus' text format.

Every request to a decision route ends in exactly one of: answered, errors, rejected (429), cancelled (the client left,
or the server stopped); their sum is the number of requests. Names of the specification (Info routes, GET /metrics), so
that dashboards made for it keep working, and the histogram it lacks.
"""

from __future__ import annotations

import threading
from typing import Any

_PREFIX = "llamacpp:decision_"
_COUNTERS = {
    "requests": "Requests to a decision route.",
    "answered": "Requests answered with a result.",
    "errors": "Requests refused or failed.",
    "rejected": "Requests refused because too many were waiting.",
    "cancelled": "Requests whose client left, or that the server's stop ended.",
    "items": "Questions and candidates computed.",
    "tokens": "Tokens computed.",
    "compute_seconds": "Time in forward passes.",
}
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = dict.fromkeys(_COUNTERS, 0)
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0

    def ended(self, outcome: str) -> None:
        """One request came to its end. outcome: "errors", "rejected" or "cancelled"."""
        with self._lock:
            self._counts["requests"] += 1
            self._counts[outcome] += 1

    def answered(self, response: dict[str, Any], seconds: float) -> None:
        """One request was answered. seconds: from its first byte to its answer."""
        usage = response["usage"]
        with self._lock:
            self._counts["requests"] += 1
            self._counts["answered"] += 1
            self._counts["items"] += len(response.get("answers", response.get("scores", ())))
            self._counts["tokens"] += usage.get("evaluated_tokens", usage["input_tokens"])
            self._counts["compute_seconds"] += response["timings"]["compute_ms"] / 1000.0
            self._buckets[sum(seconds > bound for bound in _BOUNDS)] += 1
            self._seconds += seconds

    def text(self, *, waiting: int, running: int) -> str:
        """The exposition. waiting, running: jobs in the queue and on the worker."""
        with self._lock:
            counts, buckets, seconds = dict(self._counts), list(self._buckets), self._seconds
        lines = []
        for name, meaning in _COUNTERS.items():
            metric = f"{_PREFIX}{name}_total"
            lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} counter", f"{metric} {counts[name]}"]
        gauges = (
            ("queue_waiting", "Requests waiting for the worker.", waiting),
            ("running", "Requests that the worker computes.", running),
        )
        for name, meaning, value in gauges:
            gauge = f"{_PREFIX}{name}"
            lines += [f"# HELP {gauge} {meaning}", f"# TYPE {gauge} gauge", f"{gauge} {value}"]
        histogram = f"{_PREFIX}latency_seconds"
        lines += [f"# HELP {histogram} Time from a request to its answer.", f"# TYPE {histogram} histogram"]
        total = 0
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), buckets, strict=True):
            total += count
            lines.append(f'{histogram}_bucket{{le="{bound}"}} {total}')
        lines += [f"{histogram}_sum {seconds}", f"{histogram}_count {total}"]
        return "\n".join(lines) + "\n"
