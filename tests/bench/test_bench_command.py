"""layactl bench on a tiny model: real blocks, real peers, one short run."""

from __future__ import annotations

import io
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from layactl.bench.kpi import read_measurements
from layactl.bench.run import Plan, spawn_block
from layactl.bench.subjects import PHASES
from layactl.bench.suite import build_suite, quick_suite, suite_bytes, tokenizer_of
from layactl.cli.bench_live import live

from .recorded import block

CHECKPOINT = Path(__file__).parents[2] / "fixtures" / "tiny-multilingual"

QUICK = ("--quick", "-t", 1, "--foreign-max", 99)


@pytest.fixture
def requests_of(gguf_for):
    encode = tokenizer_of(gguf_for("tiny-multilingual")).encode
    return quick_suite(build_suite(lambda text: len(encode(text))))


def engine_block(gguf: Path, requests: list, **changes: object) -> dict:
    job = {"kind": "engine", "model": str(gguf), "name": "m", "threads": 1, "kernels": None, "plan": None}
    steps = {"repeat": 2, "warmup": 0, "idle_ms": 0, "identity": True}
    return spawn_block({**job, "spec": None, "max_len": None, **steps, **changes}, requests, lambda event: None)


def test_a_block_tells_phases_that_add_up_and_logits_that_do_not_depend_on_threads(gguf_for, requests_of):
    gguf = gguf_for("tiny-multilingual")
    one, two = (engine_block(gguf, requests_of, threads=threads) for threads in (1, 2))
    answered = {request_id: row for request_id, row in one["requests"].items() if "ms" in row}
    assert "so-1q-noul" in answered
    for request_id, row in answered.items():
        assert set(row["ms"]) == set(PHASES)
        for parse, render, compute, post, total in zip(
            *(row["ms"][phase] for phase in ("parse", "render", "compute", "post", "total")), strict=True
        ):
            assert parse + render + compute + post == pytest.approx(total)
            assert min(parse, render, compute, post) >= 0
        assert row["deterministic"] is True
        assert row["logits"] == two["requests"][request_id]["logits"]
        assert row["tokens"] > 0
    assert one["identity"]["side"] == "engine" and two["identity"]["threads"] == 2
    assert one["load_ms"] > 0 and one["memory"]["end"]["peak"] >= one["memory"]["loaded"]["rss"]


def test_logits_of_other_kernels_have_another_hash_where_they_differ(gguf_for, requests_of):
    gguf = gguf_for("tiny-multilingual")
    onednn, reference = (engine_block(gguf, requests_of, kernels=name) for name in ("auto", "reference"))
    assert onednn["identity"]["kernels"] != reference["identity"]["kernels"]
    assert onednn["requests"]["so-1q-noul"]["logits"] != reference["requests"]["so-1q-noul"]["logits"]


@pytest.mark.reference
@pytest.mark.skipif(find_spec("laya") is None, reason="the reference package is not installed")
def test_a_run_beside_the_reference_prints_ratios_and_refuses_what_no_gate_covers(cli, gguf_for, tmp_path: Path):
    gguf, out = gguf_for("tiny-multilingual"), tmp_path / "out"
    run = ("bench", "-q", "-m", gguf, "--peer", f"laya={CHECKPOINT}", *QUICK, "-o", out)
    done = cli(*run)
    assert done.code == 0
    assert "Refused by the parity gate" in done.out and "Speed against" not in done.out
    assert {one.label for one in read_measurements(out)} == {gguf.stem, "laya"}
    shown = cli("bench", "report", out, "--allow-ungated", "--markdown", tmp_path / "report.md")
    assert "Speed against laya" in shown.out
    assert f"{gguf.stem} (ungated)" in (tmp_path / "report.md").read_text()
    assert cli("bench", "compare", out, out).code == 0
    again = cli(*run)
    assert (again.code, "there already" in again.err) == (2, True)


