"""`layactl gguf ...`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from layactl.cli.options import QuietOption
from layactl.cli.output import note, path_line, plain_line, progress, record

app = typer.Typer(help="Look into GGUF files, compare, quantize and translate them.", no_args_is_help=True)

_DIFFERENT = 2

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A GGUF file.", show_default=False)]
OutOption = Annotated[
    Path, typer.Option("-o", "--out", metavar="OUT.gguf", help="The file to write.", show_default=False)
]


class QuantizeRecipe(StrEnum):
    """Recipes of `gguf quantize`."""

    mixed = "q8_0-mixed"
    all = "q8_0"


@app.command("inspect")
def inspect_command(
    file: FileArgument, as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead.")] = False
) -> None:
    """Show what a file holds: dialect, shapes, types, tokenizer, limits, temperatures, warnings."""
    from layactl.gguf_file.inspection import inspect
    from layactl.gguf_file.reader import GgufFile

    report = inspect(GgufFile(file))
    if as_json:
        record(report)
    else:
        _print_report(report)


@app.command("compare")
def compare_command(
    a: Annotated[Path, typer.Argument(metavar="A", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", show_default=False)],
) -> int:
    """Say whether two files are identical, and if not, the first key, tensor or byte that differs (exit code 2)."""
    from layactl.gguf_file.comparison import first_difference
    from layactl.gguf_file.reader import GgufFile

    difference = first_difference(GgufFile(a), GgufFile(b))
    typer.echo(difference or "identical")
    return _DIFFERENT if difference else 0


@app.command("quantize")
def quantize_command(
    file: FileArgument,
    out: OutOption,
    recipe: Annotated[
        QuantizeRecipe,
        typer.Option("--recipe", help="q8_0-mixed keeps embeddings, scorer and act head at F16; q8_0 keeps none."),
    ] = QuantizeRecipe.mixed,
    quiet: QuietOption = False,
) -> None:
    """Write a file with quantized weights, and print its path."""
    from layactl.convert.quantize import quantize

    with progress("quantizing", None, unit="bytes", quiet=quiet) as update:
        nbytes = quantize(file, out, recipe.value, lambda done, total: update(done, total=total))
    note(f"{nbytes:,} bytes, recipe {recipe.value}", quiet)
    path_line(out)


@app.command("convert-dialect")
def convert_dialect_command(
    file: Annotated[Path, typer.Argument(metavar="IN", help="A GGUF of the laya dialect.", show_default=False)],
    out: OutOption,
    quiet: QuietOption = False,
) -> None:
    """Write a laya file as the one that stock llama-server loads, and print its path.

    The act head and max_len are lost, so there is no way back: a laya file comes from the checkpoint.
    """
    from layactl.convert.convert_dialect import convert_dialect

    with progress("converting", None, unit="bytes", quiet=quiet) as update:
        notes = convert_dialect(file, out, lambda done, total: update(done, total=total))
    for message in notes:
        note(message, quiet)
    path_line(out)


def _print_report(report: dict[str, Any]) -> None:
    """One line a field, however long, so that a search finds what it looks for."""
    for key, value in report.items():
        if key != "warnings":
            plain_line(f"{key:<14} {_spell(value)}")
    for warning in report.get("warnings", []):
        note(warning)


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(
            f"{key} {_spell(item)}" if not isinstance(item, dict) else f"{key} ({_spell(item)})"
            for key, item in value.items()
        )
    if isinstance(value, bool) or value is None:
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return (
        f"{value:g}"
        if isinstance(value, float)
        else ", ".join(map(_spell, value))
        if isinstance(value, list)
        else str(value)
    )
