"""What a folder may hold beside the files that are read, and what makes it another model (specification, "Converting
without Python").

A file is refused where another loader would take it into account: ignoring it would convert a model that only this
converter sees.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layactl.checkpoint.json_files import parse_json_object, read_bytes
from layactl.core.json_fields import JsonObject
from layactl.errors import CheckpointError

_FILES = (
    ("pytorch_model*.bin*", "holds pickled weights, which are never read; save them as safetensors"),
    ("hf_quant_config.json", "describes quantized weights, which are not understood"),
    ("modules.json", "makes this a sentence-transformers model"),
    ("added_tokens.json", "adds tokens beside tokenizer.json; save the tokenizer again"),
    ("tokenizer/added_tokens.json", "adds tokens beside tokenizer.json; save the tokenizer again"),
)
_ENCODER_KEYS = {
    "quantization_config": "quantized weights are not understood",
    "id2label": "a classifier's config is not understood",
    "num_experts": "a mixture of experts is not understood",
    "num_local_experts": "a mixture of experts is not understood",
}
_TOKENIZER_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
_MAP_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


def refuse_foreign_files(root: Path) -> None:
    """Raises CheckpointError for the first file that makes the folder something else."""
    for pattern, message in _FILES:
        for path in sorted(root.glob(pattern)):
            raise CheckpointError(f"{path.relative_to(root)} {message}", where=str(root))


def refuse_encoder_keys(encoder: JsonObject) -> None:
    for key, message in _ENCODER_KEYS.items():
        if encoder.get(key) is not None:
            raise encoder.error(key, f"is set: {message}")


def refuse_tokenizer_class(root: Path, config: JsonObject) -> None:
    """The tokenizer must be tokenizer.json itself, not a class that wraps or replaces it."""
    found = config.get("tokenizer_class")
    if found not in _TOKENIZER_CLASSES:
        raise config.error("tokenizer_class", f"is {found!r:.60}; only a plain tokenizer.json is understood")
    if config.get("auto_map") is not None:
        raise config.error("auto_map", "names code of its own, which is never run")
    if isinstance(config.get("chat_template"), list):
        raise config.error("chat_template", "is a list; only one template is understood")
    path = root / "tokenizer" / "config.json"
    if found is None and path.exists():
        other = parse_json_object(path, read_bytes(path))
        for key in ("model_type", "tokenizer_class"):
            if other.get(key) is not None:
                raise other.error(key, "selects a tokenizer class of its own")


def refuse_special_tokens_map(root: Path, config: JsonObject, tokenizer: JsonObject) -> None:
    """tokenizer/special_tokens_map.json may restate the special tokens of tokenizer_config.json, and nothing else."""
    path = root / "tokenizer" / "special_tokens_map.json"
    if not path.exists():
        return
    added = {token["content"]: token for token in tokenizer.items("added_tokens") if _has_content(token)}
    special_map = parse_json_object(path, read_bytes(path))
    for key, value in special_map.values.items():
        content = value.get("content") if isinstance(value, dict) else value
        configured = config.get(key)
        configured = configured.get("content") if isinstance(configured, dict) else configured
        if not isinstance(content, str) or content != configured:
            raise special_map.error(key, "does not restate tokenizer_config.json")
        if not isinstance(value, dict):
            continue
        if unknown := sorted(set(value) - {"content", "__type", *_MAP_FLAGS}):
            raise special_map.error(f"{key}.{unknown[0]}", "is not understood")
        flags = added.get(content, {})
        if any(value.get(flag, flags.get(flag)) != flags.get(flag) for flag in _MAP_FLAGS):
            raise special_map.error(key, f"gives {content!r:.40} other flags than tokenizer.json")


def _has_content(token: Any) -> bool:
    return isinstance(token, dict) and isinstance(token.get("content"), str)
