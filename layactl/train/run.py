"""A checkpoint and labelled data -> a run folder with a trained checkpoint in it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layactl import __version__
from layactl.checkpoint.folder import Checkpoint, read_checkpoint
from layactl.checkpoint.save import Saved, save_checkpoint
from layactl.durable import readable_name
from layactl.engine.text_side import TextSide
from layactl.engine.threads import set_threads
from layactl.errors import UsageError
from layactl.reporting.record_stream import refuse_input
from layactl.train.evaluate import Evaluation
from layactl.train.examples import Example, Split, read_split, refuse_overlap, text_side
from layactl.train.features import Encoded, FeatureStore, trunk_identity
from layactl.train.loop import Encode, Progress, Trainer
from layactl.train.network import Batch, DecisionNetwork
from layactl.train.run_folder import RunFolder
from layactl.train.settings import TrainSettings

REPORT_FORMAT = "layactl.train-report/1"


@dataclass(frozen=True)
class Data:
    """What a run learns from, read and checked."""

    checkpoint: Checkpoint
    text: TextSide
    train: Split
    dev: Split

    def identity(self) -> dict[str, Any]:
        """What the run's numbers depend on, on the side of the data."""
        return {
            split.purpose: {
                "sha256": [file.sha256 for file in split.files],
                "examples": len(split.examples),
                "tokens": split.tokens,
                "cut": split.cut,
            }
            for split in (self.train, self.dev)
        }


@dataclass(frozen=True)
class Outcome:
    """done: False where the run was stopped, and then only `updates` is known; initial, final: on the dev data."""

    done: bool
    updates: int
    initial: Evaluation | None = None
    final: Evaluation | None = None
    best_update: int = 0
    saved: Saved | None = None


def read_data(checkpoint: Path, train: Sequence[Path], dev: Sequence[Path], truncation: str) -> Data:
    """Raises CheckpointError, InputError: a line that cannot be used, examples that do not fit, splits that overlap."""
    base = read_checkpoint(checkpoint)
    text = text_side(base)
    splits = [read_split(name, files, text, truncation) for name, files in (("train", train), ("dev", dev))]
    refuse_overlap(splits)
    return Data(base, text, *splits)


def load_network(checkpoint: Checkpoint, dropout: float) -> DecisionNetwork:
    """The checkpoint's weights as float32 parameters."""
    network = DecisionNetwork(checkpoint.shape, dropout)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            tensor = checkpoint.tensors[name]
            parameter.copy_(torch.from_numpy(tensor.floats(0, tensor.shape[0])))
    return network


@dataclass
class TrainingRun:
    """One call of `layactl train`.

    outtype: of the trained weights in model/, None for the base's; features: where a frozen encoder's states are kept.
    """

    data: Data
    settings: TrainSettings
    folder: RunFolder
    save_every: int = 100
    outtype: str | None = None
    features: Path | None = None
    threads: int | None = None

    def start(
        self,
        *,
        resume: bool,
        stop: Callable[[], bool] = lambda: False,
        tick: Callable[[Progress], None] = lambda progress: None,
        encoding: Callable[[int, int], None] = lambda done, total: None,
        encoded: Callable[[Encoded], None] = lambda found: None,
    ) -> Outcome:
        """Train, export the best weights and write the report.

        Raises OutputError, UsageError (--resume of another run), InputError, NumericError.
        """
        settings, data = self.settings, self.data
        settings.check()
        self.check_base(data.checkpoint)
        torch.use_deterministic_algorithms(True)
        meta = self._meta(set_threads(self.threads))
        with self.folder.open(meta, resume=resume) as metrics:
            network = load_network(data.checkpoint, settings.dropout)
            encode = self._encode(network, stop, encoding, encoded)
            if encode is None:
                return Outcome(False, 0)
            pad_id = data.text.tokenizer.special.pad or 0
            trainer = Trainer(network, encode, data.train.examples, data.dev.examples, settings, self.folder, pad_id)
            if self.folder.latest.is_file():
                trainer.load()
            metrics.drop_behind(trainer.position.update)
            if not trainer.run(metrics.write, self.save_every, stop, tick):
                return Outcome(False, trainer.position.update)
            return self._finish(trainer)

    def check_base(self, checkpoint: Checkpoint) -> None:
        """Raises UsageError for settings that this checkpoint or this run cannot have."""
        if self.settings.freeze_encoder and self.features is None:
            raise UsageError("needs a folder for the encoder's states", where="--freeze-encoder", hint="--features DIR")
        if self.features is not None and not self.settings.freeze_encoder:
            raise UsageError("goes with --freeze-encoder", where="--features")
        classes = checkpoint.shape.head.act_classes
        if self.settings.act_head and classes != 2:
            raise UsageError(
                f"the act head has {classes} classes; only 2 (act, leave) can be trained", where="--act-head"
            )
        for target in (self.folder.root, self.features):
            if target is not None:
                refuse_input(target / "file", {"the checkpoint": checkpoint.root})

    def _encode(
        self,
        network: DecisionNetwork,
        stop: Callable[[], bool],
        encoding: Callable[[int, int], None],
        encoded: Callable[[Encoded], None],
    ) -> Encode | None:
        """None where a stop came while states were computed."""
        if not self.settings.freeze_encoder:
            return lambda examples, batch: network.encoder(batch.ids, batch.present)
        assert self.features is not None
        store = FeatureStore(self.features, trunk_identity(network.encoder))
        examples = [*self.data.train.examples, *self.data.dev.examples]
        found = store.add_missing(examples, network.encoder, encoding, stop)
        encoded(found)
        if found.stopped:
            return None

        def states(examples: Sequence[Example], batch: Batch) -> Tensor:
            return store.states(examples)

        return states

    def _meta(self, threads: int) -> dict[str, Any]:
        """What every byte of the result depends on."""
        return {
            "format": "layactl.train-metrics/1",
            "checkpoint": {
                "path": readable_name(self.data.checkpoint.root),
                "sha256": self.data.checkpoint.source_sha256(),
            },
            "data": self.data.identity(),
            "settings": self.settings.to_json(),
            "threads": threads,
            "versions": {"layactl": __version__, "torch": torch.__version__, "python": sys.version.split()[0]},
        }

    def _finish(self, trainer: Trainer) -> Outcome:
        """The best weights as a checkpoint, judged in the very numbers that were stored."""
        dev, base = self.data.dev.examples, self.data.checkpoint
        best = {name: tensor.numpy() for name, tensor in self.folder.load_best().items()}
        # Without a report beside it, a model is what a run left that was stopped here.
        shutil.rmtree(self.folder.model, ignore_errors=True)
        saved = save_checkpoint(self.folder.model, base, best, self.outtype)
        trainer.network.load_state_dict(load_network(base, 0.0).state_dict())
        initial = trainer.evaluation(dev)
        exported = read_checkpoint(self.folder.model)
        trainer.network.load_state_dict(load_network(exported, 0.0).state_dict())
        final = trainer.evaluation(dev)
        position = trainer.position
        self.folder.write_report(
            {
                "format": REPORT_FORMAT,
                "status": "complete",
                "updates": position.update,
                "best_update": position.best_update,
                "dev": {"initial": initial.to_json(), "final": final.to_json()},
                "model": {
                    "path": self.folder.model.name,
                    "source_sha256": exported.source_sha256(),
                    "weights": saved.total,
                    "rounded": saved.changed,
                },
            }
        )
        return Outcome(True, position.update, initial, final, position.best_update, saved)
