"""Plots put every value where its axes say, inside their frame, and read as XML."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layactl.reporting.svg_plot import SERIES, Plot, matrix

SVG = "{http://www.w3.org/2000/svg}"


def elements(svg: str, tag: str, **attributes: str) -> list[ElementTree.Element]:
    found = ElementTree.fromstring(svg).iter(SVG + tag)
    return [e for e in found if all(value in e.get(name, "") for name, value in attributes.items())]


def circles(plot: Plot) -> list[tuple[float, float]]:
    return [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in elements(plot.svg(), "circle")]


def test_the_corners_of_the_axes_are_the_corners_of_the_frame():
    plot = Plot("t", "x", "y", x=(10, 20), y=(-1, 1), width=300, height=200)
    plot.points([(10, -1), (20, 1), (15, 0)], "s1")
    (left, bottom), (right, top), middle = circles(plot)
    frame = re.match(r"M([\d.]+) ([\d.]+)V([\d.]+)H([\d.]+)", elements(plot.svg(), "path")[0].get("d", ""))
    assert frame is not None
    assert (left, top, bottom, right) == tuple(map(float, frame.groups()))
    assert middle == ((left + right) / 2, (top + bottom) / 2)


def test_values_outside_stay_at_the_edge_and_what_is_not_finite_is_left_out():
    plot = Plot("t", "x", "y")
    plot.points([(2.0, 2.0), (1.0, 1.0), (math.nan, 0.5), (0.5, math.inf)], "s1")
    outside, edge = circles(plot)
    assert outside == edge
    plot.line([(0, 0), (math.nan, 1), (1, 1)], "s1")
    assert len(elements(plot.svg(), "polyline")[0].get("points", "").split()) == 2


def test_an_axis_without_extent_is_no_division_by_zero():
    plot = Plot("t", "x", "y", y=(3, 3))
    plot.points([(0.5, 3)], "s1")
    assert all(map(math.isfinite, circles(plot)[0]))


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ((0, 1), ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ((0, 289), ["0", "100", "200"]),
        ((-1, 1), ["-1", "-0.5", "0", "0.5", "1"]),
        ((0, 7_000), ["0", "2,000", "4,000", "6,000"]),
        ((3, 3), ["3"]),
    ],
)
def test_axes_have_round_numbers(span: tuple[float, float], expected: list[str]):
    found = [e.text for e in elements(Plot("", "", "", y=span, x_ticks=[]).svg(), "text")]
    assert [text for text in found if text] == expected


def test_steps_keep_a_value_until_the_next():
    plot = Plot("t", "x", "y")
    plot.steps([(0.0, 0.0), (0.5, 1.0), (1.0, 0.5)], "s1")
    points = [tuple(map(float, p.split(","))) for p in elements(plot.svg(), "polyline")[0].get("points", "").split()]
    for (x1, y1), (x2, y2) in itertools.pairwise(points):
        assert x1 == x2 or y1 == y2
    assert len(points) == 5


def test_bars_are_as_high_as_they_count_and_say_so():
    plot = Plot("t", "x", "y", y=(0, 10))
    plot.bars([(0.0, 0.5, 5.0), (0.5, 1.0, 10.0)], "s1", labels=["five", "ten"])
    low, high = (float(r.get("height", "")) for r in elements(plot.svg(), "rect"))
    assert high == pytest.approx(2 * low, abs=0.02)
    texts = [e.text for e in elements(plot.svg(), "text")]
    assert "five" in texts and "ten" in texts


def test_a_name_stands_in_the_legend_once():
    plot = Plot("t", "x", "y")
    plot.line([(0, 0), (1, 1)], "s1", name="before")
    plot.points([(0, 0)], "s1", name="before")
    assert [e.text for e in elements(plot.svg(), "text")].count("before") == 1


def test_a_matrix_has_every_count_and_shades_a_row_by_its_share():
    svg = matrix("confusion", ["a", "b"], ["a", "b"], [[9, 1], [0, 20_000]])
    assert [e.text for e in elements(svg, "text") if (e.text or "")[0].isdigit()] == ["9", "1", "0", "20k"]
    shades = [float(e.get("fill-opacity", "")) for e in elements(svg, "rect")]
    assert shades[0] > shades[1] > shades[2] and shades[3] == max(shades)
    assert len(elements(svg, "rect", **{"class": "right"})) == 2
    assert matrix("empty", ["a"], ["a"], [[0]]).count("<rect") == 1


@given(st.text(max_size=30), st.lists(st.tuples(st.floats(), st.floats()), max_size=5))
def test_any_text_and_any_numbers_make_well_formed_svg(text: str, points: list[tuple[float, float]]):
    plot = Plot(text, text, text)
    plot.line(points, "s1", name=text)
    plot.points(points, "s2", tips=[text] * len(points), errors=[(0.0, 1.0)] * len(points))
    svg = plot.svg().encode("utf-8", "backslashreplace").decode()
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    ElementTree.fromstring(matrix(text, [text], [text], [[1]]).encode("utf-8", "backslashreplace").decode())


def test_a_title_that_does_not_fit_ends_in_an_ellipsis():
    drawn = matrix("q" * 400, ["a", "b"], ["a", "b"], [[1, 0], [0, 1]])
    shown = re.search(r'class="label"[^>]*>([^<]*)<', drawn)
    assert shown is not None and shown[1].endswith("\u2026")
    width = int(re.search(r'width="(\d+)"', drawn)[1])  # type: ignore[index]
    assert len(shown[1]) * 6 <= width
    assert ">short</text>" in matrix("short", ["a", "b"], ["a", "b"], [[1, 0], [0, 1]])


def test_series_at_the_same_points_can_stand_beside_each_other():
    plot = Plot("t", "x", "y")
    for series, shift in ((SERIES[0], -2.0), (SERIES[1], 2.0)):
        plot.points([(0.5, 0.5)], series, errors=[(0.4, 0.6)], shift=shift)
    bars = [float(x) for x in re.findall(r'class="line s\d" d="M([0-9.]+) ', plot.svg())]
    assert len(bars) == 2 and bars[1] - bars[0] == 4.0
