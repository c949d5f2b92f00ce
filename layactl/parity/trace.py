"""Where two computations of one question part: the residual stream after every step, on both sides, node by node.

Both sides name their nodes alike, in the order of computation:

    ids, markers                     token ids (T,) and marker positions (K,), int32
    embeddings                       token embeddings after their norm
    encoder.0 ... encoder.final_norm the stream after each encoder layer, and after the norm that ends the encoder
    type_embedding                   the same with the question type's embedding added
    head.0 ...                       the stream after each layer of the head
    logits, act_logits               (K,) and (classes,), raw

The stream is (T, d) float32. Of the last head layer only the rows are kept that anything reads, position 0 and the
markers in order, (1 + K, d): an engine need not compute the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from layactl.core.json_fields import JsonObject
from layactl.durable import check_regular, replacing
from layactl.engine.decider import render
from layactl.errors import InputError, RequestError

if TYPE_CHECKING:
    from layactl.engine.model import Model
    from layactl.reference.reference_model import ReferenceModel

FORMAT = "layactl.parity-trace/1"
SIDES = ("engine", "reference")

# Node name -> values, in the order above.
Trace: TypeAlias = dict[str, npt.NDArray[Any]]
# (item id, question id) -> its trace.
Traces: TypeAlias = Mapping[tuple[str, str], Trace]

_INPUTS, _OUTPUTS = ("ids", "markers"), ("logits", "act_logits")
_HEAD = "head."
_KEY = "layactl"
# Below any number the stream holds; keeps a node of zeros from dividing by zero.
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class TraceFile:
    """header: what the writer said of the run ("side", "model", ...)."""

    header: dict[str, Any]
    traces: dict[tuple[str, str], Trace]


@dataclass(frozen=True)
class NodeDifference:
    """One node of one question, compared.

    error: max|a - b| / max(max|a|, 1.2e-38); infinite where the two cannot be subtracted, not a number where one of
    them holds such; None where only one side has the node. note: what is the matter, besides a number.
    """

    node: str
    error: float | None
    note: str | None = None


@dataclass(frozen=True)
class QuestionDifference:
    """One question of two files.

    nodes: in order; when ids or markers differ they end there, as nothing after them can be compared.
    first: the first node that only one side has or whose error is not within the tolerance. note: which side lacks the
    question.
    """

    item: str
    question: str
    nodes: tuple[NodeDifference, ...] = ()
    first: NodeDifference | None = None
    note: str | None = None


# -- tracing --------------------------------------------------------------------------------------------------------


def trace_engine(model: Model, state: Any, questions: Mapping[str, Any]) -> dict[str, Trace]:
    """Question id -> its trace, through layactl. Raises RequestError."""
    request = model.parse({"state": state, "questions": questions})
    sequences = render(model, request).sequences
    return {
        question.id: _trace(sequence.ids, sequence.markers, model.forward.trace(sequence))
        for question, sequence in zip(request.questions, sequences, strict=True)
    }


def trace_reference(reference: ReferenceModel, state: Any, questions: dict[str, Any]) -> dict[str, Trace]:
    """Question id -> its trace, through the reference, each question alone. Raises RequestError, ModelLoadError."""
    refusal = reference.ask(state, questions).refusal
    if refusal is not None:
        raise RequestError("INVALID_REQUEST", f"the reference refuses it: {refusal}")
    traces = {}
    for question_id, item in reference.sequences(state, questions).items():
        with _watching(reference.agent.model) as nodes:
            logits, act_logits = reference.forward(item)
        # The type's row alone so far: in the model this sum has no module of its own.
        nodes["type_embedding"] = nodes["encoder.final_norm"] + nodes["type_embedding"]
        nodes["logits"], nodes["act_logits"] = (np.array(part, dtype=np.float32) for part in (logits, act_logits))
        traces[question_id] = _trace(item["ids"], item["markers"], nodes)
    return traces


def _trace(ids: list[int], markers: list[int], computed: Mapping[str, npt.NDArray[Any]]) -> Trace:
    nodes = {"ids": np.array(ids, dtype=np.int32), "markers": np.array(markers, dtype=np.int32), **computed}
    if heads := [name for name in nodes if name.startswith(_HEAD)]:
        last = nodes[heads[-1]]
        rows = [0, *markers]
        # An engine that computes these rows only has them already; a sequence is always longer than that.
        nodes[heads[-1]] = last if len(last) == len(rows) else last[rows]
    return nodes


@contextmanager
def _watching(model: Any) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Collect what the reference's modules put out in one pass, in order: (T, d), and (d,) of the type's embedding."""
    from torch.nn.modules.module import register_module_forward_hook

    encoder = model.encoder
    names = {encoder.embeddings: "embeddings"}
    names |= {layer: f"encoder.{n}" for n, layer in enumerate(encoder.layers)}
    names |= {encoder.final_norm: "encoder.final_norm", model.type_emb: "type_embedding"}
    names |= {layer: f"{_HEAD}{n}" for n, layer in enumerate(model.head.layers if model.head is not None else ())}
    nodes: dict[str, npt.NDArray[Any]] = {}

    def keep(module: Any, inputs: Any, output: Any) -> None:
        if module in names:
            # A layer of transformers 4 puts out a tuple; every output is a batch of one.
            hidden = output[0] if isinstance(output, tuple) else output
            nodes[names[module]] = hidden[0].numpy().copy()

    # One hook for all modules: hooks on a head layer itself would make torch take another path through it.
    handle = register_module_forward_hook(keep)
    try:
        yield nodes
    finally:
        handle.remove()


