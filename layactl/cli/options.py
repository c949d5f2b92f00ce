"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

ModelOption = Annotated[
    Path, typer.Option("-m", "--model", metavar="MODEL", help="The model: a GGUF file.", show_default=False)
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", "-t", metavar="N", help="CPU threads of the forward pass. Default: all cores."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No notes and no progress on stderr.")]


class Outtype(StrEnum):
    """Weight types a conversion can write."""

    f32 = "f32"
    f16 = "f16"


class Truncation(StrEnum):
    """What happens to input that does not fit."""

    allow = "allow"
    error = "error"


class Format(StrEnum):
    """How a single answer is printed."""

    json = "json"
    table = "table"
