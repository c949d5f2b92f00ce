"""The two sides of a comparison: each makes one record of one item."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from layactl.checkpoint.folder import read_checkpoint
from layactl.client.http_client import SYSTEMONE, ServerClient
from layactl.client.spawned_server import spawned_server
from layactl.durable import readable_name
from layactl.engine.model import Model
from layactl.engine.threads import set_threads
from layactl.errors import NumericError, RequestError
from layactl.gguf_file.reader import GgufFile
from layactl.parity.items import Items
from layactl.reporting.identity import FORMAT, engine_identity, environment

# The folder of a Hugging Face snapshot is called by its commit.
_REVISION = re.compile("[0-9a-f]{40}")

_INTERNAL = 500

Record = dict[str, Any]
Answer = Callable[[dict[str, Any]], Record]


class Side(Protocol):
    """What can be opened, here or in another process, to answer items."""

    def identity(self, items: Items) -> dict[str, Any]:
        """The identity of a run of these items."""
        ...

    def prepared(self) -> AbstractContextManager[Side]:
        """Yields a side with all that it leaves on disk while it lasts; it may be opened several times."""
        ...

    def open(self) -> AbstractContextManager[Answer]:
        """Yields the function from an item to its record."""
        ...


@dataclass(frozen=True)
class EngineSide:
    """A GGUF through the engine. threads: of one process."""

    path: Path
    name: str
    threads: int | None = None
    spec: Path | None = None
    kernels: str | None = None
    max_len: int | None = None
    plan: str | None = None
    device: str = "cpu"

    def load(self) -> Model:
        return Model.from_gguf(
            GgufFile(self.path),
            name=self.name,
            threads=self.threads,
            spec_file=self.spec,
            kernels=self.kernels,
            max_len=self.max_len,
            plan=self.plan,
            device=self.device,
        )

    def identity(self, items: Items) -> dict[str, Any]:
        """What a run of this side depends on. Loads the model once."""
        model = self.load()
        identity = engine_identity(model, GgufFile(self.path), set_threads(self.threads))
        return identity | {"corpus": items.identity()}

    def prepared(self) -> AbstractContextManager[Side]:
        return nullcontext(self)

    @contextmanager
    def open(self) -> Iterator[Answer]:
        model = self.load()
        yield lambda item: engine_record(model, item)


@dataclass(frozen=True)
class ServerSide:
    """The same model through a server of our own, over HTTP. engine: the side it must be identical to."""

    engine: EngineSide

    def identity(self, items: Items) -> dict[str, Any]:
        """That of the engine, and how it was reached. Loads the model once."""
        return self.engine.identity(items) | {"via": "server"}

    def prepared(self) -> AbstractContextManager[Side]:
        return nullcontext(self)

    @contextmanager
    def open(self) -> Iterator[Answer]:
        """Raises ModelLoadError where the server does not start."""
        with (
            spawned_server(self.engine.path, self._options()) as server,
            ServerClient(server.url) as client,
        ):
            yield lambda item: record_of(item, lambda body: client.post(SYSTEMONE, body))

    def _options(self) -> list[str]:
        engine = self.engine
        given = {
            "--alias": engine.name,
            "--threads": engine.threads,
            "--spec": engine.spec,
            "--kernels": engine.kernels,
            "--max-len": engine.max_len,
            "--plan": engine.plan,
            "--device": engine.device,
        }
        options = [text for name, value in given.items() if value is not None for text in (name, str(value))]
        # Items hold more questions than a server takes unless it is told to.
        return [*options, "--debug", "--max-items", "10000"]


def engine_record(model: Model, item: dict[str, Any]) -> Record:
    """The record of an item that the engine answers; see `record_of`."""
    return record_of(item, lambda body: model.decide(body["state"], body["questions"], debug=True))


def record_of(item: dict[str, Any], ask: Callable[[dict[str, Any]], dict[str, Any]]) -> Record:
    """{"id", "cat"?, "state", "questions": {id: {"type", "ids", "markers", "logits", "act_logits"?, "answer"}}}; for a
    refused item "refusal" instead of "questions", for an output that is not finite "failure".

    "state" is the kind of its state ("null", "list" or "other"), which the known differences speak of.
    ask: body -> response with debug fields; raises RequestError, NumericError.
    """
    try:
        response = ask({"state": item["state"], "questions": item["questions"]})
    except RequestError as error:
        if error.code == _INTERNAL:  # what a server tells of a NumericError
            return _header(item) | {"failure": error.message}
        return _header(item) | {"refusal": f"{error.reason}: {error.message}"}
    except NumericError as error:
        return _header(item) | {"failure": error.message}
    questions = {}
    for question_id, answer in response["answers"].items():
        debug = answer.pop("debug")
        questions[question_id] = {
            "type": answer["type"],
            "ids": debug["token_ids"],
            "markers": debug["markers"],
            "logits": debug["logits"],
            **({"act_logits": debug["act_logits"]} if "act_logits" in debug else {}),
            "answer": answer,
        }
    return _header(item) | {"questions": questions}


@dataclass(frozen=True)
class ReferenceSide:
    """The laya package over private copies of a checkpoint. scratch: where they go, once it is prepared."""

    checkpoint: Path
    threads: int | None = None
    scratch: Path | None = None

    def identity(self, items: Items) -> dict[str, Any]:
        """What a run of this side depends on. Raises CheckpointError; ModelLoadError without the package."""
        from layactl.reference.reference_model import versions

        # Whatever its tokenizer: the digest is that of the folder.
        checkpoint = read_checkpoint(self.checkpoint, embed_tokenizer=True)
        name = self.checkpoint.resolve().name
        limits = checkpoint.shape.limits
        return {
            "format": FORMAT,
            "side": "reference",
            "model": {
                "name": readable_name(name),
                "source_sha256": checkpoint.source_sha256(),
                "revision": name if _REVISION.fullmatch(name) else None,
            },
            "limits": {"max_len": limits.max_len, "head_max_len": limits.head_max_len},
            "kernels": "torch",
            "activations": "f32",
            "precision": "f32",
            "plan": "batch",
            "threads": set_threads(self.threads),
            "device": "cpu",
            **environment(versions()),
            "corpus": items.identity(),
        }

    @contextmanager
    def prepared(self) -> Iterator[Side]:
        from layactl.reference.private_copy import scratch_folder

        with scratch_folder(self.checkpoint) as scratch:
            yield replace(self, scratch=scratch)

    @contextmanager
    def open(self) -> Iterator[Answer]:
        from layactl.reference.reference_model import ReferenceModel

        assert self.scratch is not None, "opened before it was prepared"
        reference = ReferenceModel(self.checkpoint, self.scratch, threads=self.threads)

        def answer(item: dict[str, Any]) -> Record:
            response = reference.ask(item["state"], item["questions"])
            if response.refusal is not None:
                return _header(item) | {"refusal": response.refusal}
            return _header(item) | {
                "questions": {
                    question_id: {
                        "type": question.answer["type"],
                        "ids": question.ids,
                        "markers": question.markers,
                        "logits": question.logits,
                        "act_logits": question.act_logits,
                        "answer": question.answer,
                    }
                    for question_id, question in response.questions.items()
                }
            }

        yield answer


def _header(item: dict[str, Any]) -> Record:
    state = item["state"]
    kind = "null" if state is None else "list" if isinstance(state, list) else "other"
    category = {"cat": item["cat"]} if isinstance(item.get("cat"), str) else {}
    return {"id": item["id"], **category, "state": kind}
