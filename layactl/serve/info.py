"""What a server says about itself: health, models, props (specification, Info routes)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import layactl
from layactl.convert.cache import CachedModel
from layactl.core.calibration import UNCALIBRATED_VERSION
from layactl.core.decision_spec import CARD_RENDERER, CARD_SCHEMA, PLANS, SEQUENTIAL, SPEC_VERSION
from layactl.durable import readable_name
from layactl.engine.model import Model
from layactl.engine.request import MAX_BODY_BYTES
from layactl.reporting.record_stream import file_sha256
from layactl.router.card import MAX_CARD_STRING_BYTES, MAX_CHECKS
from layactl.router.score import Router
from layactl.serve.settings import Settings

API_VERSION = 1


@dataclass
class Served:
    """A model that is ready to answer. file: its GGUF; threads: of its forward pass; cached: set for a folder."""

    model: Model
    router: Router
    threads: int
    file: Path
    cached: CachedModel | None = None
    since: float = field(default_factory=time.time)

    @cached_property
    def file_sha256(self) -> str:
        """Of the model's file, read when somebody first asks."""
        return file_sha256(self.file)


def health(served: Served) -> dict[str, Any]:
    return {"status": "ok", "ok": True, "model": served.model.name, "layout": served.model.layout.name}


def models(served: Served) -> dict[str, Any]:
    """One model, in the shape clients of model lists know."""
    model = served.model
    # Only a router calibration makes scores probabilities, whatever --allow-uncalibrated lets through.
    router = ["router_score"] if model.spec.router.platt else []
    return {
        "object": "list",
        "data": [
            {
                "id": model.name,
                "object": "model",
                "created": int(served.since),
                "owned_by": "layactl",
                "capabilities": ["decision", "systemone", *router],
                "decision": {
                    "api_version": API_VERSION,
                    "layout": model.layout.name,
                    "model_id": model.spec.model_id,
                    "model_version": model.spec.model_version,
                },
            }
        ],
    }


def limits(served: Served, settings: Settings) -> dict[str, int]:
    """What a request is held to."""
    model, spec = served.model, served.model.spec
    return {
        "max_questions": settings.max_items,
        "max_candidates": min(settings.max_items, spec.max_candidates),
        "max_options": spec.max_options,
        "max_checks": MAX_CHECKS,
        "max_tokens": model.limits.max_len,
        "max_head_tokens": model.limits.head_max_len,
        "max_card_tokens": served.router.max_card_tokens,
        "max_card_field_bytes": MAX_CARD_STRING_BYTES,
        "max_body_bytes": MAX_BODY_BYTES,
    }


def props(served: Served, settings: Settings, endpoints: list[str], waiting: int) -> dict[str, Any]:
    """Everything an answer depends on, and every limit it is held to."""
    model, spec, cached = served.model, served.model.spec, served.cached
    calibrated = spec.calibration.version != UNCALIBRATED_VERSION
    router_calibrated = spec.router.platt is not None
    return {
        "model_alias": model.name,
        "model_path": settings.model_path,
        "build_info": f"layactl {layactl.__version__}",
        "decision": {
            "api_version": API_VERSION,
            "endpoints": endpoints,
            "layout": model.layout.name,
            "format": model.layout.format,
            "model_id": spec.model_id,
            "model_version": spec.model_version,
            "source_sha256": model.source_sha256,
            "model_sha256": served.file_sha256,
            "spec_version": SPEC_VERSION,
            "spec_sha256": spec.sha256,
            "spec_source": spec.source,
            "question_types": list(model.layout.question_types),
            "limits": limits(served, settings),
            "confidence": spec.confidence,
            "calibration": {
                "method": "temperature" if calibrated else "none",
                "calibrated": calibrated,
                "version": spec.calibration.version,
            },
            "router": {
                "available": router_calibrated or settings.allow_uncalibrated,
                "calibrated": router_calibrated,
                "method": "platt" if router_calibrated else "none",
                "card_schema": CARD_SCHEMA,
                "card_renderer": CARD_RENDERER,
            },
            "plan": {
                "name": model.forward.plan,
                "router": SEQUENTIAL,
                "plans": list(PLANS),
                "n_threads": served.threads,
                "kernels": model.forward.kernels,
                "precision": model.forward.precision,
                "state_split": served.router.state_split,
                "recipe": spec.plan.recipe,
            },
            "memory": {f"weights_{place}_bytes": nbytes for place, nbytes in model.memory().items()},
            "device": model.forward.device,
            "queue_capacity": settings.queue,
            "queue_waiting": waiting,
            "input_contract": spec.input_contract,
            "special_tokens": spec.special_tokens,
            "debug": settings.debug,
            "source": "checkpoint-dir" if cached else "gguf",
            "cache_path": readable_name(cached.file.path) if cached else None,
            "checkpoint": _checkpoint(settings, cached) if cached else None,
        },
    }


def _checkpoint(settings: Settings, cached: CachedModel) -> dict[str, Any]:
    return {
        "dir": settings.model_path,
        "cache_dir": readable_name(cached.cache_dir),
        "key": cached.key,
        "outtype": cached.outtype,
        "cache_hit": cached.hit,
        "convert_ms": cached.convert_ms,
        "converter": f"layactl {layactl.__version__}",
    }
