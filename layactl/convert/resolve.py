"""What the user typed for a model -> an open GGUF."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from layactl.convert.cache import CachedModel, cached_conversion
from layactl.durable import readable_name
from layactl.gguf_file.reader import GgufFile


@dataclass(frozen=True)
class ResolvedModel:
    """name: what answers carry as "model"; cached: set when the path was a checkpoint folder."""

    file: GgufFile
    name: str
    cached: CachedModel | None = None


def resolve_model(
    path: Path,
    *,
    outtype: str = "f16",
    cache_dir: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ResolvedModel:
    """A GGUF file as it is; a checkpoint folder through the cache, converted on its first use.

    Raises GgufError, CheckpointError, OutputError.
    """
    if not path.is_dir():
        return ResolvedModel(GgufFile(path), readable_name(path.name.removesuffix(".gguf")))
    cached = cached_conversion(path, outtype, cache_dir, progress)
    return ResolvedModel(cached.file, readable_name(path.resolve().name), cached)
