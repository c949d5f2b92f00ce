"""Standard streams that are closed, full or of another encoding: one line and an exit code, as for any other error."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASK = ("--ask", "choice: \u00fc? \u00e9|\u00f6")


def shell(redirect: str, *args: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "layactl", *map(str, args)]
    return subprocess.run(["sh", "-c", f'exec "$@" {redirect}', "sh", *command], capture_output=True, env=env)


@pytest.mark.parametrize(
    ("redirect", "args", "fragment"),
    [
        (">&-", ("presets",), "standard output is closed"),
        ("<&-", ("decide", "-m", "{model}", "-", *ASK), "standard input is closed"),
        (">/dev/full", ("decide", "-q", "-m", "{model}", "x", *ASK), "cannot be written: No space left on device"),
        ("", ("decide", "-m", "", "x", *ASK), "the path is empty (-m)"),
    ],
    ids=["closed output", "closed input", "full output", "empty path"],
)
def test_a_stream_that_cannot_be_used_is_one_line(gguf_for, redirect, args, fragment):
    done = shell(redirect, *(str(arg).format(model=gguf_for("tiny-english")) for arg in args))
    errors = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert done.returncode in (1, 2) and len(errors) == 1 and fragment in errors[0]
    assert "internal" not in errors[0]


def test_output_is_utf_8_whatever_the_locale_says(gguf_for):
    env = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"}
    done = shell("", "decide", "-q", "-m", gguf_for("tiny-english"), "x", *ASK, "--format", "table", env=env)
    assert done.returncode == 0 and "\u00f6" in done.stdout.decode("utf-8")
