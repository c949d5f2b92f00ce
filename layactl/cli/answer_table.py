"""Responses as tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from layactl.cli.output import one_line
from layactl.core import strict_json

_SHOWN_OPTIONS = 5


def print_line(line: bytes) -> None:
    """An output line of a JSONL run on stdout: a table and its warnings under its id, or why there is none."""
    answered = strict_json.loads_strict(line)
    own = answered["id"]
    name = one_line(own if isinstance(own, str) and own.strip() else strict_json.dumps(own))
    console = Console()
    if "error" in answered:
        error = answered["error"]
        console.print(Text(f"{name}: {error['reason']}: {one_line(error['message'])}", style="italic"))
        return
    console.print(Text(name, style="italic"))
    if "scores" in answered:
        _print_scores(answered["scores"])
    else:
        print_table(answered)
    for warning in answered["warnings"]:
        console.print(Text(f"warning: {one_line(warning['message'])}"))


def print_table(response: dict[str, Any]) -> None:
    """One row a question on stdout: the answer, the distribution behind it, the confidence."""
    gated = any("act" in answer for answer in response["answers"].values())
    columns = ("question", "type", "answer", "probabilities", "confidence", *(["act"] if gated else []))
    table = Table(*columns, highlight=False)
    for question_id, answer in response["answers"].items():
        table.add_row(
            Text(one_line(question_id)),
            answer["type"],
            Text(one_line(_headline(answer)), style="bold"),
            Text(one_line(_distribution(answer))),
            f"{answer['answer_confidence']:.4f}",
            *(["yes" if answer["act"] else "no"] if gated else []),
        )
    Console().print(table)


def _print_scores(scores: list[dict[str, Any]]) -> None:
    table = Table("candidate", "p_success", "calibrated", highlight=False)
    for score in scores:
        calibrated = "yes" if score["calibrated"] else "no"
        table.add_row(Text(one_line(score["id"])), Text(f"{score['p_success']:.4f}", style="bold"), calibrated)
    Console().print(table)


def _headline(answer: dict[str, Any]) -> str:
    if answer["type"] == "choice":
        return str(answer["choice"])
    if answer["type"] == "score":
        return f"{answer['score']:.3f} of {len(answer['legend']) - 1}"
    return f"{answer['noul']:.4f} true"


def _distribution(answer: dict[str, Any]) -> str:
    if answer["type"] == "noul":
        return f"true {answer['noul']:.4f}  false {1 - answer['noul']:.4f}"
    ranked = sorted(answer["probabilities"].items(), key=lambda item: -item[1])
    shown = "  ".join(f"{key} {p:.4f}" for key, p in ranked[:_SHOWN_OPTIONS])
    return shown + (f"  and {len(ranked) - _SHOWN_OPTIONS} more" if len(ranked) > _SHOWN_OPTIONS else "")
