"""What was asked for on a command line -> configurations to measure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.bench.llama_server import running_llama_server
from layactl.bench.run import Config, label_of
from layactl.durable import readable_name
from layactl.errors import UsageError

PEERS = ("laya", "laya-bf16", "llama-server")


@dataclass(frozen=True)
class EngineChoice:
    """Every combination of these is a configuration. models: (GGUF, name); None leaves the choice to the model."""

    models: Sequence[tuple[Path, str]]
    threads: Sequence[int]
    kernels: Sequence[str | None]
    plans: Sequence[str | None]
    spec: Path | None = None
    max_len: int | None = None

    def configs(self) -> list[Config]:
        """A label names what differs between the configurations, and no more."""
        found = []
        for (model, name), threads, kernels, plan in itertools.product(
            self.models, self.threads, self.kernels, self.plans
        ):
            parts = [name]
            parts += [kernels or "auto"] if len(self.kernels) > 1 else []
            parts += [plan or "plan"] if len(self.plans) > 1 else []
            parts += [f"t{threads}"] if len(self.threads) > 1 else []
            job: dict[str, Any] = {
                "kind": "engine",
                "model": readable_name(model),
                "name": name,
                "threads": threads,
                "kernels": kernels,
                "plan": plan,
                "spec": readable_name(self.spec) if self.spec else None,
                "max_len": self.max_len,
            }
            found.append(Config(label_of(*parts), job))
        return found


@contextmanager
def peers(texts: Sequence[str], model: Path, threads: int) -> Iterator[list[Config]]:
    """Configurations of `--peer NAME=WHERE`, ready to be asked while the block lasts.

    laya=CHECKPOINT and laya-bf16=CHECKPOINT are the reference package, llama-server=URL|BINARY a stock server; model:
    what a BINARY is started with. Raises UsageError, ModelLoadError.
    """
    with ExitStack() as stack:
        found = []
        for text in texts:
            name, equals, where = text.partition("=")
            if not equals or not where or name not in PEERS:
                raise UsageError(
                    "is no peer", where=f"--peer {text:.80}", hint="laya=CHECKPOINT, laya-bf16=... or llama-server=URL"
                )
            if name == "llama-server":
                url = where
                if not where.startswith(("http://", "https://")):
                    url = stack.enter_context(running_llama_server(Path(where), model, threads))
                found.append(Config(name, {"kind": "server", "url": url, "foreign": True, "threads": threads}))
            else:
                if not Path(where).is_dir():
                    raise UsageError("is no checkpoint folder", where=f"--peer {text:.200}")
                job = {"kind": "reference", "checkpoint": where, "threads": threads, "bf16": name == "laya-bf16"}
                found.append(Config(name, job))
        yield found
