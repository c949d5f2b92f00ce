"""layactl train."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layactl.cli.options import QuietOption, ThreadsOption
from layactl.cli.output import note, path_line, progress

if TYPE_CHECKING:
    from layactl.train.evaluate import Evaluation
    from layactl.train.features import Encoded
    from layactl.train.loop import Progress
    from layactl.train.run import Outcome, TrainingRun


class Objective(StrEnum):
    """What training minimises."""

    rlcd = "rlcd"
    soft_ce = "soft-ce"


class WeightType(StrEnum):
    """How trained weights are stored."""

    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"


class TrainTruncation(StrEnum):
    """What happens to an example that does not fit."""

    error = "error"
    allow = "allow"


_RUN, _DATA, _OPTIMISER, _FROZEN = "Run", "Data", "Optimiser", "Frozen encoder"


def train_command(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint folder to start from.", show_default=False)
    ],
    train: Annotated[
        list[Path],
        typer.Option(
            "--train",
            metavar="DATA.jsonl",
            help="Labelled decisions or router outcomes to learn from; repeatable.",
            show_default=False,
            rich_help_panel=_DATA,
        ),
    ],
    dev: Annotated[
        list[Path],
        typer.Option(
            "--dev",
            metavar="DATA.jsonl",
            help="Data that says when to stop, in nothing the same as the training data; repeatable.",
            show_default=False,
            rich_help_panel=_DATA,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", metavar="DIR", help="The run's folder; the checkpoint is DIR/model.", show_default=False
        ),
    ],
    truncation: Annotated[
        TrainTruncation,
        typer.Option("--truncation", help="Refuse examples that do not fit, or cut them.", rich_help_panel=_DATA),
    ] = TrainTruncation.error,
    objective: Annotated[
        Objective,
        typer.Option(
            "--objective",
            help="Soft cross-entropy, alone or with a policy gradient over proper scoring rewards.",
            rich_help_panel=_OPTIMISER,
        ),
    ] = Objective.rlcd,
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", help="Passes over the data.", rich_help_panel=_OPTIMISER)
    ] = 4,
    batch_size: Annotated[
        int, typer.Option("--batch-size", metavar="N", help="Sequences of a pass.", rich_help_panel=_OPTIMISER)
    ] = 8,
    accumulate: Annotated[
        int, typer.Option("--accumulate", metavar="N", help="Passes of an update.", rich_help_panel=_OPTIMISER)
    ] = 4,
    encoder_lr: Annotated[
        float,
        typer.Option("--encoder-lr", metavar="RATE", help="Highest rate of the encoder.", rich_help_panel=_OPTIMISER),
    ] = 2.5e-5,
    head_lr: Annotated[
        float,
        typer.Option("--head-lr", metavar="RATE", help="Highest rate of all else.", rich_help_panel=_OPTIMISER),
    ] = 1e-4,
    weight_decay: Annotated[
        float, typer.Option("--weight-decay", metavar="X", help="AdamW's, of matrices.", rich_help_panel=_OPTIMISER)
    ] = 0.01,
    warmup: Annotated[
        float,
        typer.Option("--warmup", metavar="SHARE", help="Of the updates, before the decay.", rich_help_panel=_OPTIMISER),
    ] = 0.05,
    clip: Annotated[
        float,
        typer.Option("--clip", metavar="X", help="Highest norm of a gradient.", rich_help_panel=_OPTIMISER),
    ] = 1.0,
    dropout: Annotated[
        float, typer.Option("--dropout", metavar="P", help="Of the head layers.", rich_help_panel=_OPTIMISER)
    ] = 0.1,
    act_head: Annotated[
        bool,
        typer.Option(
            "--act-head", help="Train the act head too: to act where the answer is right.", rich_help_panel=_OPTIMISER
        ),
    ] = False,
    freeze_encoder: Annotated[
        bool,
        typer.Option("--freeze-encoder", help="Train what comes after the encoder.", rich_help_panel=_FROZEN),
    ] = False,
    features: Annotated[
        Path | None,
        typer.Option(
            "--features",
            metavar="DIR",
            help="Where the frozen encoder's states are kept, for this run and later ones.",
            show_default=False,
            rich_help_panel=_FROZEN,
        ),
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(
            "--eval-every", metavar="N", help="Updates between evaluations. Default: an epoch.", rich_help_panel=_RUN
        ),
    ] = None,
    patience: Annotated[
        int,
        typer.Option(
            "--patience", metavar="N", help="Stop after N evaluations without a better dev loss.", rich_help_panel=_RUN
        ),
    ] = 3,
    save_every: Annotated[
        int,
        typer.Option("--save-every", metavar="N", help="Updates a kill can lose at most.", rich_help_panel=_RUN, min=1),
    ] = 100,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in DIR, to the very same end.", rich_help_panel=_RUN)
    ] = False,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Of order, dropout and noise.", rich_help_panel=_RUN)
    ] = 42,
    outtype: Annotated[
        WeightType | None,
        typer.Option("--outtype", help="Type of the trained weights. Default: the checkpoint's.", rich_help_panel=_RUN),
    ] = None,
    threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> int:
    """Train a checkpoint on labelled decisions, and keep the weights with the lowest dev loss.

    DIR/model is a checkpoint as any other, with temperatures of 1: `layactl calib` fits new ones on data of their own.
    """
    from layactl.engine.threads import command_threads
    from layactl.train.run import TrainingRun, read_data
    from layactl.train.run_folder import RunFolder
    from layactl.train.settings import TrainSettings

    settings = TrainSettings(
        objective=objective.value,
        epochs=epochs,
        batch_size=batch_size,
        accumulate=accumulate,
        encoder_lr=encoder_lr,
        head_lr=head_lr,
        weight_decay=weight_decay,
        warmup=warmup,
        clip=clip,
        dropout=dropout,
        eval_every=eval_every,
        patience=patience,
        seed=seed,
        freeze_encoder=freeze_encoder,
        act_head=act_head,
    )
    settings.check()
    count, notes = command_threads(threads)
    for message in notes:
        note(message, quiet)
    data = read_data(checkpoint, train, dev, truncation.value)
    for split in (data.train, data.dev):
        cut = f", {split.cut:,} of them cut" if split.cut else ""
        note(f"{split.purpose}: {len(split.examples):,} examples, {split.tokens:,} tokens{cut}", quiet)
        if split.stated_eval:
            note(
                f'{split.purpose}: {split.stated_eval:,} records say "split": "eval" and are used all the same; '
                "a calibration judged by them will look too good",
                quiet,
            )
    run = TrainingRun(data, settings, RunFolder(out), save_every, outtype.value if outtype else None, features, count)
    return _report(_run(run, resume, quiet), run, quiet)


def _run(run: TrainingRun, resume: bool, quiet: bool) -> tuple[Outcome, int | None]:
    from layactl.train.stopping import held_signals

    def told() -> None:
        note("stopping after this update; once more stops at once, and loses what is not saved", quiet)

    def encoded(found: Encoded) -> None:
        note(f"frozen encoder: {found.found:,} sequences in the store, {found.added:,} added", quiet)
        for name in found.dropped:
            note(f"{name} of the store was damaged and is gone; its sequences were encoded again", quiet)

    with held_signals(told) as stopping, progress("training", None, unit="share", quiet=quiet) as update:

        def tick(now: Progress) -> None:
            best = "" if now.best_loss is None else f", dev {now.best_loss:.4f}"
            update(now.update, total=now.updates, detail=f"epoch {now.epoch:.2f}, loss {now.loss:.4f}{best}")
            if now.evaluation is not None:
                note(f"epoch {now.epoch:g}: {_told(now.evaluation)}", quiet)

        def encoding(done: int, total: int) -> None:
            update(done, total=total, detail=f"encoding, {done:,} of {total:,} sequences")

        outcome = run.start(
            resume=resume, stop=lambda: stopping.signal is not None, tick=tick, encoding=encoding, encoded=encoded
        )
    return outcome, stopping.signal


def _report(ended: tuple[Outcome, int | None], run: TrainingRun, quiet: bool) -> int:
    outcome, number = ended
    if not outcome.done:
        note(f"stopped after update {outcome.updates:,}; --resume goes on", quiet)
        return 128 + (number or 0)
    assert outcome.initial is not None and outcome.final is not None and outcome.saved is not None
    note(f"before: {_told(outcome.initial)}", quiet)
    note(f"after update {outcome.best_update:,}, the best: {_told(outcome.final)}", quiet)
    if outcome.saved.changed:
        note(
            f"{outcome.saved.changed:,} of {outcome.saved.total:,} weights were rounded; --outtype f32 keeps them",
            quiet,
        )
    path_line(run.folder.model)
    return 0


def _told(found: Evaluation) -> str:
    return f"dev loss {found.loss:.4f}, accuracy {found.accuracy:.3f}"
