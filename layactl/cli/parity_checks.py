"""`layactl parity trace | diff | invariance`: where two computations part, and what an answer depends on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layactl.cli.models import ModelChoice
from layactl.cli.options import (
    CacheDirOption,
    FolderOuttype,
    FolderOuttypeOption,
    KernelsOption,
    MaxLenOption,
    ModelOption,
    QuietOption,
    SpecOption,
    ThreadsOption,
)
from layactl.cli.output import note, path_line, plain_line, progress, record
from layactl.cli.parity import EnglishOption, EveryOption, ItemOption, ItemsArgument, whole_numbers
from layactl.errors import UsageError

if TYPE_CHECKING:
    from layactl.engine.model import Model
    from layactl.parity.trace import QuestionDifference

_FAILED, _DIFFERENT = 1, 2
_TRACED_ITEMS = 20

TraceOption = Annotated[
    Path, typer.Option("-o", "--out", metavar="TRACE", help="The safetensors file to write.", show_default=False)
]


def trace_command(
    out: TraceOption,
    items: ItemsArgument = None,
    item: ItemOption = None,
    model: Annotated[
        Path | None, typer.Option("-m", "--model", metavar="MODEL", help="Trace the engine.", show_default=False)
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option("--reference", metavar="CHECKPOINT", help="Trace the reference.", show_default=False),
    ] = None,
    threads: ThreadsOption = None,
    kernels: KernelsOption = None,
    spec: SpecOption = None,
    outtype: FolderOuttypeOption = FolderOuttype.f16,
    cache_dir: CacheDirOption = None,
    max_len: MaxLenOption = None,
    quiet: QuietOption = False,
) -> None:
    """Dump the residual stream of chosen items after every layer, with markers, logits and act logits."""
    from layactl.parity.items import load_items
    from layactl.parity.trace import Trace, trace_engine, trace_reference, write_trace
    from layactl.reporting.identity import library_versions
    from layactl.reporting.record_stream import refuse_input

    if (model is None) == (reference is None):
        raise UsageError("give one of -m MODEL and --reference CHECKPOINT")
    refuse_input(out, {"the model": model, "the checkpoint": reference, "the items": items, "the spec": spec})
    chosen = load_items(items, only=item or ()).items
    if len(chosen) > _TRACED_ITEMS:
        raise UsageError(f"{len(chosen)} items are too many for a trace", hint="--item ID chooses one; repeatable")
    traces: dict[tuple[str, str], Trace] = {}
    if model is not None:
        choice = ModelChoice(model, outtype, cache_dir, threads, spec, kernels, quiet, max_len)
        resolved = choice.resolve()
        refuse_input(out, {"the model": resolved.file.path})
        loaded = choice.load(resolved)
        header: dict[str, Any] = {"side": "engine", "model": loaded.name, "kernels": loaded.forward.kernels}
        header["versions"] = library_versions()
        for one in chosen:
            found = trace_engine(loaded, one["state"], one["questions"])
            traces |= {(one["id"], question): trace for question, trace in found.items()}
    else:
        assert reference is not None

        from layactl.reference.private_copy import scratch_folder
        from layactl.reference.reference_model import ReferenceModel, versions

        with scratch_folder(reference) as scratch:
            agent = ReferenceModel(reference, scratch, threads=threads)
            header = {"side": "reference", "model": reference.resolve().name, "versions": versions()}
            for one in chosen:
                found = trace_reference(agent, one["state"], one["questions"])
                traces |= {(one["id"], question): trace for question, trace in found.items()}
    write_trace(out, traces, header)
    note(f"{len(traces):,} questions of {len(chosen):,} items", quiet)
    path_line(out)


def diff_command(
    a: Annotated[Path, typer.Argument(metavar="A", help="A trace.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another of the same items.", show_default=False)],
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="X", min=0, help="Of a node: max |a - b| / max |a|.")
    ] = 1e-4,
    nodes: Annotated[bool, typer.Option("--nodes", help="Show every node, not only the first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a question instead.")] = False,
) -> int:
    """Name the first node where two traces part, question by question. Exit code 2 when any does."""
    from layactl.parity.trace import diff_traces, read_trace

    differences = diff_traces(read_trace(a).traces, read_trace(b).traces, tolerance)
    apart = sum(difference.first is not None or difference.note is not None for difference in differences)
    for difference in differences:
        if as_json:
            record(_difference_json(difference))
        else:
            _print_difference(difference, nodes)
    if not as_json:
        plain_line(f"{len(differences) - apart:,} of {len(differences):,} questions agree within {tolerance:g}")
    return _DIFFERENT if apart or not differences else 0


def _difference_json(difference: QuestionDifference) -> dict[str, Any]:
    return {
        "item": difference.item,
        "question": difference.question,
        "first": difference.first.node if difference.first else None,
        "note": difference.note,
        "nodes": [
            {"node": node.node, "error": _number(node.error), **({"note": node.note} if node.note else {})}
            for node in difference.nodes
        ],
    }


def _print_difference(difference: QuestionDifference, nodes: bool) -> None:
    name = f"{difference.item}/{difference.question}"
    first = difference.first
    if difference.note is not None:
        plain_line(f"{name}: {difference.note}")
    elif first is not None:
        plain_line(f"{name}: apart at {first.node}, {first.note or f'{first.error:.3g} of its scale'}")
    else:
        largest = max((node.error or 0.0 for node in difference.nodes), default=0.0)
        plain_line(f"{name}: agrees, largest error {largest:.3g} of its scale")
    if nodes:
        for node in difference.nodes:
            plain_line(f"  {node.node:<20} {node.note or f'{node.error:.3g}'}")


def invariance_command(
    model: ModelOption,
    items: ItemsArgument = None,
    english: EnglishOption = False,
    every: EveryOption = 20,
    item: ItemOption = None,
    threads: Annotated[str, typer.Option("--threads", "-t", metavar="M,N", help="The thread counts compared.")] = "1,2",
    kernels: KernelsOption = None,
    spec: SpecOption = None,
    outtype: FolderOuttypeOption = FolderOuttype.f16,
    cache_dir: CacheDirOption = None,
    max_len: MaxLenOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a check instead.")] = False,
    quiet: QuietOption = False,
) -> int:
    """Does an answer depend on earlier requests, on its neighbours, on order, or on the number of threads?

    Each check is bitwise, within tolerance (with the number), or different; exit code 1 when any is different.
    """
    from dataclasses import asdict

    from layactl.engine.model import Model
    from layactl.gguf_file.reader import GgufFile
    from layactl.parity.invariance import DIFFERENT, check_invariance, requests_to_ask
    from layactl.parity.items import load_items

    numbers = whole_numbers(threads, ",")
    if not numbers or 0 in numbers:
        raise UsageError("must be numbers of threads, M,N", where=f"--threads {threads:.60}")
    resolved = ModelChoice(model, outtype, cache_dir, quiet=quiet).resolve()
    chosen = load_items(items, english=english, every=1 if item else every, only=item or ()).items

    def open_model(count: int) -> Model:
        return Model.from_gguf(
            GgufFile(resolved.file.path),
            name=resolved.name,
            threads=count,
            spec_file=spec,
            kernels=kernels,
            max_len=max_len,
        )

    with progress("asking", requests_to_ask(chosen, numbers), unit="share", quiet=quiet) as update:
        results = check_invariance(open_model, chosen, threads=numbers, tick=update)
    for result in results:
        if as_json:
            worst = None if result.worst is None else {"item": result.worst[0], "question": result.worst[1]}
            errors = {"logit_error": _number(result.logit_error), "act_error": _number(result.act_error)}
            record(asdict(result) | errors | {"worst": worst})
        else:
            where = "" if result.worst is None else f", worst {'/'.join(result.worst)}"
            numbers_text = (
                ""
                if not result.differing
                else (
                    f": {result.differing:,} differ, logits by up to {result.logit_error:.2g}, "
                    f"act logits by {result.act_error:.2g} relative{where}"
                )
            )
            plain_line(f"{result.name:<16} {result.outcome} ({result.questions:,} questions){numbers_text}")
    return _FAILED if any(result.outcome == DIFFERENT for result in results) else 0


def _number(value: float | None) -> float | str | None:
    """A number as JSON has it; what JSON has no number for, as text."""
    import math

    return value if value is None or math.isfinite(value) else str(value)
