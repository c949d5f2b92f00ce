"""`layactl router ...`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from layactl.cli.models import ModelChoice
from layactl.cli.options import (
    AllowUncalibratedOption,
    CacheDirOption,
    Device,
    DeviceOption,
    FolderOuttype,
    FolderOuttypeOption,
    KernelsOption,
    MaxLenOption,
    ModelOption,
    QuietOption,
    RoundOption,
    SpecOption,
    ThreadsOption,
)
from layactl.cli.output import note, raw_text, record

if TYPE_CHECKING:
    from collections.abc import Iterable

app = typer.Typer(help="Score how likely executors meet a task's success criterion.", no_args_is_help=True)

BodyArgument = Annotated[
    str,
    typer.Argument(
        metavar="BODY.json|-", help="A request: {task, criterion, candidates, truncation?}.", show_default=False
    ),
]


@app.command("score")
def score_command(
    model: ModelOption,
    body: BodyArgument,
    allow_uncalibrated: AllowUncalibratedOption = False,
    digits: RoundOption = None,
    threads: ThreadsOption = None,
    spec: SpecOption = None,
    kernels: KernelsOption = None,
    device: DeviceOption = Device.cpu,
    debug: Annotated[bool, typer.Option("--debug", help="Add logits, token ids and markers to each score.")] = False,
    outtype: FolderOuttypeOption = FolderOuttype.f16,
    cache_dir: CacheDirOption = None,
    max_len: MaxLenOption = None,
    quiet: QuietOption = False,
) -> None:
    """Score each candidate of a request on its own: the probability that it meets the success criterion."""
    from layactl.decide.inputs import read_body
    from layactl.decide.jsonl import rounded
    from layactl.engine.request import parse_body
    from layactl.router.score import Router

    choice = ModelChoice(model, outtype, cache_dir, threads, spec, kernels, quiet, max_len, device=device.value)
    router = Router(choice.load(choice.resolve()), allow_uncalibrated=allow_uncalibrated)
    router.require_calibration()
    response = router.score(router.parse(parse_body(read_body(body))), debug=debug)
    _note_all(response["warnings"], quiet)
    record(rounded(response, digits))


@app.command("render")
def render_command(
    model: ModelOption,
    body: BodyArgument,
    spec: SpecOption = None,
    outtype: FolderOuttypeOption = FolderOuttype.f16,
    cache_dir: CacheDirOption = None,
    max_len: MaxLenOption = None,
    quiet: QuietOption = False,
) -> None:
    """Print what the model would read for each candidate, and what would be cut, without computing anything."""
    from layactl.decide.inputs import read_body
    from layactl.engine.request import parse_body
    from layactl.router.render import RouterReader

    choice = ModelChoice(model, outtype, cache_dir, spec=spec, quiet=quiet, max_len=max_len)
    reader = RouterReader(choice.load_text_side(choice.resolve()))
    rendered = reader.render(reader.parse(parse_body(read_body(body))))
    _note_all(rendered["warnings"], quiet)
    record(rendered)


@app.command("card")
def card_command(
    card: Annotated[str, typer.Argument(metavar="CARD.json|-", help="An executor card.", show_default=False)],
    quiet: QuietOption = False,
) -> None:
    """Check an executor card, and print the card-v1 text that a model reads of it."""
    from layactl.core.strict_json import loads_strict
    from layactl.decide.inputs import read_body
    from layactl.router.card import parse_card

    checked = parse_card(loads_strict(read_body(card)))
    _note_all(checked.warnings, quiet)
    raw_text(checked.text)


def _note_all(warnings: Iterable[dict[str, Any]], quiet: bool) -> None:
    for warning in warnings:
        note(f"{warning['message']} ({warning['param']})", quiet)
