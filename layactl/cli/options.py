"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

ModelOption = Annotated[
    Path,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        help="A GGUF file, or a checkpoint folder (converted once).",
        show_default=False,
    ),
]
CacheDirOption = Annotated[
    Path | None,
    typer.Option("--cache-dir", metavar="DIR", help="For a folder: where conversions are kept.", show_default=False),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", "-t", metavar="N", help="CPU threads of the forward pass. Default: all cores."),
]
SpecOption = Annotated[
    Path | None,
    typer.Option(
        "--spec", metavar="SPEC.json", help="Replace the model's decision.spec as a whole.", show_default=False
    ),
]
KernelsOption = Annotated[
    str | None,
    typer.Option("--kernels", metavar="K", help="How products are computed. Default: the spec's, else auto."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No notes and no progress on stderr.")]


class Outtype(StrEnum):
    """Weight types a conversion can write."""

    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    q8_0 = "q8_0"


class FolderOuttype(StrEnum):
    """Weight types a folder given as a model can be converted to (quantized ones need a recipe of their own)."""

    f32 = "f32"
    f16 = "f16"


FolderOuttypeOption = Annotated[FolderOuttype, typer.Option("--outtype", help="For a folder: type of the 2-D weights.")]


class Truncation(StrEnum):
    """What happens to input that does not fit."""

    allow = "allow"
    error = "error"


class Format(StrEnum):
    """How a single answer is printed."""

    json = "json"
    table = "table"
