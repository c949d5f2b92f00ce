"""A decision.spec put into a GGUF, nothing else touched (specification, "Stamping without re-converting").

The new file takes the old one's name at once, so that a reader sees the one or the other; its data section is handed
from file to file inside the kernel, which on file systems with shared extents moves nothing.
"""

from __future__ import annotations

from pathlib import Path

from layactl.core.decision_spec import DecisionSpec
from layactl.durable import check_target, replacing
from layactl.engine.spec_source import check_spec, load_spec, mirror_values, read_spec_text
from layactl.errors import GgufError, OutputError
from layactl.gguf_file import names
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.reader import GgufFile
from layactl.gguf_file.rewrite import rewrite_gguf
from layactl.layouts.laya import LAYA


def get_spec(file: GgufFile) -> str:
    """The exact spec text of a GGUF. Raises GgufError when it carries none."""
    if names.DECISION_SPEC not in file.keys:
        raise GgufError(
            "carries no decision.spec", where=str(file.path), hint="layactl spec set FILE SPEC.json puts one in"
        )
    return file.text(names.DECISION_SPEC)


def set_spec(path: Path, spec_file: Path, out: Path | None = None, *, model_id: str | None = None) -> DecisionSpec:
    """Put a spec and its mirror keys into a GGUF, in place or as a new file.

    model_id: for a spec that names none; default: the file's name.
    A bare calibration.json is no spec and is refused. Raises SpecError, GgufError and OutputError; the file is then as
    it was.
    """
    target = out if out is not None else path
    check_target(target)
    if out is not None and out.exists() and out.samefile(path):
        raise OutputError("is the input itself", where=str(out), hint="without -o the file is changed in place")
    file = GgufFile(path)
    spec = check_spec(
        read_spec_text(spec_file),
        source="gguf",
        where=str(spec_file),
        shipped=read_model(file).calibration,
        layout=LAYA,
        model_id=model_id or _name(path),
    )
    with replacing(target) as temporary:
        rewrite_gguf(file, temporary, {names.DECISION_SPEC: spec.text, **mirror_values(spec)})
        temporary.chmod(path.stat().st_mode & 0o777)
    return spec


def verify_spec(path: Path, spec_file: Path | None) -> tuple[DecisionSpec, str | None]:
    """The spec of a GGUF, which breaks no rule and agrees with its mirrors; and how it differs from `spec_file`, if it
    does (a line end after the text, as `get` writes it, is no difference).

    Raises SpecError and GgufError.
    """
    file = GgufFile(path)
    text = get_spec(file)
    spec = load_spec(file, read_model(file).calibration, LAYA, _name(path), None)
    if spec_file is None or read_spec_text(spec_file) in (text, text + "\n"):
        return spec, None
    return spec, f"{path} carries another spec than {spec_file}"


def _name(path: Path) -> str:
    """What a model loaded from this file is called."""
    return path.name.removesuffix(".gguf")
