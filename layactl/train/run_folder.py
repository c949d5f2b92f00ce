"""The files of a training run: what it goes on from after a stop, and the best weights so far.

latest.safetensors    parameters, AdamW's moments and the position, after a whole update
best.safetensors      the parameters with the lowest dev loss
metrics.jsonl         a record an evaluation, and one every few updates; metrics.meta.json: what the run depends on
report.json, model/   written when the run is complete
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from layactl.checkpoint.save import write_tensors
from layactl.durable import replacing
from layactl.errors import InputError, OutputError, UsageError
from layactl.reporting.record_stream import LineSink, record_stream, sidecar

if TYPE_CHECKING:
    from torch import Tensor

# Temporary names that layactl.durable and layactl.checkpoint.save give to the files of a run, and to no other.
_LEFTOVER = re.compile(r"\.(latest|best|metrics|report|model)\b.*\.tmp")
STATE_FORMAT = "layactl.train-state/1"


@dataclass
class Position:
    """update: updates done; best_loss, best_update: lowest dev loss and the update it was seen after; waited:
    evaluations since then; finished: whether nothing is left to do but the export.
    """

    update: int = 0
    best_loss: float | None = None
    best_update: int = 0
    waited: int = 0
    finished: bool = False


@dataclass(frozen=True)
class Metrics:
    """The records of a run, open to be written. write: takes one line."""

    path: Path
    write: LineSink

    def drop_behind(self, update: int) -> None:
        """Cut off the records behind an update, which are about to be made again."""
        kept = 0
        with self.path.open("rb") as lines:
            for line in lines:
                made = orjson.loads(line).get("update")
                if isinstance(made, int) and made > update:
                    break
                kept += len(line)
        os.truncate(self.path, kept)


class RunFolder:
    """root: made when the run starts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.latest = root / "latest.safetensors"
        self.best = root / "best.safetensors"
        self.metrics = root / "metrics.jsonl"
        self.report = root / "report.json"
        self.model = root / "model"

    @contextmanager
    def open(self, meta: dict[str, Any], *, resume: bool) -> Iterator[Metrics]:
        """Make the folder or, to resume, find the run in it; no other run can write it meanwhile.

        meta: what every byte of the result depends on. Raises OutputError: it holds something and resume is False, it
        holds no run, a complete one, or one that is going on; UsageError where its run depends on something else.
        """
        if resume and not (self.root.is_dir() and any(self.root.iterdir())):
            raise OutputError("holds no run to resume", where=str(self.root))
        if self.report.is_file():
            raise OutputError("holds a run that is complete", where=str(self.root))
        begun = self._has_begun()
        if begun and not resume:
            hint = "--resume goes on with the run in it" if self.metrics.is_file() else None
            raise OutputError("exists and is not empty", where=str(self.root), hint=hint)
        if begun and not self.metrics.is_file():
            raise OutputError("holds no run to resume", where=str(self.root))
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot be made: {error.strerror}", where=str(self.root)) from None
        try:
            with record_stream(self.metrics, meta, resume=begun, earlier=lambda record: None) as write:
                self._remove_leftovers()
                yield Metrics(self.metrics, write)
        except UsageError as error:
            # Nothing starts over in a folder that holds something.
            if error.where == str(sidecar(self.metrics)):
                error.hint = "another -o starts a run of its own"
            raise

    def _has_begun(self) -> bool:
        """Whether anything is there but what a run leaves that was killed before its first record."""
        if not self.root.exists():
            return False
        if not self.root.is_dir():
            return True
        own = (self.metrics.name, sidecar(self.metrics).name)
        others = [path for path in self.root.iterdir() if path.name not in own and not _LEFTOVER.fullmatch(path.name)]
        return bool(others) or (self.metrics.is_file() and self.metrics.stat().st_size > 0)

    def _remove_leftovers(self) -> None:
        """What a killed run was writing when it was killed."""
        for path in self.root.iterdir():
            if _LEFTOVER.fullmatch(path.name):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def save_latest(self, tensors: Mapping[str, Tensor], position: Position) -> None:
        _save(self.latest, tensors, {"format": STATE_FORMAT, **asdict(position)})

    def load_latest(self) -> tuple[dict[str, Tensor], Position]:
        """Raises InputError."""
        tensors, state = _load(self.latest)
        known: dict[str, Any] = {field.name: state.get(field.name) for field in fields(Position)}
        counts = [known[name] for name in ("update", "best_update", "waited")]
        best = known["best_loss"]
        if (
            any(not isinstance(count, int) or isinstance(count, bool) or count < 0 for count in counts)
            or not (best is None or isinstance(best, float))
            or not isinstance(known["finished"], bool)
        ):
            raise InputError("does not say where its run stands", where=str(self.latest))
        return tensors, Position(**known)

    def save_best(self, tensors: Mapping[str, Tensor]) -> None:
        _save(self.best, tensors, {"format": STATE_FORMAT})

    def load_best(self) -> dict[str, Tensor]:
        """Raises InputError."""
        return _load(self.best)[0]

    def write_report(self, report: dict[str, Any]) -> None:
        with replacing(self.report) as temporary:
            temporary.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")


def check_tensors(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: Path) -> None:
    """The tensors of a state must be those of the run, in name, shape and type. Raises InputError."""
    if odd := sorted(set(found) ^ set(wanted)):
        raise InputError(
            f"is of another run: {odd[0]} is {'missing' if odd[0] in wanted else 'too many'}", where=str(where)
        )
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
            raise InputError(f"is of another run: {name} has another shape or type", where=str(where))


def _save(path: Path, tensors: Mapping[str, Tensor], state: dict[str, Any]) -> None:
    # One key: the package writes several in an order that changes from run to run.
    with replacing(path) as temporary:
        write_tensors(temporary, tensors, {"state": json.dumps(state)})


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            state = json.loads((file.metadata() or {}).get("state", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None
    if not isinstance(state, dict) or state.get("format") != STATE_FORMAT:
        raise InputError("is not the state of a training run", where=str(path))
    return tensors, state
