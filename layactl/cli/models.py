"""From what was typed for -m to a model, with the notes that belong to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from layactl.cli.options import FolderOuttype
from layactl.cli.output import note, progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from layactl.convert.resolve import ResolvedModel
    from layactl.engine.model import Model
    from layactl.engine.text_side import TextSide


@dataclass(frozen=True)
class ModelChoice:
    """-m and the options that go with it. name: instead of the file's own, in answers."""

    path: Path
    outtype: FolderOuttype = FolderOuttype.f16
    cache_dir: Path | None = None
    threads: int | None = None
    spec: Path | None = None
    kernels: str | None = None
    quiet: bool = False
    max_len: int | None = None
    plan: str | None = None
    name: str | None = None
    device: str = "cpu"

    def resolve(self, check: Callable[[], None] = lambda: None) -> ResolvedModel:
        """Open the GGUF behind -m, converting a checkpoint folder on its first use.

        check: called between the steps of a conversion; what it raises ends it.
        """
        from layactl.convert.resolve import resolve_model

        def advance(done: int, total: int) -> None:
            check()
            update(done, total=total)

        with progress("converting", None, unit="bytes", quiet=self.quiet) as update:
            resolved = resolve_model(
                self.path,
                outtype=self.outtype.value,
                cache_dir=self.cache_dir,
                progress=advance,
            )
        if resolved.cached and not resolved.cached.hit:
            for message in resolved.cached.notes:
                note(message, self.quiet)
            note(f"converted in {resolved.cached.convert_ms / 1000:.1f} s: {resolved.file.path}", self.quiet)
        return resolved

    def load(self, resolved: ResolvedModel) -> Model:
        """Load it, and say what the user should know about the file."""
        from layactl.engine.model import Model
        from layactl.engine.threads import command_threads

        threads, notes = command_threads(self.threads)
        for message in notes:
            note(message, self.quiet)
        model = Model.from_gguf(
            resolved.file,
            name=self.name or resolved.name,
            threads=threads,
            spec_file=self.spec,
            kernels=self.kernels,
            max_len=self.max_len,
            plan=self.plan,
            device=self.device,
        )
        for message in model.notes:
            note(message, self.quiet)
        return model

    def load_text_side(self, resolved: ResolvedModel) -> TextSide:
        """Load all but the weights, and say what the user should know about the file."""
        from layactl.engine.text_side import read_text_side
        from layactl.gguf_file.dialect import read_model

        loaded = read_model(resolved.file, self.max_len)
        text = read_text_side(loaded, name=resolved.name, spec_file=self.spec)
        for message in text.notes:
            note(message, self.quiet)
        return text
