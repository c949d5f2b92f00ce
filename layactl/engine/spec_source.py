"""Which spec is in force: --spec FILE, else the GGUF's decision.spec, else the defaults of an unstamped file."""

from __future__ import annotations

from pathlib import Path

from layactl.core import strict_json
from layactl.core.calibration import Calibration
from layactl.core.decision_spec import SPEC_VERSION, DecisionSpec
from layactl.core.spec_parser import default_spec_text, parse_spec
from layactl.errors import SpecError
from layactl.gguf_file import names
from layactl.gguf_file.reader import GgufFile
from layactl.layouts.interface import Layout

MAX_SPEC_BYTES = 2**20


def load_spec(
    file: GgufFile, shipped: Calibration, layout: Layout, model_id: str, spec_file: Path | None
) -> DecisionSpec:
    """Read and check the spec in force.

    shipped: the calibration in the file's own keys; model_id: the name a spec without one gets.
    Raises SpecError for a spec that breaks a rule, GgufError for a key that is no text.
    """
    if spec_file is not None:
        text, source, where = read_spec_text(spec_file), "file", str(spec_file)
    elif names.DECISION_SPEC in file.keys:
        text, source, where = file.text(names.DECISION_SPEC), "gguf", f"{names.DECISION_SPEC} of {file.path}"
    else:
        text, source, where = default_spec_text(layout.name, model_id, shipped), "default", str(file.path)
    spec = check_spec(text, source=source, where=where, shipped=shipped, layout=layout, model_id=model_id)
    if source == "gguf":
        _check_mirrors(file, spec)
    return spec


def default_spec(layout: Layout, model_id: str = "", where: str = "") -> DecisionSpec:
    """The spec of a model that ships neither one nor temperatures."""
    none = Calibration()
    text = default_spec_text(layout.name, model_id, none)
    return check_spec(text, source="default", where=where, shipped=none, layout=layout, model_id=model_id)


def check_spec(
    text: str, *, source: str, where: str, shipped: Calibration, layout: Layout, model_id: str
) -> DecisionSpec:
    """A spec that follows the rules and is made for a model of this layout. Raises SpecError."""
    spec = parse_spec(
        text,
        source=source,
        where=where,
        shipped=shipped,
        model_id=model_id,
        parse_question=layout.parse_question,
    )
    if spec.layout != layout.name:
        raise SpecError(f"layout is {spec.layout}, but the model's is {layout.name}", where=where)
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


def mirror_values(spec: DecisionSpec) -> dict[str, str | int | None]:
    """The mirror keys for readers that skip the JSON, as they must stand beside this spec.

    None where the spec states nothing: a default, such as the file's name for model_id, is not mirrored, since it would
    contradict the spec as soon as the file is called something else.
    """
    stated = strict_json.loads_strict(spec.text)
    return {
        names.SPEC_VERSION: SPEC_VERSION,
        names.SPEC_LAYOUT: spec.layout,
        names.SPEC_MODEL_ID: stated.get("model_id"),
        names.SPEC_MODEL_VERSION: stated.get("model_version"),
    }


def _check_mirrors(file: GgufFile, spec: DecisionSpec) -> None:
    """Mirror keys that are there must agree with the spec. Raises SpecError, GgufError, naming the key."""
    for key, stated in mirror_values(spec).items():
        if key not in file.keys:
            continue
        found = file.integer(key) if key == names.SPEC_VERSION else file.text(key)
        if found != stated:
            says = "states none" if stated is None else f"says {stated!r:.60}"
            raise SpecError(f"{key} is {found!r:.60}, but decision.spec {says}", where=str(file.path))
