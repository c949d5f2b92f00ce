"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

MODEL = typer.Option(
    *("-m", "--model"),
    metavar="MODEL",
    help="A GGUF file, or a checkpoint folder (converted once).",
    show_default=False,
)
ModelOption = Annotated[Path, MODEL]
CacheDirOption = Annotated[
    Path | None,
    typer.Option("--cache-dir", metavar="DIR", help="For a folder: where conversions are kept.", show_default=False),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        "-t",
        metavar="N",
        help="CPU threads of the forward pass. Default: LAYACTL_THREADS, else the physical cores.",
    ),
]
SpecOption = Annotated[
    Path | None,
    typer.Option(
        "--spec", metavar="SPEC.json", help="Replace the model's decision.spec as a whole.", show_default=False
    ),
]
KernelsOption = Annotated[
    str | None,
    typer.Option(
        "--kernels",
        metavar="K",
        help="How products are computed: auto, onednn, reference, or rounded: onednn-bf16. "
        "Default: the spec's, else auto.",
    ),
]


class Plan(StrEnum):
    """How the questions of a request are computed."""

    sequential = "sequential"
    packed = "packed"


PlanOption = Annotated[
    Plan | None,
    typer.Option("--plan", help="The questions of a request one by one, or packed into one pass. Default: the spec's."),
]


class Device(StrEnum):
    """Where the forward pass runs."""

    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"
    auto = "auto"


DeviceOption = Annotated[
    Device, typer.Option("--device", help="Where the forward pass runs; auto falls back to the CPU.")
]
MaxLenOption = Annotated[
    int | None,
    typer.Option(
        "--max-len",
        metavar="N",
        help="For a file that stores no sequence limit: the most tokens of a sequence.",
        show_default=False,
    ),
]
AllowUncalibratedOption = Annotated[
    bool,
    typer.Option("--allow-uncalibrated", help="Score executors without a router calibration, as sigmoid(logit)."),
]
RoundOption = Annotated[
    int | None, typer.Option("--round", metavar="N", min=0, max=17, help="Round the answers to N digits.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No notes and no progress on stderr.")]


class Outtype(StrEnum):
    """Weight types a conversion can write."""

    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    q8_0 = "q8_0"


class Dialect(StrEnum):
    """GGUF dialects a conversion can write."""

    laya = "laya"
    llama_cpp = "llama.cpp"


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
