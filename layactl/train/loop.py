"""Batches -> gradients -> updates -> evaluations, until nothing gets better or everything is done.

All that chance decides is a function of (seed, epoch) or (seed, pass), and the state is saved between updates, so a run
that was stopped ends with the same bytes as one that was not (same machine, torch and thread count).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from layactl.core import strict_json
from layactl.errors import InputError, NumericError
from layactl.reporting.record_stream import LineSink
from layactl.train.batches import collate, epoch_batches, seed_step
from layactl.train.evaluate import Evaluation, evaluate
from layactl.train.examples import Example
from layactl.train.loss import act_loss, policy_loss, soft_cross_entropy
from layactl.train.network import Batch, DecisionNetwork
from layactl.train.run_folder import Position, RunFolder, check_tensors
from layactl.train.settings import RLCD, TrainSettings, learning_rate

# Updates between two records of the training loss.
LOG_EVERY = 10
_EVALUATION_BATCH = 64
# Enough for the act head, whose steps AdamW scales anyway, and little for all that the answers depend on.
_ACT_SHARE = 0.1


class Encode(Protocol):
    """The encoder's states (N, L, d) of some examples, which `batch` holds padded."""

    def __call__(self, examples: Sequence[Example], batch: Batch) -> Tensor: ...


@dataclass
class Progress:
    """What a run tells while it goes: updates done and planned, the last training loss and evaluation."""

    update: int = 0
    updates: int = 0
    epoch: float = 0.0
    loss: float | None = None
    evaluation: Evaluation | None = None
    best_loss: float | None = None


