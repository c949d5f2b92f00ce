"""Which spec is in force: --spec FILE, else the GGUF's decision.spec, else the defaults of an unstamped file."""

from __future__ import annotations

from pathlib import Path

from layactl.core.calibration import Calibration
from layactl.core.decision_spec import DecisionSpec
from layactl.core.spec_parser import RUNNABLE_LAYOUTS, default_spec_text, parse_spec
from layactl.errors import ModelLoadError, SpecError
from layactl.gguf_file import names
from layactl.gguf_file.reader import GgufFile
from layactl.layouts.interface import Layout

MAX_SPEC_BYTES = 2**20


def load_spec(
    file: GgufFile, shipped: Calibration, layout: Layout, model_id: str, spec_file: Path | None
) -> DecisionSpec:
    """Read and check the spec in force.

    shipped: the calibration in the file's own keys; model_id: the name a spec without one gets.
    Raises SpecError for a spec that breaks a rule, ModelLoadError for one of a layout that cannot be run here.
    """
    if spec_file is not None:
        text, source, where = read_spec_text(spec_file), "file", str(spec_file)
    elif names.DECISION_SPEC in file.keys:
        text, source, where = file.text(names.DECISION_SPEC), "gguf", f"{names.DECISION_SPEC} of {file.path}"
    else:
        text, source, where = default_spec_text(layout.name, model_id, shipped), "default", str(file.path)
    spec = parse_spec(
        text,
        source=source,
        where=where,
        shipped=shipped,
        model_id=model_id,
        parse_question=layout.parse_question,
    )
    if source == "gguf":
        check_mirrors(file, spec)
    if spec.layout not in RUNNABLE_LAYOUTS:
        raise ModelLoadError(
            f"is made for layout {spec.layout}, which this version cannot run", where=where, hint="only laya models run"
        )
    return spec


def read_spec_text(path: Path) -> str:
    """Raises SpecError when the file cannot be read as UTF-8 text of a sensible size."""
    try:
        with path.open("rb") as handle:
            data = handle.read(MAX_SPEC_BYTES + 1)
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(data) > MAX_SPEC_BYTES:
        raise SpecError(f"is larger than {MAX_SPEC_BYTES} bytes", where=str(path))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"is not UTF-8: {error.reason} at byte {error.start}", where=str(path)) from None


def mirror_values(spec: DecisionSpec) -> dict[str, str | int]:
    """The mirror keys for readers that skip the JSON, as they must stand beside this spec."""
    mirrors: dict[str, str | int] = {names.SPEC_VERSION: 1, names.SPEC_LAYOUT: spec.layout}
    mirrors[names.SPEC_MODEL_ID] = spec.model_id
    mirrors[names.SPEC_MODEL_VERSION] = spec.model_version
    return mirrors


def check_mirrors(file: GgufFile, spec: DecisionSpec) -> None:
    """Mirror keys that are there must agree with the spec. Raises SpecError naming the key."""
    for key, expected in mirror_values(spec).items():
        if key in file.keys and file.keys[key].value != expected:
            raise SpecError(
                f"{key} is {file.keys[key].value!r:.60}, but decision.spec says {expected!r:.60}", where=str(file.path)
            )
