"""`layactl spec ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layactl.cli.gguf import FileArgument
from layactl.cli.options import QuietOption
from layactl.cli.output import note, path_line, raw_text

app = typer.Typer(help="The decision.spec of a GGUF file.", no_args_is_help=True)

_DIFFERENT = 2

SpecArgument = Annotated[Path, typer.Argument(metavar="SPEC.json", help="A decision.spec.", show_default=False)]


@app.command("get")
def get_command(file: FileArgument) -> None:
    """Print the exact spec text of a file."""
    from layactl.engine.stamp import get_spec
    from layactl.gguf_file.reader import GgufFile

    raw_text(get_spec(GgufFile(file)))


@app.command("set")
def set_command(
    file: FileArgument,
    spec: SpecArgument,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="OUT.gguf", help="Write a new file instead of this one.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Put a spec into a file, by the loader's rules. Nothing but the spec keys changes."""
    from layactl.engine.stamp import set_spec

    stamped = set_spec(file, spec, out)
    note(f"spec_sha256 {stamped.sha256}", quiet)
    path_line(out if out is not None else file)


@app.command("verify")
def verify_command(
    file: FileArgument,
    spec: Annotated[Path | None, typer.Argument(metavar="SPEC.json", help="The spec that the file must carry.")] = None,
) -> int:
    """Check the spec of a file by the loader's rules, and that it agrees with its mirror keys.

    Exit code 2 when it is not the text of SPEC.json.
    """
    from layactl.engine.stamp import verify_spec

    verified, difference = verify_spec(file, spec)
    typer.echo(difference or f"ok  {verified.layout}  {verified.model_id}  spec_sha256 {verified.sha256}")
    return _DIFFERENT if difference else 0
