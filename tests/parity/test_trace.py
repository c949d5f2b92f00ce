"""parity.trace: both sides compute the same stream node by node, and the first node that differs is named."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layactl
from layactl.errors import InputError, OutputError, RequestError
from layactl.kernels import onednn
from layactl.layouts.laya import head
from layactl.parity import trace as trace_module
from layactl.parity.trace import (
    FORMAT,
    NodeDifference,
    QuestionDifference,
    Trace,
    diff_traces,
    read_trace,
    trace_engine,
    trace_reference,
    write_trace,
)

from .conftest import COMMITTED, GENERATED
from .golden_file import golden_path, read_golden

# Float32 sums in another order; with the plain kernels the two sides agree to the bit.
TOLERANCE = 2e-5
STATE = [{"role": "user", "text": "You charged me twice, please refund the second payment. " * 4}]
QUESTIONS = {
    "refund": {"type": "noul", "instructions": "Asks for money back?"},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "technical", "other"]},
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["low", "medium", "high"]},
    "one": {"type": "choice", "instructions": "Which?", "criteria": ["this"]},
}


def keyed(traces: dict[str, Trace], item: str = "i1") -> dict[tuple[str, str], Trace]:
    return {(item, question): trace for question, trace in traces.items()}


@pytest.fixture
def engine_traces(model_of: Callable[..., layactl.Model]) -> dict[tuple[str, str], Trace]:
    return keyed(trace_engine(model_of("tiny-english"), STATE, QUESTIONS))


# -- both sides -----------------------------------------------------------------------------------------------------


@pytest.mark.reference
@pytest.mark.parametrize("name", [*COMMITTED, *GENERATED])
def test_every_node_agrees_with_the_reference(
    name: str, model_of: Callable[..., layactl.Model], reference_of: Callable[[str], Any]
) -> None:
    model, reference = model_of(name), reference_of(name).model
    golden = COMMITTED[0] if name not in COMMITTED else name
    cases = [case for case, outcome in read_golden(golden_path(golden)).requests if outcome.refusal is None]
    requests = [(STATE, QUESTIONS), *((case.state, case.questions) for case in cases[::6] if case.limits is None)]
    worst: dict[str, float] = {}
    for state, questions in requests:
        theirs, mine = trace_reference(reference, state, questions), trace_engine(model, state, questions)
        differences = diff_traces(keyed(theirs), keyed(mine), TOLERANCE)
        assert [difference.question for difference in differences] == list(questions)
        for difference in differences:
            assert difference.first is None, difference
            assert not [node for node in difference.nodes if node.note], difference
            for node in difference.nodes:
                assert node.error is not None
                worst[node.node] = max(worst.get(node.node, 0.0), node.error)
    print(f"{name}: largest relative error {max(worst.values()):.1e}; {worst}")
    encoder_layers, head_layers = {"tiny-multilingual": (4, 2), "tiny-english": (5, 1)}.get(name, (None, None))
    if encoder_layers is not None:
        assert list(worst) == [
            *("ids", "markers", "embeddings"),
            *(f"encoder.{n}" for n in range(encoder_layers)),
            *("encoder.final_norm", "type_embedding"),
            *(f"head.{n}" for n in range(head_layers)),
            *("logits", "act_logits"),
        ]
    if name == "headless":
        assert not [node for node in worst if node.startswith("head.")]


@pytest.mark.reference
@pytest.mark.parametrize("name", [*COMMITTED, *GENERATED])
def test_tracing_changes_no_bit_of_the_reference(name: str, reference_of: Callable[[str], Any]) -> None:
    reference = reference_of(name).model
    before = reference.ask(STATE, QUESTIONS).questions
    traces = trace_reference(reference, STATE, QUESTIONS)
    for question, trace in traces.items():
        assert trace["logits"].tolist() == before[question].logits
        assert trace["act_logits"].tolist() == before[question].act_logits
        assert (trace["ids"].tolist(), trace["markers"].tolist()) == (before[question].ids, before[question].markers)
    assert reference.ask(STATE, QUESTIONS).questions == before


@pytest.mark.parametrize("name", COMMITTED)
def test_tracing_changes_no_bit_of_the_engine(name: str, model_of: Callable[..., layactl.Model]) -> None:
    model = model_of(name)
    before = model.decide(STATE, QUESTIONS, debug=True)["answers"]
    traces = trace_engine(model, STATE, QUESTIONS)
    for question, trace in traces.items():
        debug = before[question]["debug"]
        assert trace["logits"].tolist() == debug["logits"]
        assert trace["act_logits"].tolist() == debug["act_logits"]
        assert (trace["ids"].tolist(), trace["markers"].tolist()) == (debug["token_ids"], debug["markers"])
    assert model.decide(STATE, QUESTIONS, debug=True)["answers"] == before


def test_the_stream_is_whole_but_for_the_last_head_layer(model_of: Callable[..., layactl.Model]) -> None:
    for trace in trace_engine(model_of("tiny-multilingual"), STATE, QUESTIONS).values():
        tokens, options = len(trace["ids"]), len(trace["markers"])
        for node, values in trace.items():
            shape = {"ids": (tokens,), "markers": (options,), "logits": (options,), "act_logits": (2,)}
            rows = 1 + options if node == "head.1" else tokens
            assert values.shape == shape.get(node, (rows, 64)), node
            assert values.dtype == (np.int32 if node in ("ids", "markers") else np.float32)


def test_an_engine_that_computes_the_needed_rows_only_gives_the_same_trace(
    gguf_of: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = layactl.load(gguf_of("tiny-multilingual", "f32"), kernels="reference")
    whole = trace_engine(model, STATE, QUESTIONS)
    original = type(model.forward).trace

    def fewer_rows(self: Any, sequence: Any) -> Any:
        nodes = original(self, sequence)
        return nodes | {"head.1": nodes["head.1"][[0, *sequence.markers]]}

    monkeypatch.setattr(type(model.forward), "trace", fewer_rows)
    few = trace_engine(model, STATE, QUESTIONS)
    assert all(node.error == 0.0 for d in diff_traces(keyed(whole), keyed(few), 0.0) for node in d.nodes)


@pytest.mark.reference
def test_what_one_side_refuses_is_not_traced(
    model_of: Callable[..., layactl.Model], reference_of: Callable[[str], Any]
) -> None:
    poem = {"q": {"type": "poem", "instructions": "?"}}
    with pytest.raises(RequestError):
        trace_engine(model_of("tiny-english"), "s", poem)
    with pytest.raises(RequestError, match="the reference refuses it: ValueError"):
        trace_reference(reference_of("tiny-english").model, "s", poem)


# -- a mistake is found where it is made ----------------------------------------------------------------------------

# On a model of the test's own, which goes with it; what is of a module is patched.
Patch = Callable[[pytest.MonkeyPatch, layactl.Model], None]


def _nudged(part: Any) -> Callable[..., Any]:
    """A step of the computation whose result is one part in a thousand too large."""
    return lambda *arguments: part(*arguments) * 1.001


def encoder_layer(n: int) -> Patch:
    def change(patch: pytest.MonkeyPatch, model: layactl.Model) -> None:
        layers = model.forward._encode._layers
        layers[n] = _nudged(layers[n])

    return change


def head_layer(patch: pytest.MonkeyPatch, model: layactl.Model) -> None:
    layers = model.forward._head._layers
    layers[0] = _nudged(layers[0])


def head_part(name: str) -> Patch:
    def change(patch: pytest.MonkeyPatch, model: layactl.Model) -> None:
        part = getattr(model.forward._head, name)
        patch.setattr(model.forward._head, name, part * 1.001 if name == "_type_embeddings" else _nudged(part))

    return change


def act_features(patch: pytest.MonkeyPatch, model: layactl.Model) -> None:
    patch.setattr(head, "_act_features", _nudged(head._act_features))


def no_window(patch: pytest.MonkeyPatch, model: layactl.Model) -> None:
    original = onednn.attend
    patch.setattr(onednn, "attend", lambda part, value, half: original(part, value, None))


def final_norm(patch: pytest.MonkeyPatch, model: layactl.Model) -> None:
    encode = model.forward._encode
    patch.setattr(encode, "_final_norm", encode._final_norm * 1.001)


def embedding_norm(patch: pytest.MonkeyPatch, model: layactl.Model) -> None:
    encode = model.forward._encode
    patch.setattr(encode, "_embedding_norm", encode._embedding_norm * 1.001)


MISTAKES: dict[str, tuple[Patch, str]] = {
    "the embeddings' norm": (embedding_norm, "embeddings"),
    "the first layer": (encoder_layer(0), "encoder.0"),
    "a layer in the middle": (encoder_layer(2), "encoder.2"),
    "the last layer": (encoder_layer(4), "encoder.4"),
    # Layers 0 and 3 see everything anyway.
    "no window": (no_window, "encoder.1"),
    "the final norm": (final_norm, "encoder.final_norm"),
    "the type's embedding": (head_part("_type_embeddings"), "type_embedding"),
    "a head layer": (head_layer, "head.0"),
    "the scorer": (head_part("_scorer_out"), "logits"),
    "the act features": (act_features, "act_logits"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_first_node_that_differs_is_where_the_mistake_is(
    mistake: str,
    gguf_of: Callable[[str, str], Path],
    engine_traces: dict[tuple[str, str], Trace],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change, node = MISTAKES[mistake]
    model = layactl.load(gguf_of("tiny-english", "f32"))
    change(monkeypatch, model)
    wrong = keyed(trace_engine(model, STATE, QUESTIONS))
    for difference in diff_traces(engine_traces, wrong, TOLERANCE):
        assert difference.first is not None, difference.question
        assert (difference.first.node, difference.first.note) == (node, None)
        before = [other.error for other in difference.nodes[: difference.nodes.index(difference.first)]]
        assert before == [0.0] * len(before)


# -- the comparison -------------------------------------------------------------------------------------------------


def small(**changes: Any) -> Trace:
    """A trace of four tokens and one option."""
    trace: Trace = {
        "ids": np.array([1, 5, 6, 2], dtype=np.int32),
        "markers": np.array([2], dtype=np.int32),
        "embeddings": np.arange(8, dtype=np.float32).reshape(4, 2),
        "head.0": np.array([[1.0, -4.0], [2.0, 3.0]], dtype=np.float32),
        "logits": np.array([0.5], dtype=np.float32),
    }
    for node, values in changes.items():
        node = node.replace("_", ".")
        if values is None:
            del trace[node]
        else:
            trace[node] = np.asarray(values, dtype=trace[node].dtype)
    return trace


def compared(a: Trace, b: Trace, tolerance: float = 1e-3) -> QuestionDifference:
    (difference,) = diff_traces({("i", "q"): a}, {("i", "q"): b}, tolerance)
    return difference


def test_an_error_is_relative_to_the_largest_value_of_the_node() -> None:
    difference = compared(small(), small(head_0=[[1.0, -4.0], [2.5, 3.0]]), 0.125)
    assert {node.node: node.error for node in difference.nodes}["head.0"] == 0.5 / 4
    assert difference.first is None
    assert compared(small(), small(head_0=[[1.0, -4.0], [2.5, 3.0]]), 0.124).first == NodeDifference("head.0", 0.125)


NUMBERS: dict[str, tuple[Trace, Trace, Callable[[float], bool]]] = {
    "equal": (small(), small(), lambda error: error == 0.0),
    "zeros": (small(logits=[0.0]), small(logits=[-0.0]), lambda error: error == 0.0),
    "zeros against a number": (small(logits=[0.0]), small(logits=[1.0]), lambda error: error > 1e30),
    "beyond the range of float32": (small(logits=[3e38]), small(logits=[-3e38]), lambda error: error == 2.0),
    "NaN": (small(), small(logits=[math.nan]), math.isnan),
    "NaN on both sides": (small(logits=[math.nan]), small(logits=[math.nan]), math.isnan),
    "infinite on both sides": (small(logits=[math.inf]), small(logits=[math.inf]), math.isnan),
    "infinite on one side": (small(), small(logits=[math.inf]), math.isinf),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_every_number_is_compared(case: str) -> None:
    a, b, expected = NUMBERS[case]
    difference = compared(a, b)
    error = difference.nodes[-1].error
    assert difference.nodes[-1].node == "logits"
    assert error is not None
    assert expected(error)
    # Not a number is never within the tolerance.
    assert (difference.first is None) == (error == 0.0)


STRUCTURES: dict[str, tuple[Trace, Trace, str, str]] = {
    "another token": (small(), small(ids=[1, 5, 7, 2]), "ids", "6 against 7 at position 2"),
    "fewer tokens": (small(), small(ids=[1, 5, 6]), "ids", "shape (4,) against (3,)"),
    "another marker": (small(), small(markers=[3]), "markers", "2 against 3 at position 0"),
    "more options": (small(), small(markers=[2, 3]), "markers", "shape (1,) against (2,)"),
    "rows of another layer": (small(), small(head_0=[[1.0, -4.0]]), "head.0", "shape (2, 2) against (1, 2)"),
    "a node of a only": (small(), small(head_0=None, logits=[9.0]), "head.0", "only in a"),
    "a node of b only": (small(head_0=None, logits=[9.0]), small(), "head.0", "only in b"),
    "the last node of b only": (small(logits=None), small(), "logits", "only in b"),
}


@pytest.mark.parametrize("case", STRUCTURES)
def test_what_cannot_be_subtracted_is_reported(case: str) -> None:
    a, b, first, note = STRUCTURES[case]
    difference = compared(a, b)
    (noted,) = [node for node in difference.nodes if node.note]
    assert noted.note == note
    assert difference.first == noted == NodeDifference(first, None if "only" in note else math.inf, note)
    if first in ("ids", "markers"):
        assert difference.nodes[-1] == noted  # nothing after them can be compared


def test_questions_of_one_side_are_reported() -> None:
    a, b = {("i", "q"): small(), ("j", "q"): small()}, {("k", "q"): small(), ("i", "q"): small()}
    assert [(d.item, d.note, bool(d.nodes)) for d in diff_traces(a, b, 0.0)] == [
        ("i", None, True),
        ("j", "only in a", False),
        ("k", "only in b", False),
    ]


# -- the file -------------------------------------------------------------------------------------------------------

HEADER = {"side": "engine", "model": "tiny-english", "kernels": "reference"}


def test_a_trace_reads_back_as_it_was_written(engine_traces: dict[tuple[str, str], Trace], tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    traces = engine_traces | {("ein Schlüssel/0", "q"): small(logits=[math.nan])}
    write_trace(path, traces, HEADER)
    first = path.read_bytes()
    found = read_trace(path)
    assert found.header == HEADER
    assert list(found.traces) == list(traces)
    for key, trace in traces.items():
        assert list(found.traces[key]) == list(trace)
        for node, values in trace.items():
            again = found.traces[key][node]
            assert (again.dtype, again.shape, again.tobytes()) == (values.dtype, values.shape, values.tobytes())
    write_trace(path, found.traces, found.header)
    assert path.read_bytes() == first
    write_trace(path, {}, HEADER)
    assert read_trace(path).traces == {}


def test_a_trace_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.safetensors"
    write_trace(path, {("i", "q"): small()}, HEADER)
    before = path.read_bytes()

    def disk_full(tensors: Any, target: Path, metadata: Any) -> None:
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace_module, "save_file", disk_full)
    with pytest.raises(OutputError, match="No space left"):
        write_trace(path, {("i", "q"): small()}, HEADER)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def stored(tensors: dict[str, Any] | None = None, **changes: Any) -> Callable[[Path], None]:
    """Writes a file of one small trace with other tensors (None takes one out) or another header field."""

    def write(path: Path) -> None:
        from safetensors.numpy import save_file

        entry = {"item": "i", "question": "q", "nodes": list(small())} | changes.pop("entry", {})
        header = {"format": FORMAT, "side": "engine", "model": "m", "questions": [entry]} | changes
        content = {f"0/{node}": values for node, values in small().items()} | (tensors or {})
        sound = {name: values for name, values in content.items() if values is not None}
        save_file(sound, path, metadata={"layactl": json.dumps(header)})

    return write


def raw(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def torn(path: Path) -> None:
    stored()(path)
    path.write_bytes(path.read_bytes()[:-1])


def other_metadata(metadata: dict[str, str] | None) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        from safetensors.numpy import save_file

        save_file({"x": np.zeros(1, dtype=np.float32)}, path, metadata=metadata)

    return write


def f32(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.float32)


def i32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (raw(b""), "is no trace"),
    "no safetensors file": (raw(b"not a safetensors file at all"), "is no trace"),
    "a header of absurd length": (raw(b"\xff" * 64), "is no trace"),
    "a torn file": (torn, "is no trace"),
    "no metadata": (other_metadata(None), "its metadata holds no header"),
    "metadata of another program": (other_metadata({"format": "pt"}), "its metadata holds no header"),
    "a header that is no JSON": (other_metadata({"layactl": "{"}), "its metadata holds no header"),
    "a header that is a list": (other_metadata({"layactl": "[]"}), "its metadata holds no header"),
    "another format": (stored(format="layactl.parity-trace/2"), "format is not layactl.parity-trace/1"),
    "another side": (stored(side="server"), "side is not one of engine, reference"),
    "no model": (stored(model=None), "model is missing"),
    "no questions": (stored(questions=None), "questions is missing"),
    "a question that is a text": (stored(questions=["q"]), r"questions\[0\] must be an object"),
    "an item id that is a number": (stored(entry={"item": 1}), r"questions\[0\].item must be a string"),
    "nodes that are no list": (stored(entry={"nodes": "ids"}), r"questions\[0\].nodes must be a list"),
    "a node that is no text": (stored(entry={"nodes": ["ids", "markers", 1]}), "must be a list of texts"),
    "a node twice": (stored(entry={"nodes": ["ids", "markers", "logits", "logits"]}), "each once"),
    "no markers": (stored(entry={"nodes": ["ids", "logits"]}), "must begin with ids and markers"),
    "a question twice": (
        stored(questions=[{"item": "i", "question": "q", "nodes": ["ids", "markers"]}] * 2),
        "'q' of item 'i' is there twice",
    ),
    "a tensor missing": (stored({"0/head.0": None}), "tensor 0/head.0 is missing"),
    "a tensor too many": (stored({"1/head.0": f32(2, 2)}), "tensor 1/head.0 belongs to no question"),
    "ids in another type": (stored({"0/ids": np.zeros(4, dtype=np.int64)}), "tensor 0/ids has type I64"),
    "a node in half precision": (stored({"0/logits": np.zeros(1, dtype=np.float16)}), "tensor 0/logits has type F16"),
    "ids in rows": (stored({"0/ids": i32(1, 2, 3, 4).reshape(2, 2)}), r"tensor 0/ids has shape \(2, 2\)"),
    "a scalar": (stored({"0/embeddings": np.array(1, dtype=np.float32)}), r"tensor 0/embeddings has shape \(\)"),
    "fewer rows than tokens": (stored({"0/embeddings": f32(3, 2)}), r"tensor 0/embeddings has shape \(3, 2\)"),
    "another width": (stored({"0/head.0": f32(2, 3)}), r"tensor 0/head.0 has shape \(2, 3\)"),
    "all rows of the last head layer": (stored({"0/head.0": f32(4, 2)}), r"tensor 0/head.0 has shape \(4, 2\)"),
    "a logit too many": (stored({"0/logits": f32(2)}), r"tensor 0/logits has shape \(2,\)"),
    "a marker before the sequence": (stored({"0/markers": i32(-1)}), "tensor 0/markers points outside"),
    "a marker behind the sequence": (stored({"0/markers": i32(4)}), "tensor 0/markers points outside"),
}


@pytest.mark.parametrize("flaw", DAMAGED)
def test_a_damaged_trace_is_refused_by_the_name_of_its_part(flaw: str, tmp_path: Path) -> None:
    write, message = DAMAGED[flaw]
    path = tmp_path / "trace.safetensors"
    write(path)
    with pytest.raises(InputError, match=message) as caught:
        read_trace(path)
    assert caught.value.where == str(path)


def test_a_trace_may_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_trace(tmp_path / "trace.safetensors", {("i", "q"): small()}, HEADER)
    finally:
        os.umask(before)
    assert (tmp_path / "trace.safetensors").stat().st_mode & 0o777 == 0o640


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in ((tmp_path / "none", "no such file"), (tmp_path, "regular"), (tmp_path / "pipe", "regular")):
        with pytest.raises(InputError, match=message):
            read_trace(path)
