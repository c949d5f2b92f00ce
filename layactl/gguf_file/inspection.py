"""What a GGUF holds, for people and for scripts, without loading the model."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

from layactl.core import strict_json
from layactl.errors import LayactlError, RequestError
from layactl.gguf_file import llama_cpp_dialect, names
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.model_file import ModelFile
from layactl.gguf_file.reader import GgufFile


def inspect(file: GgufFile) -> dict[str, Any]:
    """A JSON-ready description. A file that is no model this version runs is described as far as it goes, and
    `problem` says why.
    """
    types: dict[str, dict[str, int]] = defaultdict(lambda: {"tensors": 0, "bytes": 0})
    for tensor in file.tensors.values():
        types[tensor.type_name]["tensors"] += 1
        types[tensor.type_name]["bytes"] += tensor.nbytes
    report: dict[str, Any] = {
        "file": str(file.path),
        "bytes": file.path.stat().st_size,
        "architecture": file.text(names.ARCHITECTURE, ""),
        "name": file.text(names.NAME, ""),
        "keys": len(file.keys),
        "types": dict(types),
        "spec": _spec(file),
    }
    try:
        model = read_model(file)
    except LayactlError as error:
        return report | {"dialect": None, "problem": error.message}
    return report | _model(file, model)


def _spec(file: GgufFile) -> dict[str, Any] | None:
    """The stamped decision.spec as it stands (`layactl spec verify` checks it), None for an unstamped file."""
    if names.DECISION_SPEC not in file.keys:
        return None
    text = file.text(names.DECISION_SPEC)
    try:
        content = strict_json.loads_strict(text)
    except RequestError as error:
        content = error.message
    return {"sha256": hashlib.sha256(text.encode("utf-8")).hexdigest(), "content": content}


def _model(file: GgufFile, model: ModelFile) -> dict[str, Any]:
    encoder, head, limits, tokenizer = model.shape.encoder, model.shape.head, model.shape.limits, model.tokenizer
    return {
        "dialect": model.dialect,
        "encoder": {
            "layers": encoder.layers,
            "hidden": encoder.hidden,
            "heads": encoder.heads,
            "ffn": encoder.ffn,
            "vocab": encoder.vocab_size,
            "context_length": encoder.context_length,
            "norm_eps": encoder.norm_eps,
            "rope_theta": {"global": encoder.global_theta, "local": encoder.local_theta},
            "local_attention": encoder.local_attention,
            "global_every": encoder.global_every,
        },
        "head": {"layers": head.layers, "heads": head.heads, "act_classes": head.act_classes},
        "limits": {"max_len": limits.max_len, "head_max_len": limits.head_max_len},
        "tokenizer": {
            "family": tokenizer.family,
            "normalizer": tokenizer.normalizer,
            "pieces": sum(piece is not None for piece in tokenizer.pieces),
            "merges": len(tokenizer.merges),
            "added_tokens": len(tokenizer.added),
            "special": vars(tokenizer.special),
        },
        "calibration": {
            "version": model.calibration.version,
            # Clamped when they are read, by layactl and by the reference; stock llama.cpp applies them as they are.
            "stored": "raw",
            "clamp": list(model.calibration.clamp),
            "temperature": {kind: dict(buckets) for kind, buckets in model.calibration.temperature.items()},
        },
        "recipe": file.text(names.RECIPE, "") or None,
        "source_sha256": file.text(names.SOURCE_SHA256, "") or None,
        "warnings": [*_temperature_warnings(model), *model.notes],
    }


def _temperature_warnings(model: ModelFile) -> list[str]:
    clamped = model.calibration.warnings()
    if clamped and model.dialect == llama_cpp_dialect.DIALECT:
        clamped.append("stock llama.cpp does not clamp temperatures: it applies them as they are stored")
    return clamped
