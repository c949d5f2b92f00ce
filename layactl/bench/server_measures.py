"""What a server costs beyond the engine: start to ready, first request, warm latency over HTTP, after idle, memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from layactl.bench.machine import memory
from layactl.bench.subjects import ServerSubject, engine_options
from layactl.bench.suite import SuiteRequest
from layactl.client.http_client import ServerClient
from layactl.client.spawned_server import spawned_server


def measure_server(
    job: dict[str, Any],
    request: SuiteRequest,
    *,
    starts: int,
    repeat: int,
    idle_ms: int,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Lists with one value a start, milliseconds and bytes: {"ready_ms", "first_ms", "warm_ms" (a list a start),
    "after_idle_ms", "rss_ready", "rss_end"}.

    Raises ModelLoadError, ServerError.
    """
    found: dict[str, Any] = {name: [] for name in ("ready_ms", "first_ms", "warm_ms", "after_idle_ms")}
    options = ["--alias", job["name"], "--allow-uncalibrated", *engine_options(job)]
    found |= {"rss_ready": [], "rss_end": [], "request": request.id}
    for _ in range(starts):
        with (
            spawned_server(Path(job["model"]), options) as server,
            ServerClient(server.url) as client,
        ):
            subject = ServerSubject(client.post, foreign=False)
            found["ready_ms"].append(server.ready_seconds * 1000.0)
            found["rss_ready"].append(memory(server.pid)["rss"])
            found["first_ms"].append(subject.ask(request).ms.get("total"))
            found["warm_ms"].append([subject.ask(request).ms.get("total") for _ in range(repeat)])
            if idle_ms:
                time.sleep(idle_ms / 1000.0)
                found["after_idle_ms"].append(subject.ask(request).ms.get("total"))
            found["rss_end"].append(memory(server.pid)["rss"])
        tick()
    return found
