"""A report holds what the other commands say, in one page that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import document, needs_browser, pixels

from layactl.calib.bootstrap import Bootstrap
from layactl.calib.calibrator import recorded, uncalibrated
from layactl.calib.evaluation import Selection
from layactl.calib.html_report import report_page
from layactl.calib.report import Report, report
from layactl.calib.result_file import write_result
from layactl.calib.threshold import Risk
from tests.calib.examples import jsonl
from tests.calib.simulated import answers, fit_of, halves, logits_file, record, scores
from tests.reporting.page_checker import NASTY, Checker

FEW = Bootstrap(50)


def decisions(**fields: Any) -> list[Any]:
    return halves(answers(np.random.default_rng(1), 900, 2.0, **fields))


def made(items: list[Any], *, before: bool = True, **fields: Any) -> Report:
    found = logits_file(items, **fields)
    now = replace(uncalibrated(), version="fitted", temperature=lambda answer: 2.0, platt=(0.7, -0.2))
    return report(found, Selection(now, "eval"), recorded(found) if before else None, Risk(0.2), FEW)


@pytest.mark.parametrize("kind", ["decisions", "router"])
@pytest.mark.parametrize("before", [True, False])
def test_the_page_is_sound_and_shows_every_part(kind: str, before: bool):
    items = (
        decisions() if kind == "decisions" else halves(scores(np.random.default_rng(2), 1200, 0.7, -0.2, per_task=3))
    )
    text = report_page(made(items, before=before))
    Checker(text)
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    parts = [
        "Quality",
        "Before and after",
        "Reliability",
        "When to act",
        "Parts of the data",
        "Confusion",
        "Baselines",
        "Definitions",
    ]
    expected = [p for p in parts if (before or p != "Before and after") and (kind == "decisions" or p != "Confusion")]
    assert titles == expected
    # Counts of every bin are readable without a pointer.
    counted = made(items, before=before).evaluation.reliability["all"]
    assert all(f">{b.count:,}</text>" in text for b in counted)


def test_a_diagram_and_its_counts_share_a_row():
    text = report_page(made(decisions()))
    rows = [row for row in text.split('<div class="figures">') if "<title>Reliability, " in row]
    assert len(rows) >= 2
    for row in rows:
        name = re.findall("<title>Reliability, (.*?)</title>", row)
        assert len(name) == 1 and f"<title>Answers, {name[0]}</title>" in row


def test_a_report_without_a_held_out_part_has_no_baselines_and_says_why():
    items = [replace(item, split="eval") for item in decisions()]
    found = made(items)
    assert found.baselines is None
    assert "None: the fit split holds no answers." in report_page(found)


@pytest.mark.parametrize("text", NASTY)
def test_data_cannot_write_into_the_page(text: str):
    """Labels, questions, groups, languages and the model's name come from files."""

    def page_with(name: str) -> str:
        items = decisions(question=name, options=4, tags={"lang": name})
        items = [
            replace(a, options=(name, "b", "c", "d"), member=replace(a.member, group=f"{name}{i % 2}"))
            for i, a in enumerate(items)
        ]
        engine = {"model": name, "kernels": name, "source_sha256": name}
        found = logits_file(items, engines=[engine], path=Path(name.replace("/", "_") or "x"))
        return report_page(report(found, Selection(uncalibrated()), None, Risk(0.2), Bootstrap(0)))

    plain, found = Checker(page_with("plain")), Checker(page_with(text))
    assert {tag for tag, _ in found.tags} == {tag for tag, _ in plain.tags}
    assert len(found.tags) == len(plain.tags)


def test_before_and_after_are_the_evaluations_own_numbers():
    found = made(decisions())
    assert found.before is not None and found.comparison is not None
    for metric, value in found.comparison.after.items():
        assert value.value == found.evaluation.parts[0].metrics[metric].value
        assert found.comparison.before[metric].value == found.before.parts[0].metrics[metric].value


@pytest.mark.parametrize("kind", ["decisions", "router"])
def test_baselines_are_held_against_the_calibration_that_is_reported(kind: str):
    items = decisions() if kind == "decisions" else halves(scores(np.random.default_rng(2), 1200, 0.7, -0.2))
    found = made(items)
    assert found.baselines is not None
    own = next(b for b in found.baselines.found if b.name == found.baselines.reference)
    for metric in ("nll", "ece"):
        assert own.metrics[metric].value == pytest.approx(found.evaluation.parts[0].metrics[metric].value)


def test_a_report_is_json_without_nan():
    for items in (decisions(), halves(scores(np.random.default_rng(2), 600, 0.7, -0.2))):
        value = json.loads(json.dumps(made(items).to_json(), allow_nan=False))
        assert value["format"] == "layactl.calib-report/1"
        assert set(value) >= {"evaluation", "before", "comparison", "thresholds", "baselines"}


def test_the_command_writes_page_and_result_and_prints_the_tables(tmp_path: Path, cli: Callable[..., Any]):
    items = decisions()
    path = jsonl(tmp_path / "logits.jsonl", map(record, items))
    write_result(tmp_path / "fit.json", fit_of(items).to_json())
    done = cli(
        *("calib", "report", path, "--fit", tmp_path / "fit.json", "--alpha", 0.2, "--resamples", 20),
        *("--html", tmp_path / "r.html", "-o", tmp_path / "r.json"),
    )
    assert done.code == 0, done.err
    for part in ("thresholds of", "baselines on", "reliability, all", "after - before"):
        assert part in done.out
    value = json.loads((tmp_path / "r.json").read_text())
    assert value["evaluation"]["split"] == "eval"
    Checker((tmp_path / "r.html").read_text(encoding="utf-8"))
    again = cli("calib", "report", path, "--html", path)
    assert again.code == 2 and "is the logits itself" in again.err


@needs_browser
def test_the_page_is_light_or_dark_as_the_reader_wishes_and_its_plots_have_colour(tmp_path: Path):
    page = tmp_path / "report.html"
    page.write_text(report_page(made(decisions())), encoding="utf-8")
    dom = document(page)
    assert dom.count("<svg") >= 4 and dom.count('<circle class="dot') >= 10
    light, dark = pixels(page, height=1400), pixels(page, height=1400, dark=True)
    assert sum(light[2][2]) > 700 and sum(dark[2][2]) < 150
    for picture in (light, dark):
        coloured = sum(max(pixel) - min(pixel) > 60 for row in picture for pixel in row)
        assert coloured > 200