def test_servers_and_jsonl_runs_are_measured_on_request(cli, gguf_for, requests_of, tmp_path: Path):
    out, suite = tmp_path / "out", tmp_path / "suite.jsonl"
    suite.write_bytes(suite_bytes(requests_of[:1]))
    steps = ("-f", suite, "-t", 1, "--foreign-max", 99, "--repeat", 3, "--cycles", 1, "--idle-ms", 5)
    extras = ("--server-starts", 1, "--throughput", 24, "--html", out / "report.html")
    done = cli("bench", "-q", "-m", gguf_for("tiny-multilingual"), *steps, *extras, "-o", out, "--allow-ungated")
    assert done.code == 0 and (out / "report.html").exists()
    (found,) = read_measurements(out)
    server, throughput = found.record["server"], found.record["throughput"]
    assert server["ready_ms"][0] > 0 and len(server["warm_ms"][0]) == 3
    assert (throughput["rows"], throughput["questions"]) == (24, 48)
    assert throughput["tokens"] > 24 * 30
    assert "Server" in done.out and "decide --jsonl" in done.out
    # The pause is kept in the blocks and on the servers.
    assert server["after_idle_ms"][0] > 0 and found.blocks[0]["after_idle"]["so-1q-noul"] > 0
    assert "First request after the idle pause" in done.out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_configurations_while_they_run(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with live(["mine", "laya"], Plan(repeat=4, cycles=2), quiet=False) as progress:
        progress("mine", 0, 4, {"event": "loaded"})
        progress("mine", 0, 4, {"event": "block", **block(12.5)})
        progress("laya", 1, 4, {"event": "repeat", "done": 3})
    shown = terminal.getvalue()
    assert "mine" in shown and "laya" in shown
    assert "1 of 2" in shown and "12.5" in shown
    assert "round 3 of 4" in shown and "left" in shown


def test_a_load_run_is_judged_by_its_rule(cli, gguf_for, tmp_path: Path):
    rule, out = tmp_path / "rule.json", tmp_path / "load.json"
    asked = {"format": "layactl.load-rule/1", "rates": [10], "seconds": 1, "budget_ms": 60_000}
    rule.write_text(json.dumps(asked))
    load = ("bench", "load", "-q", "-m", gguf_for(), "-t", 1, "--rule", rule)
    done = cli(*load, "-o", out)
    assert (done.code, done.out.splitlines()[-1]) == (0, "pass")
    record = json.loads(out.read_text())
    assert record["verdict"] == "pass" and record["cells"][0]["answered"] == record["cells"][0]["sent"] > 0
    short = cli(*load, "--seconds", 0.5)
    assert (short.code, short.out.splitlines()[-1]) == (2, "not_a_gate_run")


MEASURE = ("bench", "-m", "{gguf}", "-o", "{out}")
USAGE = {
    "no model": ("bench", "-o", "x"),
    "no folder": ("bench", "-m", "x.gguf"),
    "a peer nobody knows": (*MEASURE, "--peer", "onnx=x"),
    "a peer that is not there": (*MEASURE, "--peer", "laya=/nowhere"),
    "a llama-server and a file of our dialect": (*MEASURE, "--peer", "llama-server={me}"),
    "a reference nobody measures": (*MEASURE, "--ref", "nope"),
    "others that use no number of cores": (*MEASURE, "--foreign-max", "nan"),
    "two files of one name": (*MEASURE, "-m", "{gguf}"),
    "a load of no rate": ("bench", "load", "-m", "{gguf}"),
    "a load of nothing": ("bench", "load", "--rate", "1", "--seconds", "1"),
    "a request the suite has not": ("bench", "load", "-m", "{gguf}", "--rate", "1", "--seconds", "1", "--request", "x"),
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_usage_is_exit_2_before_anything_is_measured(name: str, cli, gguf_for, tmp_path: Path):
    words = {"gguf": gguf_for(), "out": tmp_path / "out", "me": __file__}
    done = cli(*(word.format(**words) for word in USAGE[name]))
    assert (done.code, done.out) == (2, "")
    assert len(done.error_lines) == 1
    assert not (tmp_path / "out").exists()


def test_a_page_that_cannot_be_written_is_known_before_anything_is_measured(cli, gguf_for, tmp_path: Path):
    done = cli("bench", "-m", gguf_for(), "-o", tmp_path / "out", "--html", tmp_path / "nowhere" / "report.html")
    assert done.code == 1
    assert "report.html" in done.error_lines[0]
    assert not (tmp_path / "out").exists()
