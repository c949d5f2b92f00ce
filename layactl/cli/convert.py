"""`layactl convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layactl.cli.options import Outtype, QuietOption
from layactl.cli.output import note, progress


def convert_command(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint folder.", show_default=False)],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="OUT.gguf", help="The file to write.", show_default=False)
    ],
    outtype: Annotated[Outtype, typer.Option("--outtype", help="Type of the 2-D weights.")] = Outtype.f16,
    model_name: Annotated[
        str | None,
        typer.Option("--model-name", metavar="NAME", help="general.name. Default: README.md, else the folder."),
    ] = None,
    embed_tokenizer: Annotated[
        bool, typer.Option("--embed-tokenizer", help="Carry tokenizer.json whole instead of rebuilding it.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Convert a Hugging Face checkpoint folder to a GGUF file, and print the file's path.

    The folder is checked field by field and tensor by tensor, and the tokenizer the file will rebuild is proved
    against tokenizer.json. The file appears whole or not at all; the same folder gives the same bytes.
    """
    from layactl.convert.convert import convert

    with progress("converting", None, unit="bytes", quiet=quiet) as update:
        result = convert(
            checkpoint,
            out,
            outtype=outtype.value,
            model_name=model_name,
            embed_tokenizer=embed_tokenizer,
            progress=lambda done, total: update(done, total=total),
        )
    if result.inexact:
        worst = max(result.inexact, key=lambda name: result.inexact[name])
        note(
            f"{outtype.value} cannot hold {len(result.inexact)} of {result.tensors} tensors exactly "
            f"(largest error {result.inexact[worst]:.3g}, in {worst}); --outtype f32 keeps every weight",
            quiet,
        )
    if result.nonfinite:
        note(f"{result.nonfinite[0]} holds values that are not finite", quiet)
    note(f"{result.tensors} tensors, {result.parameters:,} parameters, {result.nbytes:,} bytes", quiet)
    typer.echo(str(result.path))
