"""A page is complete in itself, sound as a document, and holds no markup but its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from layactl.reporting.html_page import Html, escaped, facts, figures, note, page, paragraph, section, table, write_page
from layactl.reporting.svg_plot import Plot, matrix
from layactl.reporting.text_table import TextTable
from tests.reporting.page_checker import NASTY, Checker


def whole(text: str) -> Html:
    """A page that shows a text in every block there is."""
    plot = Plot(text, text, text)
    plot.line([(0, 0), (1, 1)], "s1", name=text)
    plot.points([(0.5, 0.5)], "s2", errors=[(0.4, 0.6)], tips=[text], name=text)
    plot.bars([(0.0, 0.5, 0.5)], "s3", labels=[text])
    content = TextTable(text, ["name", text], [[text, text]], text)
    blocks = [
        facts({text: text}),
        section(text, [paragraph(text), note(text), table(content)]),
        figures([(plot.svg(), text), (matrix(text, [text], [text], [[3]], axes=(text, text)), text)]),
    ]
    return page(text, blocks, foot=text)


@pytest.mark.parametrize("text", NASTY)
def test_no_text_becomes_markup(text: str):
    plain, found = Checker(whole("plain")), Checker(whole(text))
    # The same elements with the same attributes, whatever the text says.
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    assert [sorted(attrs) for _, attrs in found.tags] == [sorted(attrs) for _, attrs in plain.tags]
    shown = "".join(c if c.isprintable() else " " for c in text)
    assert found.texts.count(shown) >= 10


@pytest.mark.parametrize("text", NASTY)
def test_nothing_runs_and_nothing_is_fetched(text: str):
    found = Checker(whole(text))
    assert {tag for tag, _ in found.tags} & {
        "script",
        "img",
        "link",
        "iframe",
        "object",
        "embed",
        "use",
        "image",
    } == set()
    for _, attrs in found.tags:
        assert not any(name.startswith("on") or name in ("href", "src", "srcset", "style") for name in attrs)
    policies = [attrs["content"] for _, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", whole("plain"))


def test_control_characters_are_spaces():
    assert escaped("a\x00b\nc\u202ed<") == "a b c d&lt;"


def test_the_page_knows_dark_mode_and_print():
    style = whole("plain").split("<style>")[1].split("</style>")[0]
    assert "prefers-color-scheme:dark" in style and "@media print" in style
    # Every colour in use is defined for the light, the dark and the printed page.
    used = set(re.findall(r"var\((--\w+)\)", style))
    for block in (
        style.split("@media")[0],
        style.split("prefers-color-scheme:dark")[1].split("@media")[0],
        style.split("@media print")[1],
    ):
        assert used <= set(re.findall(r"(--\w+):", block))
    assert style.count("{") == style.count("}")


def test_a_page_is_written_whole(tmp_path: Path):
    path = tmp_path / "report.html"
    write_page(path, whole("漢字"))
    assert path.read_text(encoding="utf-8") == whole("漢字")
    assert list(tmp_path.iterdir()) == [path]
