"""`layactl convert`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from layactl.cli.models import ModelChoice
from layactl.cli.options import CacheDirOption, Dialect, FolderOuttype, Outtype, QuietOption
from layactl.cli.output import note, path_line, progress
from layactl.errors import CheckpointError, UsageError

_DIFFERENT = 2


def convert_command(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint folder.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="OUT.gguf", help="The file to write. Default: into the cache."),
    ] = None,
    outtype: Annotated[Outtype, typer.Option("--outtype", help="Type of the 2-D weights.")] = Outtype.f16,
    dialect: Annotated[
        Dialect, typer.Option("--dialect", help="llama.cpp: the file stock llama-server loads, without act head.")
    ] = Dialect.laya,
    model_name: Annotated[
        str | None,
        typer.Option("--model-name", metavar="NAME", help="general.name. Default: README.md, else the folder."),
    ] = None,
    embed_tokenizer: Annotated[
        bool, typer.Option("--embed-tokenizer", help="Carry tokenizer.json whole instead of rebuilding it.")
    ] = False,
    spec: Annotated[
        Path | None, typer.Option("--spec", metavar="SPEC.json", help="Stamp this decision.spec into the file.")
    ] = None,
    verify_against: Annotated[
        Path | None,
        typer.Option("--verify-against", metavar="REF.gguf", help="Compare the result; exit code 2 when it differs."),
    ] = None,
    cache_dir: CacheDirOption = None,
    quiet: QuietOption = False,
) -> int:
    """Convert a Hugging Face checkpoint folder to a GGUF file, and print the file's path.

    The folder is checked field by field and tensor by tensor, and the tokenizer the file will rebuild is proved
    against tokenizer.json. The file appears whole or not at all; the same folder gives the same bytes.
    """
    from layactl.convert.convert import convert

    if verify_against is not None:
        from layactl.gguf_file.reader import GgufFile

        GgufFile(verify_against)  # refused before anything is converted
    if out is None:
        own = model_name is not None or embed_tokenizer or spec is not None or dialect is not Dialect.laya
        if own or outtype.value not in list(FolderOuttype):
            raise UsageError("a conversion with options of its own is not kept in the cache", hint="give -o OUT.gguf")
        choice = ModelChoice(checkpoint, FolderOuttype(outtype.value), cache_dir, quiet=quiet)
        if not checkpoint.is_dir():
            raise CheckpointError("is not a checkpoint folder", where=str(checkpoint))
        path = choice.resolve().file.path
        path_line(path)
        return _verify(path, verify_against)
    with progress("converting", None, unit="bytes", quiet=quiet) as update:
        result = convert(
            checkpoint,
            out,
            outtype=outtype.value,
            dialect=dialect.value,
            model_name=model_name,
            embed_tokenizer=embed_tokenizer,
            progress=lambda done, total: update(done, total=total),
            finish=_stamp_with(spec, out),
        )
    for message in result.notes():
        note(message, quiet)
    path_line(result.path)
    return _verify(result.path, verify_against)


def _stamp_with(spec: Path | None, out: Path) -> Callable[[Path], None]:
    def stamp(path: Path) -> None:
        from layactl.engine.stamp import set_spec

        if spec is not None:
            set_spec(path, spec, model_id=out.name.removesuffix(".gguf"))

    return stamp


def _verify(path: Path, reference: Path | None) -> int:
    """Exit code 0 when there is nothing to compare with, or no difference."""
    if reference is None:
        return 0
    from layactl.gguf_file.comparison import first_difference
    from layactl.gguf_file.reader import GgufFile

    difference = first_difference(GgufFile(path), GgufFile(reference))
    note(f"differs from {reference}: {difference}" if difference else f"identical to {reference}")
    return _DIFFERENT if difference else 0
