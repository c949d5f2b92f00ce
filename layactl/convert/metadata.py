"""general.* keys of a converted file: name, size, licence and languages, as gguf's converters derive them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import yaml

from layactl.durable import readable_name
from layactl.errors import CheckpointError

README = "README.md"
_MAX_README_BYTES = 16 * 2**20


def read_metadata(root: Path, model_name: str | None, parameters: int) -> gguf.Metadata:
    """From README.md's front matter and the folder's name; model_name beats both.

    Raises CheckpointError when the front matter cannot be read.
    """
    # The folder's absolute name, so that `convert .` names the model as `convert ../folder` does.
    resolved = Path(readable_name(root.resolve()))
    metadata = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), _model_card(root), {}, resolved, parameters)
    metadata.name = model_name or metadata.name or resolved.name
    metadata.size_label = metadata.size_label or gguf.size_label(parameters, parameters, 0, 0)
    return metadata


def _model_card(root: Path) -> dict[str, Any]:
    readme = root / README
    try:
        if readme.is_file() and readme.stat().st_size > _MAX_README_BYTES:
            raise CheckpointError("README.md is larger than 16 MiB", where=str(readme))
        card = gguf.Metadata.load_model_card(root)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError, OSError) as error:
        reason = str(error).split("\n")[0]
        raise CheckpointError(f"README.md front matter cannot be read: {reason}", where=str(readme)) from None
    return {str(key): plain for key, value in card.items() if (plain := _plain(value)) is not None}


def _plain(value: Any) -> str | list[str] | None:
    """Text and lists of text; numbers become text, anything nested is left out."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (str, int, float)):
        return str(value) or None
    if isinstance(value, list):
        return [
            str(item) for item in value if isinstance(item, (str, int, float)) and not isinstance(item, bool)
        ] or None
    return None
