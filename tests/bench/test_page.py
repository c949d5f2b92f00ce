"""The report's page in a real browser: every plot with its points, nothing of a refused run, light and dark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from browser import document, needs_browser, pixels

from .recorded import ENGINE, REFERENCE, block, gate_report, write_result

LOAD = {
    "format": "layactl.load/1",
    "identity": {"side": "engine", "model": {"sha256": "m" * 64}, "source_manifest": "s" * 64}
    | {"kernels": "onednn", "precision": "f32"},
    "verdict": "fail",
    "cells": [
        {"rate": rate, "seconds": 1.0, "sent": 9, "answered": 9, "rejected": 0, "errors": 0, "drained": 1.0}
        | {"saturated": rate > 10, "p50_ms": rate, "p95_ms": 2 * rate, "p99_ms": 3 * rate}
        for rate in (5.0, 20.0)
    ],
}


@pytest.fixture
def page(cli, tmp_path: Path) -> Path:
    """A page of two configurations, one of them refused, a peer and a load run."""
    out, gates, page = tmp_path / "out", tmp_path / "gate.json", tmp_path / "report.html"
    gates.write_text(json.dumps(gate_report()))
    write_result(out, "mine", [block({"a": [10, 10], "b": [20, 20], "r": [30, 30]}, cycle=cycle) for cycle in (0, 1)])
    write_result(out, "laya", [block(60.0, cycle=cycle, logits=None) for cycle in (0, 1)], REFERENCE)
    write_result(out, "<script>alert(1)</script>", [block(777.0)], {**ENGINE, "kernels": "other"})
    (out / "load.json").write_text(json.dumps(LOAD))
    assert cli("bench", "report", out, "--parity", gates, "--html", page).code == 0
    return page


def test_the_page_needs_nothing_but_itself(page: Path):
    text = page.read_text()
    assert "<script" not in text and "&lt;script&gt;alert(1)" in text
    assert not re.search(r"(src|href)\s*=|url\(|@import", text)


@needs_browser
def test_every_plot_shows_its_points(page: Path):
    dom = document(page)
    assert dom.count("<svg") == 4
    titles = re.findall(r"<svg[^>]*><title>([^<]*)</title>", dom)
    assert titles == ["Latency by length", "mine against laya", "Memory by phase", "Open-loop load"]
    tips = re.findall(r"<circle[^>]*><title>([^<]*)</title>", dom)
    assert "mine: 10 tokens, 20.0 ms" in tips and "laya: 10 tokens, 60.0 ms" in tips
    assert "20 a second: p95 40.0 ms, saturated" in tips
    assert ">4.00x<" in dom  # p50 60 against 15, and 60 against 30
    assert ">2.00x<" in dom
    assert "777" not in dom


@needs_browser
def test_it_is_light_or_dark_as_the_reader_wishes_and_its_plots_have_colour(page: Path):
    light, dark = pixels(page), pixels(page, dark=True)
    assert sum(light[2][2]) > 700 and sum(dark[2][2]) < 150
    for picture in (light, dark):
        coloured = sum(max(pixel) - min(pixel) > 60 for row in picture for pixel in row)
        assert coloured > 500
