"""What HTTP costs: a request to a server against the same call in process, and /health while the server is busy.

    python benchmarks/serve_overhead.py MODEL [--requests N] [--threads N]

The two are asked in turn, so that whatever else the machine does meets both. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import layactl
from layactl.client.http_client import SYSTEMONE, ServerClient
from layactl.client.spawned_server import spawned_server
from layactl.core import strict_json
from layactl.engine.request import parse_body, parse_request

BODY = {
    "state": "Billed twice this month for one seat, please refund the second charge to my card.",
    "questions": {"refund": {"type": "noul", "instructions": "Does the customer ask for money back?"}},
}
# Keeps a server busy from another process: this many clients with the longest requests it takes.
LOAD = """
import sys, threading
from layactl.client.http_client import SYSTEMONE, ServerClient
question = {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "technical", "other"]}
body = {"state": "the invoice was paid twice " * 400, "questions": {f"q{n}": question for n in range(8)}}
def ask():
    with ServerClient(sys.argv[1]) as client:
        while True:
            client.post(SYSTEMONE, body)
threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
for thread in threads: thread.start()
print("busy", flush=True)
sys.stdin.read()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="What HTTP costs.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    model = layactl.load(options.model, threads=options.threads)
    data = strict_json.dumps(BODY).encode()

    def here() -> None:
        request = parse_request(parse_body(data), model.layout, model.spec)
        strict_json.dumps(model.respond(request)).encode()

    with (
        spawned_server(options.model, ["--threads", str(options.threads), "--queue", "16"]) as server,
        ServerClient(server.url) as client,
    ):
        for _ in range(50):
            here(), client.post(SYSTEMONE, BODY)
        inside, outside = [], []
        for _ in range(options.requests):
            inside.append(timed(here))
            outside.append(timed(lambda: client.post(SYSTEMONE, BODY)))
        idle = [timed(lambda: client.get("/health")) for _ in range(options.requests)]
        load = subprocess.Popen(
            [sys.executable, "-c", LOAD, server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert load.stdin is not None and load.stdout is not None
        load.stdout.readline()
        time.sleep(1.0)
        busy = []
        for _ in range(options.requests):
            busy.append(timed(lambda: client.get("/health")))
            time.sleep(0.005)
        load.stdin.close()
        load.kill()
        load.wait()
    rows = {"in process": inside, "over HTTP": outside, "/health, idle": idle, "/health, busy": busy}
    print(f"{'ms':16}{'p50':>8}{'p95':>8}{'p99':>8}")
    for name, values in rows.items():
        print(f"{name:16}" + "".join(f"{quantile(values, q):8.2f}" for q in (0.5, 0.95, 0.99)))
    overhead = quantile(outside, 0.5) - quantile(inside, 0.5)
    print(f"HTTP adds {overhead:.2f} ms at the median")
    print(json.dumps({"overhead_p50_ms": overhead, "health_busy_p95_ms": quantile(busy, 0.95)}))


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000.0


def quantile(values: list[float], q: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[round(q * 1000) - 1]


if __name__ == "__main__":
    main()
