"""The engine against the reference package (and a llama-server), request by request in one interleaved run.

    python benchmarks/engine_speed.py CHECKPOINT MODEL.gguf [--repeat 7] [--kernels onednn --kernels onednn-bf16]
        [--threads 2] [--peer-bf16] [--llama-server BINARY --llama-model MODEL.gguf]

Requests: 1 question at about 220, 480 and 950 tokens, 5 questions at about 210 and 470 tokens each (fewer where the
model's limit is lower). Every repeat asks every configuration every request, in an order that turns from repeat to
repeat; times are p50 in ms, ratios are the median of the ratios of single repeats, with their smallest and largest.
`ms_per_token`: of one question alone, by its length.
`roofline`: operations of the linear layers really needed, over time, over the best rate of the same precision that
products of this model's shapes reach in the same run. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from layactl.bench.llama_server import running_llama_server
from layactl.client.http_client import SYSTEMONE, ServerClient

SENTENCE = (
    "the invoice from march was wrong and the parcel came late again please help me with this order before friday "
    "because nobody answered my second message about the missing refund"
)
WORDS = SENTENCE.split()
# As an object, because llama-server takes no list.
CHOICE = {
    "type": "choice",
    "instructions": "Which team takes this?",
    "criteria": {"billing": "", "shipping": "", "other": ""},
}
Ask = Callable[[dict[str, Any]], Any]


def request(tokens: int, questions: int, count: Callable[[dict[str, Any]], int], limit: int) -> dict[str, Any]:
    """About so many tokens a question, by adding words."""
    asked = {f"q{n}": {**CHOICE, "instructions": f"{CHOICE['instructions']} ({n})"} for n in range(questions)}
    body: dict[str, Any] = {"state": "", "questions": asked}
    words = 0
    while count(body) < min(tokens, limit) * questions:
        words += max(1, words // 20)
        body["state"] = " ".join(WORDS[n % len(WORDS)] for n in range(words))
    return body


def linear_operations(model: Any, tokens: list[int], rows: list[int]) -> float:
    """Operations of the linear layers of these sequences, the last head layer only where it is read."""
    shape = model.shape
    d, f = shape.encoder.hidden, shape.encoder.ffn
    total = 0.0
    for length, read in zip(tokens, rows, strict=True):
        total += shape.encoder.layers * 2 * length * (4 * d * d + 3 * d * f)
        for n in range(shape.head.layers):
            last = n == shape.head.layers - 1
            total += 2 * length * 3 * d * d + 2 * (read if last else length) * (d * d + 8 * d * d)
    return total


def best_rate(kernels: Any, d: int, f: int, rows: int = 481) -> float:
    """GFLOP/s of the fastest product of this model's shapes, weights as the kernel packs them: one product again and
    again, so that its weights are in the caches, which in a pass they are not.
    """
    import numpy as np
    import torch

    generator = np.random.default_rng(0)
    best = 0.0
    for width, out in ((d, 3 * d), (d, f), (f, d), (d, 4 * d)):
        product = kernels._product(generator.standard_normal((out, width), dtype=np.float32), None)
        x = torch.randn((rows, width)).to(kernels._operand)
        with torch.inference_mode():
            for _ in range(12):
                start = time.perf_counter()
                product(x)
                best = max(best, 2 * rows * width * out / (time.perf_counter() - start) / 1e9)
    return best


def reference(checkpoint: Path, threads: int, bf16: bool, stack: ExitStack) -> Ask:
    from layactl.reference.reference_model import ReferenceModel

    model = ReferenceModel(checkpoint, Path(stack.enter_context(TemporaryDirectory())), threads=threads)
    if bf16:
        model.reduce_precision()
    return lambda body: model.agent.system_one(body["state"], body["questions"])


def llama_server(binary: Path, model: Path, threads: int, stack: ExitStack) -> Ask:
    """A stock llama-server, which answers decisions itself; it ends with the stack."""
    url = stack.enter_context(running_llama_server(binary, model, threads))
    client = stack.enter_context(ServerClient(url, timeout=120.0))
    return lambda body: client.post(SYSTEMONE, body)


def growth(model: Any, count: Callable[[dict[str, Any]], int]) -> dict[int, float]:
    """Milliseconds a token of one question, by its length in tokens."""
    found = {}
    for tokens in (64, 128, 256, 512, 1024):
        if tokens > model.limits.max_len:
            break
        body = request(tokens, 1, count, model.limits.max_len)
        times = []
        for _ in range(6):
            start = time.perf_counter()
            model.decide(body["state"], body["questions"])
            times.append(time.perf_counter() - start)
        length = count(body)
        found[length] = round(statistics.median(times[1:]) * 1000 / length, 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the engine against its peers.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--kernels", action="append")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-bf16", action="store_true")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--llama-model", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        print(json.dumps(measure(options, stack)))


def measure(options: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    # As the command does for itself: threads that spin for long would slow down the peers beside them.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

    import torch

    from layactl.engine.model import Model
    from layactl.gguf_file.dialect import read_model
    from layactl.gguf_file.reader import GgufFile
    from layactl.kernels.choose import choose_kernels

    torch.set_num_threads(options.threads)
    shape = read_model(GgufFile(options.model)).shape
    names = options.kernels or ["onednn", "onednn-bf16"]
    file = GgufFile(options.model)
    models = {name: Model.from_gguf(file, name=name, kernels=name) for name in names}
    first = next(iter(models.values()))
    # Before there are peers, whose waiting threads take a share of the cores.
    rates = {
        name: best_rate(choose_kernels("auto", name)[0], shape.encoder.hidden, shape.encoder.ffn)
        for name in names
        if name != "reference"
    }
    asks: dict[str, Ask] = {
        name: (lambda body, model=model: model.decide(body["state"], body["questions"]))
        for name, model in models.items()
    }
    asks["laya"] = reference(options.checkpoint, options.threads, False, stack)
    if options.peer_bf16:
        asks["laya bf16"] = reference(options.checkpoint, options.threads, True, stack)
    if options.llama_server:
        asks["llama-server"] = llama_server(options.llama_server, options.llama_model, options.threads, stack)

    def count(body: dict[str, Any]) -> int:
        from layactl.engine.decider import render

        return sum(len(sequence.ids) for sequence in render(first, first.parse(body)).sequences)

    sizes = [(220, 1), (480, 1), (950, 1), (210, 5), (470, 5)]
    requests = [request(tokens, questions, count, first.limits.max_len) for tokens, questions in sizes]
    report: dict[str, Any] = {"threads": options.threads, "repeat": options.repeat, "requests": []}
    report["best_gflops"] = {name: round(rate) for name, rate in rates.items()}
    ratios: dict[str, list[float]] = {}
    for body in requests:
        from layactl.engine.decider import render

        sequences = render(first, first.parse(body)).sequences
        lengths = [len(sequence.ids) for sequence in sequences]
        times: dict[str, list[float]] = {name: [] for name in asks}
        for ask in asks.values():
            ask(body)
        order = list(asks)
        for _ in range(options.repeat):
            for name in order:
                start = time.perf_counter()
                asks[name](body)
                times[name].append((time.perf_counter() - start) * 1000)
            order = order[1:] + order[:1]
        row: dict[str, Any] = {"questions": len(lengths), "tokens": lengths[0]}
        row["p50_ms"] = {name: round(statistics.median(values), 1) for name, values in times.items()}
        operations = linear_operations(
            argparse.Namespace(shape=shape), lengths, [1 + len(sequence.markers) for sequence in sequences]
        )
        row["roofline"] = {
            name: round(operations / 1e6 / statistics.median(times[name]) / rates[name], 3) for name in rates
        }
        for name in names:
            for peer in (peer for peer in asks if peer not in names):
                single = [b / a for a, b in zip(times[name], times[peer], strict=True)]
                key = f"{name} vs {peer}"
                ratios.setdefault(key, []).append(statistics.median(single))
                row.setdefault("ratios", {})[key] = [round(f(single), 2) for f in (statistics.median, min, max)]
        report["requests"].append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    report["ms_per_token"] = {name: growth(model, count) for name, model in models.items()}
    report["median_ratio"] = {key: round(statistics.median(values), 2) for key, values in ratios.items()}
    return report


if __name__ == "__main__":
    main()
