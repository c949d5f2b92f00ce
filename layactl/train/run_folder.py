"""The files of a training run: what it goes on from after a stop, and the best weights so far.

latest.safetensors    parameters, AdamW's moments and the position, after a whole update
best.safetensors      the parameters with the lowest dev loss
metrics.jsonl         a record an evaluation, and one every few updates; metrics.meta.json: what the run depends on
report.json, model/   written when the run is complete
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from layactl.checkpoint.save import write_tensors
from layactl.durable import replacing
from layactl.errors import InputError, OutputError
from layactl.reporting.record_stream import LineSink, record_stream

if TYPE_CHECKING:
    from torch import Tensor

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


class RunFolder:
    """root: made when the run starts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.latest = root / "latest.safetensors"
        self.best = root / "best.safetensors"
        self.metrics = root / "metrics.jsonl"
        self.report = root / "report.json"
        self.model = root / "model"

    def begin(self, resume: bool) -> bool:
        """Make the folder, or find the run in it; whether there is one to go on with.

        Raises OutputError: it holds something and --resume was not given, or no run is there to resume.
        """
        if resume:
            if not self.metrics.is_file():
                raise OutputError("holds no run to resume", where=str(self.root))
            if self.report.is_file():
                raise OutputError("holds a run that is complete", where=str(self.root))
            return self.latest.is_file()
        if self.root.exists() and (not self.root.is_dir() or any(self.root.iterdir())):
            raise OutputError(
                "exists and is not empty", where=str(self.root), hint="--resume goes on with the run in it"
            )
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot be made: {error.strerror}", where=str(self.root)) from None
        return False

    def save_latest(self, tensors: Mapping[str, Tensor], position: Position) -> None:
        _save(self.latest, tensors, {"format": STATE_FORMAT, **asdict(position)})

    def load_latest(self) -> tuple[dict[str, Tensor], Position]:
        """Raises InputError."""
        tensors, state = _load(self.latest)
        try:
            return tensors, Position(**{field.name: state[field.name] for field in fields(Position)})
        except KeyError as missing:
            raise InputError(f"does not say its {missing}", where=str(self.latest)) from None

    def save_best(self, tensors: Mapping[str, Tensor]) -> None:
        _save(self.best, tensors, {"format": STATE_FORMAT})

    def load_best(self) -> dict[str, Tensor]:
        """Raises InputError."""
        return _load(self.best)[0]

    @contextmanager
    def open_metrics(self, meta: dict[str, Any], *, resume: bool, update: int) -> Iterator[LineSink]:
        """The stream of records; those behind `update`, which are about to be made again, are dropped first.

        Raises UsageError where the run in the folder depends on something else.
        """
        if resume:
            # The sidecar first: a run that may not go on must lose nothing.
            with record_stream(self.metrics, meta, resume=True, earlier=lambda record: None):
                pass
            lines = [line for line in self.metrics.read_bytes().splitlines(keepends=True) if _update(line) <= update]
            with replacing(self.metrics) as temporary:
                temporary.write_bytes(b"".join(lines))
        with record_stream(self.metrics, meta, resume=resume, earlier=lambda record: None) as write:
            yield write

    def write_report(self, report: dict[str, Any]) -> None:
        with replacing(self.report) as temporary:
            temporary.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")


def _update(line: bytes) -> int:
    update = orjson.loads(line).get("update")
    return update if isinstance(update, int) else 0


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
