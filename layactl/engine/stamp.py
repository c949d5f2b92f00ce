"""A decision.spec put into a GGUF, nothing else touched (specification, "Stamping without re-converting").

The new file takes the old one's name at once, so that a reader sees the one or the other; its data section is handed
from file to file inside the kernel, which on file systems with shared extents moves nothing.
"""

from __future__ import annotations

from pathlib import Path

from layactl.core.calibration import Calibration
from layactl.core.decision_spec import DecisionSpec
from layactl.core.spec_parser import parse_spec
from layactl.durable import check_target, replacing
from layactl.engine.spec_source import check_mirrors, load_spec, mirror_values, read_spec_text
from layactl.errors import GgufError
from layactl.gguf_file import names
from layactl.gguf_file.laya_dialect import read_model
from layactl.gguf_file.reader import GgufFile
from layactl.gguf_file.rewrite import rewrite_gguf
from layactl.layouts.laya import LAYA


def get_spec(path: Path) -> str:
    """The exact spec text of a GGUF. Raises GgufError when it carries none."""
    file = GgufFile(path)
    if names.DECISION_SPEC not in file.keys:
        raise GgufError("carries no decision.spec", where=str(path), hint="its defaults: layactl gguf inspect FILE")
    return file.text(names.DECISION_SPEC)


def check_spec_file(path: Path, file: GgufFile | None = None) -> DecisionSpec:
    """A spec file by the rules of the loader; a bare calibration.json is not one. Raises SpecError."""
    text = read_spec_text(path)
    shipped = read_model(file).calibration if file is not None else Calibration()
    return parse_spec(
        text,
        source="gguf",
        where=str(path),
        shipped=shipped,
        model_id=file.path.stem if file is not None else path.stem,
        parse_question=LAYA.parse_question,
    )


def set_spec(path: Path, spec_file: Path, out: Path | None) -> DecisionSpec:
    """Put a spec and its mirror keys into a GGUF, in place or as a new file.

    Raises SpecError, GgufError and OutputError; the file is then as it was.
    """
    target = out if out is not None else path
    check_target(target)
    file = GgufFile(path)
    spec = check_spec_file(spec_file, file)
    changes: dict[str, str | int | None] = {names.DECISION_SPEC: spec.text, **mirror_values(spec)}
    with replacing(target) as temporary:
        rewrite_gguf(file, temporary, changes)
        temporary.chmod(path.stat().st_mode & 0o777)
    return spec


def verify_spec(path: Path, spec_file: Path | None) -> DecisionSpec:
    """The spec of a GGUF breaks no rule, agrees with its mirrors, and (with spec_file) is that text.

    Raises SpecError and GgufError.
    """
    text = get_spec(path)
    file = GgufFile(path)
    spec = load_spec(file, read_model(file).calibration, LAYA, path.stem, None)
    check_mirrors(file, spec)
    if spec_file is not None and read_spec_text(spec_file) not in (text, text + "\n"):
        raise GgufError(f"carries another spec than {spec_file}", where=str(path))
    return spec
