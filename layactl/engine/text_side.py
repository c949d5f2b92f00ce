"""A GGUF -> what of a model reads requests: all but the weights, so that nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from layactl.core.decision_spec import DecisionSpec
from layactl.core.model_shape import Limits
from layactl.core.tokenizer import Tokenizer
from layactl.engine.spec_source import load_spec
from layactl.gguf_file.model_file import ModelFile
from layactl.layouts.interface import Layout
from layactl.layouts.laya import LAYA


@dataclass(frozen=True)
class TextSide:
    """What a model takes requests by.

    name: what answers carry as "model"; limits: token budgets of a sequence; spec: the contract in force; notes: what
    the user should know about the file (clamped temperatures).
    """

    name: str
    layout: Layout
    tokenizer: Tokenizer
    limits: Limits
    spec: DecisionSpec
    notes: tuple[str, ...]


def read_text_side(loaded: ModelFile, *, name: str, spec_file: Path | None) -> TextSide:
    """spec_file: replaces the file's own spec as a whole. Raises GgufError, SpecError."""
    try:
        tokenizer = Tokenizer(loaded.tokenizer)
    except ValueError as error:
        raise loaded.file.error(f"the tokenizer cannot be built: {error}") from None
    spec = load_spec(loaded.file, loaded.calibration, LAYA, name, spec_file)
    notes = (*spec.calibration.warnings(), *loaded.notes)
    return TextSide(name, LAYA, tokenizer, loaded.shape.limits, spec, notes)
