"""`layactl presets`."""

from __future__ import annotations

from typing import Annotated

import typer

from layactl.cli.output import record


def presets_command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this preset's questions as JSON.")] = None,
) -> None:
    """List the presets of `decide --preset`, or print one as a questions file to start from."""
    from layactl.decide.presets import PRESETS, preset_questions

    if name is not None:
        record(preset_questions(name))
        return
    width = max(map(len, PRESETS))
    for preset, questions in PRESETS.items():
        asked = ", ".join(f"{key} ({question['type']})" for key, question in questions.items())
        typer.echo(f"{preset:<{width}}  {asked}")