# -- the file -------------------------------------------------------------------------------------------------------


def write_trace(path: Path, traces: Traces, header: Mapping[str, Any]) -> None:
    """Write one safetensors file; see `read_trace`.

    header: "side" ("engine" or "reference"), "model", and what else the run was. Raises OutputError.
    """
    questions = [
        {"item": item, "question": question, "nodes": list(traces[item, question])} for item, question in traces
    ]
    text = json.dumps({"format": FORMAT, **header, "questions": questions}, ensure_ascii=False)
    tensors = {
        f"{n}/{node}": np.ascontiguousarray(values)
        for n, trace in enumerate(traces.values())
        for node, values in trace.items()
    }
    with replacing(path) as temporary:
        mode = temporary.stat().st_mode
        save_file(tensors, temporary, metadata={_KEY: text})
        # It puts a file of its own there, which only the owner may read.
        temporary.chmod(mode)


def read_trace(path: Path) -> TraceFile:
    """Read a trace file, every part of it checked.

    The metadata holds one JSON object: "format", "side", "model", and "questions", a list of {"item", "question",
    "nodes"}; node `name` of question n of that list is the tensor "n/name". Raises InputError naming the tensor.
    """
    where = str(path)
    check_regular(path)
    if not path.exists():
        raise InputError("no such file", where=where)
    try:
        with safe_open(path, framework="numpy") as file:
            header = _header((file.metadata() or {}).get(_KEY), where)
            wanted = _entries(header)
            found = set(file.keys())
            if strange := sorted(found ^ {f"{n}/{node}" for n, nodes in enumerate(wanted.values()) for node in nodes}):
                message = "belongs to no question" if strange[0] in found else "is missing"
                raise InputError(f"tensor {strange[0]:.80} {message}", where=where)
            traces = {key: _read(file, n, nodes, where) for n, (key, nodes) in enumerate(wanted.items())}
    except (SafetensorError, OSError) as error:
        raise InputError(f"is no trace: {error}", where=where) from None
    content = {key: value for key, value in header.values.items() if key not in ("format", "questions")}
    return TraceFile(content, traces)


def _header(text: str | None, where: str) -> JsonObject:
    try:
        content = orjson.loads(text or "")
    except orjson.JSONDecodeError:
        content = None
    if not isinstance(content, dict):
        raise InputError("is no trace: its metadata holds no header", where=where)
    header = JsonObject(content, where, InputError)
    if header.text("format") != FORMAT:
        raise header.error("format", f"is not {FORMAT}")
    if header.text("side") not in SIDES:
        raise header.error("side", f"is not one of {', '.join(SIDES)}")
    header.text("model")
    return header


