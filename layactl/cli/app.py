"""The `layactl` command: the one place where an error becomes a line on stderr and an exit code."""

from __future__ import annotations

import io
import itertools
import os
import sys
import traceback
from collections.abc import Sequence

import typer

from layactl import __version__
from layactl.cli import (
    bench,
    cache,
    calib,
    calib_eval,
    convert,
    decide,
    gguf,
    parity,
    parity_checks,
    presets,
    router,
    serve,
    spec,
    tokenize,
    tokenizer,
    train,
)
from layactl.cli.output import error_line
from layactl.durable import readable_name
from layactl.errors import LayactlError, UsageError

app = typer.Typer(
    name="layactl",
    help="Convert, run and check typed-decision models of the Laya family on a CPU.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("convert")(convert.convert_command)
app.command("decide")(decide.decide_command)
app.command("serve")(serve.serve_command)
app.command("presets")(presets.presets_command)
app.add_typer(router.app, name="router")
app.command("tokenize")(tokenize.tokenize_command)
app.add_typer(tokenizer.app, name="tokenizer")
app.add_typer(gguf.app, name="gguf")
parity.app.command("trace")(parity_checks.trace_command)
parity.app.command("diff")(parity_checks.diff_command)
parity.app.command("invariance")(parity_checks.invariance_command)
app.add_typer(parity.app, name="parity")
app.add_typer(bench.app, name="bench")
calib.app.command("eval")(calib_eval.eval_command)
calib.app.command("threshold")(calib_eval.threshold_command)
calib.app.command("baselines")(calib_eval.baselines_command)
calib.app.command("report")(calib_eval.report_command)
app.add_typer(calib.app, name="calib")
app.command("train")(train.train_command)
app.add_typer(spec.app, name="spec")
app.add_typer(cache.app, name="cache")

_PATH_OPTIONS = (
    *("-m", "--model", "-o", "--out", "--questions", "--state-file", "--jsonl", "--spec", "--cache-dir", "--texts"),
    *("--verify-against", "--tiers", "--corpus", "--runs", "--json", "--socket", "--ssl-cert-file", "--ssl-key-file"),
    *("--api-key-file", "--access-log", "--against", "--fit", "--html", "--spec-out", "--stamp", "--min-confidence"),
    *("--train", "--dev", "--features"),
)
_SPIN_COUNT = "10000"
_INTERRUPTED = 130
_BROKEN_PIPE = 141


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"layactl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
    ),
    show_traceback: bool = typer.Option(False, "--traceback", help="Show where in the code an error came from."),
) -> None:
    """Convert, run and check typed-decision models of the Laya family on a CPU."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (cli-contract, exit codes)."""
    args = list(sys.argv[1:] if argv is None else argv)
    # Wherever it stands on the line: nobody remembers which side of the subcommand a global option belongs on.
    with_traceback = "--traceback" in args
    args = [arg for arg in args if arg != "--traceback"]
    if not _open_streams():
        return 1
    # Read once, when torch brings its OpenMP in: how long a thread that waits for the others keeps its core busy. The
    # default of milliseconds makes every small operation cost them as soon as anybody else wants a core.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    try:
        _refuse_empty_paths(args)
        code = app(args, prog_name="layactl", standalone_mode=False)
        if code == _INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except LayactlError as error:
        if with_traceback:
            traceback.print_exc()
        error_line(error)
        return error.exit_code
    except typer.Exit as stop:
        return stop.exit_code
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        # Without a message the help has been printed: a command group was called without a command.
        if message := error.format_message():
            error_line(message, hint=f"{context.command_path} --help" if context else "layactl --help")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        error_line("interrupted")
        return _INTERRUPTED
    except (BrokenPipeError, SystemExit) as stop:
        # typer makes SystemExit of a reader that has left.
        if isinstance(stop, SystemExit) and not isinstance(stop.__context__, BrokenPipeError):
            raise
        # Keep the interpreter from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except OSError as error:
        if with_traceback:
            traceback.print_exc()
        if isinstance(error.filename, str):
            error_line(f"cannot be used: {error.strerror} ({readable_name(error.filename)})")
            return 1
        # Files are told by name; what is left is our own output.
        error_line(f"cannot be written: {error.strerror} (standard output)")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if with_traceback:
            traceback.print_exc()
        error_line(f"internal error: {type(error).__name__}: {error}", hint="--traceback shows where")
        return 1


def _open_streams() -> bool:
    """UTF-8 whatever the locale says; False where there is no standard output to write to."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for the life of the process
    if sys.stdout is None:
        error_line("standard output is closed")
        return False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    return True


def _refuse_empty_paths(args: list[str]) -> None:
    """An empty path would mean the current folder, which is what an unset shell variable never means."""
    for option, value in itertools.pairwise(args):
        if option in _PATH_OPTIONS and not value:
            raise UsageError("the path is empty", where=option)


if __name__ == "__main__":
    sys.exit(main())