@dataclass
class Trainer:
    """One run.

    encode: the network's own encoder, or a store of its states; pad_id: fills up ids that nothing attends to.
    """

    network: DecisionNetwork
    encode: Encode
    train: Sequence[Example]
    dev: Sequence[Example]
    settings: TrainSettings
    folder: RunFolder
    pad_id: int
    position: Position = field(default_factory=Position)

    def __post_init__(self) -> None:
        settings = self.settings
        for name, parameter in self.network.named_parameters():
            parameter.requires_grad_(is_trained(name, settings))
        self._trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self._optimizer = make_optimizer(self._trained, settings)
        self._lengths = [len(example.ids) for example in self.train]
        self._passes = -(-len(self.train) // settings.batch_size)
        self._updates_per_epoch = -(-self._passes // settings.accumulate)
        self.updates = self._updates_per_epoch * settings.epochs
        self._eval_every = settings.eval_every or self._updates_per_epoch
        self._batches: tuple[int, list[list[int]]] = (-1, [])

    def load(self) -> None:
        """Go on from the saved state. Raises InputError."""
        tensors, position = self.folder.load_latest()
        check_tensors(tensors, self._state(), self.folder.latest)
        if position.update > self.updates:
            raise InputError(f"stands behind the last of {self.updates} updates", where=str(self.folder.latest))
        if position.best_loss is not None:
            check_tensors(self.folder.load_best(), self._parameters(), self.folder.best)
        self.position = position
        for name, parameter in self._trained.items():
            parameter.data.copy_(tensors[f"parameter.{name}"])
            self._optimizer.state[parameter] = {
                "step": torch.tensor(float(position.update)),
                "exp_avg": tensors[f"exp_avg.{name}"].clone(),
                "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].clone(),
            }

    def save(self) -> None:
        self.folder.save_latest(self._state(), self.position)

    def _parameters(self) -> dict[str, Tensor]:
        return {name: parameter.data for name, parameter in self._trained.items()}

    def _state(self) -> dict[str, Tensor]:
        """Parameters and AdamW's moments, 0 before the first update."""
        found = {f"parameter.{name}": tensor for name, tensor in self._parameters().items()}
        for name, parameter in self._trained.items():
            state = self._optimizer.state.get(parameter, {})
            for moment in ("exp_avg", "exp_avg_sq"):
                found[f"{moment}.{name}"] = state.get(moment, torch.zeros_like(parameter.data))
        return found

    def run(
        self,
        write: LineSink,
        save_every: int,
        stop: Callable[[], bool] = lambda: False,
        tick: Callable[[Progress], None] = lambda progress: None,
    ) -> bool:
        """Train until done, or until `stop` says so between two updates; whether it is done.

        write: takes the records of metrics.jsonl. Raises NumericError when the loss is no number any more.
        """
        position, progress = self.position, Progress(updates=self.updates)
        while not position.finished:
            loss = self._update()
            position.update += 1
            progress.update, progress.loss, progress.epoch = position.update, loss["loss"], self._epochs(position)
            progress.evaluation = None
            if position.update % LOG_EVERY == 0:
                _record(write, {"kind": "train", "update": position.update, "epoch": progress.epoch, **loss})
            last = position.update == self.updates
            evaluated = position.update % self._eval_every == 0 or last
            if evaluated:
                progress.evaluation = self._evaluate(write)
                progress.best_loss = position.best_loss
            position.finished = last or position.waited >= self.settings.patience
            stopped = not position.finished and stop()
            if evaluated or stopped or position.finished or position.update % save_every == 0:
                self.save()
            tick(progress)
            if stopped:
                return False
        return True

    def evaluation(self, examples: Sequence[Example]) -> Evaluation:
        """Of the network as it is."""
        self.network.eval()

        def score(indices: Sequence[int]) -> tuple[Batch, Tensor]:
            chosen = [examples[n] for n in indices]
            batch = collate(chosen, self.pad_id)
            return batch, self.network.decide(self.encode(chosen, batch), batch)[0]

        return evaluate(score, examples, _EVALUATION_BATCH)

    def _epochs(self, position: Position) -> float:
        return round(position.update / self._updates_per_epoch, 4)

    def _update(self) -> dict[str, Any]:
        """One update: `accumulate` passes, the gradient of the mean over all their examples."""
        epoch, first = divmod(self.position.update, self._updates_per_epoch)
        if self._batches[0] != epoch:
            settings = self.settings
            self._batches = (epoch, epoch_batches(self._lengths, settings.batch_size, settings.seed, epoch))
        batches = self._batches[1][first * self.settings.accumulate : (first + 1) * self.settings.accumulate]
        self.network.train()
        self._optimizer.zero_grad(set_to_none=True)
        count = sum(map(len, batches))
        sums: dict[str, float] = {}
        for n, indices in enumerate(batches):
            seed_step(self.settings.seed, epoch * self._passes + first * self.settings.accumulate + n)
            losses = self._losses([self.train[index] for index in indices])
            (losses["loss"].sum() / count).backward()  # type: ignore[no-untyped-call]
            for name, values in losses.items():
                sums[name] = sums.get(name, 0.0) + float(values.detach().sum())
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained.values(), self.settings.clip))
        means = {name: value / count for name, value in sums.items()}
        if not all(value == value and abs(value) < float("inf") for value in (norm, *means.values())):
            raise NumericError(f"the loss of update {self.position.update + 1}")
        rate = learning_rate(self.position.update, self.updates, self.settings.warmup)
        for group in self._optimizer.param_groups:
            group["lr"] = group["highest"] * rate
        self._optimizer.step()
        return means | {"gradient_norm": norm, "rate": rate}

    def _losses(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """By name, one number an example; "loss" is what is minimised."""
        settings, batch = self.settings, collate(examples, self.pad_id)
        logits, act_logits = self.network.decide(self.encode(examples, batch), batch)
        found = {"cross_entropy": soft_cross_entropy(logits, batch.targets)}
        loss = found["cross_entropy"]
        if settings.objective == RLCD:
            sigma = settings.rlcd.sigma(self.position.update / max(1, self.updates - 1))
            found["policy"] = policy_loss(logits, batch.targets, batch.type_ids, batch.options, sigma, settings.rlcd)
            loss = settings.rlcd.ce_weight * loss + found["policy"]
        if settings.act_head and act_logits is not None:
            found["act"] = act_loss(act_logits, logits, batch.targets)
            loss = loss + _ACT_SHARE * found["act"]
        return {"loss": loss, **found}

    def _evaluate(self, write: LineSink) -> Evaluation:
        position = self.position
        found = self.evaluation(self.dev)
        better = position.best_loss is None or found.loss < position.best_loss
        if better:
            position.best_loss, position.best_update, position.waited = found.loss, position.update, 0
            self.folder.save_best(self._parameters())
        else:
            position.waited += 1
        _record(write, {"kind": "dev", "update": position.update, "epoch": self._epochs(position), **found.to_json()})
        return found


def is_trained(name: str, settings: TrainSettings) -> bool:
    """Whether the parameter of this name changes: the encoder unless it is frozen, the act head only when asked for."""
    if name.startswith("encoder."):
        return not settings.freeze_encoder
    return settings.act_head or not name.startswith("act_head.")


def make_optimizer(trained: dict[str, torch.nn.Parameter], settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW with the encoder's and the head's own rates; matrices decay, vectors do not."""
    groups = []
    for of_encoder, rate in ((True, settings.encoder_lr), (False, settings.head_lr)):
        for decays in (True, False):
            chosen = [
                parameter
                for name, parameter in trained.items()
                if name.startswith("encoder.") == of_encoder and (parameter.ndim >= 2) == decays
            ]
            if chosen:
                decay = settings.weight_decay if decays else 0.0
                groups.append({"params": chosen, "lr": rate, "highest": rate, "weight_decay": decay})
    return torch.optim.AdamW(groups, lr=settings.head_lr, fused=True)


def _record(write: LineSink, value: dict[str, Any]) -> None:
    write(strict_json.dumps(value).encode("utf-8") + b"\n")