def _entries(header: JsonObject) -> dict[tuple[str, str], list[str]]:
    """(item, question) -> its nodes."""
    entries: dict[tuple[str, str], list[str]] = {}
    for n, value in enumerate(header.items("questions")):
        if not isinstance(value, dict):
            raise header.error(f"questions[{n}]", "must be an object")
        entry = header.inside(value, f"questions[{n}]")
        nodes = entry.items("nodes")
        if not all(isinstance(node, str) for node in nodes) or len(set(nodes)) != len(nodes):
            raise entry.error("nodes", "must be a list of texts, each once")
        if tuple(nodes[:2]) != _INPUTS:
            raise entry.error("nodes", f"must begin with {' and '.join(_INPUTS)}")
        key = entry.text("item"), entry.text("question")
        if key in entries:
            raise entry.error("question", f"{key[1]!r:.60} of item {key[0]!r:.60} is there twice")
        entries[key] = nodes
    return entries


def _read(file: Any, n: int, nodes: list[str], where: str) -> Trace:
    """The trace of question n: types and shapes as the module's docstring says, whatever the values are."""
    trace: Trace = {}
    last_head = next((node for node in reversed(nodes) if node.startswith(_HEAD)), None)
    width: int | None = None
    for node in nodes:
        name = f"{n}/{node}"
        part = file.get_slice(name)
        kind, shape = part.get_dtype(), tuple(part.get_shape())
        if kind != ("I32" if node in _INPUTS else "F32"):
            raise InputError(f"tensor {name:.80} has type {kind}", where=where)
        expected: tuple[int | None, ...] = (None,)  # None: any size
        if node == "logits":
            expected = (len(trace["markers"]),)
        elif node not in _INPUTS and node not in _OUTPUTS:
            expected = (1 + len(trace["markers"]) if node == last_head else len(trace["ids"]), width)
            width = shape[-1] if shape else None
        if len(shape) != len(expected) or any(
            size not in (None, got) for size, got in zip(expected, shape, strict=True)
        ):
            raise InputError(f"tensor {name:.80} has shape {shape}", where=where)
        trace[node] = file.get_tensor(name)
    if ((trace["markers"] < 0) | (trace["markers"] >= len(trace["ids"]))).any():
        raise InputError(f"tensor {n}/markers points outside the sequence", where=where)
    return trace


# -- the comparison -------------------------------------------------------------------------------------------------


def diff_traces(a: Traces, b: Traces, tolerance: float) -> list[QuestionDifference]:
    """Every question of either side, those of `a` first and in its order.

    tolerance: of a node's error, max|a - b| / max(max|a|, 1.2e-38) over all its values; an error that is not a number
    is beyond any.
    """
    found = []
    for item, question in [*a, *(key for key in b if key not in a)]:
        key = item, question
        if key not in a or key not in b:
            found.append(QuestionDifference(item, question, note=f"only in {'a' if key in a else 'b'}"))
            continue
        nodes = tuple(_compare(a[key], b[key]))
        first = next((node for node in nodes if node.error is None or not node.error <= tolerance), None)
        found.append(QuestionDifference(item, question, nodes, first))
    return found


def _compare(a: Trace, b: Trace) -> Iterator[NodeDifference]:
    for node in _in_order(a, b):
        difference = _compare_node(node, a.get(node), b.get(node))
        yield difference
        if node in _INPUTS and difference.error:
            return


def _in_order(a: Trace, b: Trace) -> list[str]:
    """The nodes of both: those of `a` in its order, those of `b` alone behind the node that is before them there."""
    order, place = list(a), 0
    for node in b:
        if node not in a:
            order.insert(place, node)
        place = order.index(node) + 1
    return order


def _compare_node(node: str, a: npt.NDArray[Any] | None, b: npt.NDArray[Any] | None) -> NodeDifference:
    if a is None or b is None:
        return NodeDifference(node, None, f"only in {'b' if a is None else 'a'}")
    if a.shape != b.shape:
        return NodeDifference(node, math.inf, f"shape {a.shape} against {b.shape}")
    if node not in _INPUTS:
        return NodeDifference(node, _relative_error(a, b))
    if len(places := np.flatnonzero(a != b)):
        at = places[0]
        return NodeDifference(node, math.inf, f"{a[at]} against {b[at]} at position {at}")
    return NodeDifference(node, 0.0)


def _relative_error(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    if not a.size:
        return 0.0
    # In double, where the difference of two large float32 does not overflow; inf - inf is no number, and so it says.
    with np.errstate(invalid="ignore"):
        first, second = a.astype(np.float64), b.astype(np.float64)
        return float(np.abs(first - second).max() / max(float(np.abs(first).max()), _TINY))
