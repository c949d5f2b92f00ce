"""`layactl tokenizer ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layactl.cli.models import ModelChoice
from layactl.cli.options import CacheDirOption, FolderOuttype, FolderOuttypeOption, MaxLenOption, ModelOption
from layactl.cli.output import record

app = typer.Typer(help="Check a model's tokenizer.", no_args_is_help=True)

_DIFFERENT = 2


@app.callback()
def tokenizer_group() -> None:
    """Check a model's tokenizer."""


@app.command("verify")
def verify_command(
    model: ModelOption,
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="The checkpoint folder it came from.")],
    texts: Annotated[
        Path | None, typer.Option("--texts", metavar="F", help="Read these texts too, one a line.")
    ] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="How many probe texts.")] = 12_000,
    outtype: FolderOuttypeOption = FolderOuttype.f16,
    cache_dir: CacheDirOption = None,
    max_len: MaxLenOption = None,
) -> int:
    """Compare the model's tokenizer with the checkpoint's tokenizer.json on many texts.

    Exit code 2 when a text is read differently; the first few are printed.
    """
    from layactl.engine.tokenizer_file import verify_tokenizer

    compared, different = verify_tokenizer(
        ModelChoice(model, outtype, cache_dir).resolve().file, checkpoint, texts, count, max_len
    )
    record({"texts": compared, "mismatches": len(different), "first": different[:5]})
    return _DIFFERENT if different else 0
