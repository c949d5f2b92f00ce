"""What ran: model, kernels, versions, source and machine, recorded beside every number that is compared later."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import layactl
from layactl.engine.model import Model
from layactl.gguf_file import names
from layactl.gguf_file.dialect import dialect_of
from layactl.gguf_file.reader import GgufFile
from layactl.reporting.record_stream import file_sha256

FORMAT = "layactl.identity/1"

# The units whose files can change a digit of an answer.
_NUMERIC_UNITS = ("core", "engine", "gguf_file", "kernels", "layouts", "router")
_NARROW_FIRST = ("Q8_0", "BF16", "F16")
_LIBRARIES = ("torch", "tokenizers", "numpy")
# The instruction sets that choose between kernels of the libraries.
_INSTRUCTION_SETS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve"),
)


def engine_identity(model: Model, file: GgufFile, threads: int) -> dict[str, Any]:
    """The identity of a run through the engine. threads: of the forward pass. Raises InputError."""
    return {
        "format": FORMAT,
        "side": "engine",
        "model": {
            "name": model.name,
            "sha256": file_sha256(file.path),
            "dialect": dialect_of(file),
            "weights": weights_type(file),
            "source_sha256": model.source_sha256,
            "checkpoint": file.text(names.NAME, "") or None,
        },
        "spec_sha256": model.spec.sha256,
        "limits": {"max_len": model.limits.max_len, "head_max_len": model.limits.head_max_len},
        "kernels": model.forward.kernels,
        "activations": model.forward.precision,
        "precision": model.forward.precision,
        "plan": model.forward.plan,
        "threads": threads,
        "device": model.forward.device,
        **environment(library_versions()),
    }


def weights_type(file: GgufFile) -> str:
    """The narrowest type among the 2-D tensors: "Q8_0", "BF16", "F16" or "F32"."""
    types = {tensor.type_name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return next((name for name in _NARROW_FIRST if name in types), "F32")


def environment(libraries: Mapping[str, str]) -> dict[str, Any]:
    """Versions (layactl's own and those of `libraries`), source manifest and machine."""
    return {
        "versions": {"layactl": layactl.__version__, "python": platform.python_version(), **libraries},
        "source_manifest": source_manifest(),
        "host": host(),
    }


def library_versions() -> dict[str, str]:
    """The libraries that the engine's numbers come from."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a build that carries them without metadata
            found[name] = "unknown"
    return found


@cache
def source_manifest() -> str:
    """SHA-256 over the names and contents of layactl's numeric source files, as they are on disk now."""
    package = Path(layactl.__file__).parent
    digest = hashlib.sha256(b"layactl source manifest 1\n")
    for unit in _NUMERIC_UNITS:
        for path in sorted((package / unit).rglob("*.py")):
            name = path.relative_to(package).as_posix()
            digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@cache
def host() -> dict[str, Any]:
    """The CPU, its instruction sets and how much of it this process may use."""
    return {
        "cpu": _cpu_name(),
        "instruction_sets": _instruction_sets(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


@cache
def _cpuinfo() -> dict[str, str]:
    """The first value of each field of /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return fields


def _cpu_name() -> str:
    if name := _cpuinfo().get("model name"):
        return name
    if platform.system() == "Darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return platform.processor() or "unknown"


def _instruction_sets() -> list[str]:
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return [name for name in _INSTRUCTION_SETS if name in flags]
