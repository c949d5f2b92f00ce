"""One self-contained HTML page: no script, nothing fetched, readable in dark mode and on paper.

Blocks are made by the functions below, which escape every text; `Html` marks what has been through them.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from layactl.durable import replacing
from layactl.reporting.text_table import TextTable

_STYLE = """
:root{--ink:#1b1f24;--paper:#fff;--soft:#5b6570;--rule:#d8dde3;--tint:#f3f5f7;--s1:#0b63b5;--s2:#c2410c;--s3:#15803d;
--s4:#7c3aed;--s5:#b4236a;--s6:#64748b}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ec;--paper:#14171a;--soft:#9aa5b1;--rule:#333a42;--tint:#1d2227;
--s1:#6cb2ff;--s2:#ff9a5c;--s3:#5fd08a;--s4:#b79bff;--s5:#ff8ab8;--s6:#9aa9bb}}
@media print{:root{--ink:#000;--paper:#fff;--soft:#444;--rule:#bbb;--tint:#fff;--s1:#0b63b5;--s2:#c2410c;--s3:#15803d;
--s4:#7c3aed;--s5:#b4236a;--s6:#64748b}body{max-width:none;padding:0}figure,table,section>h2{break-inside:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem;max-width:76rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.15rem;margin:2rem 0 .6rem;border-bottom:1px solid var(--rule)}
h3{font-size:1rem;margin:1.2rem 0 .4rem}
p,dd,figcaption,.note{color:var(--soft)}.note{font-size:.85rem;margin:.3rem 0 1rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:8rem;max-width:22rem}
thead th{background:var(--tint)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.5rem 0;font-size:.9rem}dt{font-weight:600}
dd{margin:0;overflow-wrap:anywhere}
.figures{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0}figcaption{font-size:.82rem;max-width:24rem}
svg{max-width:100%;height:auto}svg text{fill:var(--ink);font:11px system-ui,sans-serif}
svg .label{font-weight:600;font-size:12px}
svg .count{fill:var(--ink)}
svg .tick{fill:var(--soft)}.axis{fill:none;stroke:var(--soft)}.grid{stroke:var(--rule);stroke-width:.6}
.line{fill:none;stroke-width:1.6}.bar{fill-opacity:.55}.cell{fill:var(--s2)}.cell.right{fill:var(--s1)}
""" + "".join(f".line.s{n}{{stroke:var(--s{n})}}.dot.s{n},.bar.s{n}{{fill:var(--s{n})}}" for n in range(1, 7))


class Html(str):
    """Markup whose texts are escaped."""

    __slots__ = ()


def escaped(text: str) -> str:
    """A text as HTML and SVG hold it: no markup of its own, and no control characters, which are none there."""
    return html.escape("".join(c if c.isprintable() else " " for c in text))


def page(title: str, blocks: Iterable[Html], *, foot: str = "") -> Html:
    """The whole document. foot: who made it."""
    name = escaped(title)
    # Whatever a text might smuggle in, a browser runs and fetches nothing here.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return Html(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="color-scheme" content="light dark"><style>{_STYLE}</style></head>'
        f"<body><h1>{name}</h1>\n" + "\n".join(blocks) + f'\n<p class="note">{escaped(foot)}</p></body></html>\n'
    )


def section(title: str, blocks: Iterable[Html]) -> Html:
    return Html(f"<section><h2>{escaped(title)}</h2>\n" + "\n".join(blocks) + "</section>")


def paragraph(text: str) -> Html:
    return Html(f"<p>{escaped(text)}</p>")


def note(text: str) -> Html:
    """Small print."""
    return Html(f'<p class="note">{escaped(text)}</p>')


def facts(values: Mapping[str, str]) -> Html:
    """Names and what they are."""
    return Html("<dl>" + "".join(f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in values.items()) + "</dl>")


def table(content: TextTable) -> Html:
    """The table with its title above and its note below."""
    head = "".join(f"<th>{escaped(name)}</th>" for name in content.columns)
    rows = "".join("<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in content.rows)
    body = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    return Html(f"<h3>{escaped(content.title)}</h3>{body}" + (note(content.note) if content.note else ""))


def figures(plots: Sequence[tuple[str, str]]) -> Html:
    """(SVG of `svg_plot`, caption) side by side, as many as fit."""
    shown = "".join(f"<figure>{svg}<figcaption>{escaped(caption)}</figcaption></figure>" for svg, caption in plots)
    return Html(f'<div class="figures">{shown}</div>')


def write_page(path: Path, content: Html) -> None:
    """UTF-8, whole or not at all. Raises OutputError."""
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8", errors="backslashreplace")
