"""Broken input of every kind through the command itself: an exit code, one line that names what is wrong, nothing else.

Each case builds its input in one folder and writes, if it could, into another, which must stay empty.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_edit import (
    AGENT,
    ENCODER,
    INDEX,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    Stored,
    edit_json,
    edit_weights,
    safetensors_bytes,
    set_fields,
    split_weights,
)
from gguf import GGUFValueType as Kind
from gguf_edit import Value, array, edited, f32, packed_key, packed_tensor, raw_gguf, text, u32

from layactl.gguf_file import names

ASK = ("--ask", "q=noul: Urgent?")


@dataclass(frozen=True)
class Scene:
    """Where a case plays. input: its own folder; out: an empty one; model: a sound GGUF, not to be changed."""

    input: Path
    out: Path
    model: Path
    checkpoints: Path

    def checkpoint(self, name: str = "tiny-english") -> Path:
        return Path(shutil.copytree(self.checkpoints / name, self.input / name))

    def file(self, name: str, content: bytes | str) -> Path:
        path = self.input / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path


Arrange = Callable[[Scene], list[object]]


@dataclass(frozen=True)
class Case:
    arrange: Arrange
    fragment: str
    code: int = 1


def converted(damage: Callable[[Path], object], *options: str, family: str = "tiny-english") -> Arrange:
    """Convert a checkpoint after some damage."""

    def arrange(scene: Scene) -> list[object]:
        root = scene.checkpoint(family)
        damage(root)
        return ["convert", root, "-o", scene.out / "x.gguf", *options]

    return arrange


def loaded(content: bytes | None = None, command: str = "decide", **edits: Any) -> Arrange:
    """Use a GGUF of these bytes, or an edited copy of a sound one."""

    def arrange(scene: Scene) -> list[object]:
        path = scene.input / "model.gguf"
        if content is None:
            edited(scene.model, path, **edits)
        else:
            path.write_bytes(content)
        return {
            "decide": ["decide", "-m", path, "a text", *ASK],
            "lines": ["decide", "-m", path, "--jsonl", scene.file("in.jsonl", "{}\n"), "-o", scene.out / "o.jsonl"],
            "tokenize": ["tokenize", "-m", path, "a text"],
        }[command]

    return arrange


def keys(**changes: Value | None) -> Arrange:
    """Use a copy of a sound GGUF with these keys changed; names are those of gguf_file.names."""
    return loaded(keys={getattr(names, name): value for name, value in changes.items()})


def asked(*arguments: object) -> Arrange:
    return lambda scene: ["decide", "-m", scene.model, *arguments]


def questions(definitions: Any) -> Arrange:
    content = definitions if isinstance(definitions, bytes) else json.dumps(definitions).encode()
    return lambda scene: ["decide", "-m", scene.model, "x", "--questions", scene.file("q.json", content)]


def cut(path: Path, length: int) -> None:
    os.truncate(path, length)


def one(definition: dict[str, Any]) -> dict[str, Any]:
    return {"q": {"instructions": "?"} | definition}


HUGE = Stored("F32", (64, 64), np.full((64, 64), 1e6, "<f4").tobytes())
INTEGERS = {"dtype": "I8", "shape": [0], "data_offsets": [0, 0]}
LAYA = [packed_key("general.architecture", 8, b"\4\0\0\0\0\0\0\0laya")]

CASES = {
    # -- checkpoint folders
    "no such checkpoint": Case(lambda s: ["convert", s.input / "none", "-o", s.out / "x.gguf"], "no such folder"),
    "a file for a checkpoint": Case(
        lambda s: ["convert", s.file("model.bin", "x"), "-o", s.out / "x.gguf"], "is a file, not a checkpoint folder"
    ),
    "a GGUF for a checkpoint": Case(
        lambda s: ["convert", s.model, "-o", s.out / "x.gguf"], "is a file, not a checkpoint"
    ),
    "an empty folder": Case(lambda s: ["convert", s.input, "-o", s.out / "x.gguf"], "rl_agent_config.json is missing"),
    "no agent config": Case(converted(lambda r: (r / AGENT).unlink()), "rl_agent_config.json is missing"),
    "no encoder config": Case(converted(lambda r: (r / ENCODER).unlink()), "encoder/config.json"),
    "no tokenizer": Case(converted(lambda r: (r / TOKENIZER).unlink()), "tokenizer/tokenizer.json"),
    "no tokenizer config": Case(
        converted(lambda r: (r / TOKENIZER_CONFIG).unlink()), "tokenizer_config.json is missing"
    ),
    "no weights": Case(converted(lambda r: (r / WEIGHTS).unlink()), "model.safetensors is missing"),
    "agent config no JSON": Case(
        converted(lambda r: (r / AGENT).write_text("{")), "rl_agent_config.json is not valid JSON"
    ),
    "agent config empty": Case(
        converted(lambda r: (r / AGENT).write_text("")), "rl_agent_config.json is not valid JSON"
    ),
    "agent config a list": Case(converted(lambda r: (r / AGENT).write_text("[]")), "must hold a JSON object"),
    "agent config not UTF-8": Case(converted(lambda r: (r / AGENT).write_bytes(b'{"a": "\xff"}')), "not valid JSON"),
    "encoder config with NaN": Case(
        converted(lambda r: (r / ENCODER).write_text('{"a": NaN}')), "config.json is not valid"
    ),
    "encoder config nested deep": Case(
        converted(lambda r: (r / ENCODER).write_text('{"a":' + "[" * 300 + "]" * 300 + "}")),
        "config.json is nested deeper",
    ),
    "temperatures of text": Case(converted(lambda r: set_fields(r / AGENT, temperature=["1", 1, 1])), "temperature[0]"),
    "a temperature too large": Case(
        converted(lambda r: set_fields(r / AGENT, temperature=[1e300, 1, 1])), "temperature[0]"
    ),
    "max_len of text": Case(converted(lambda r: set_fields(r / AGENT, max_len="512")), "max_len must be an integer"),
    "another encoder": Case(converted(lambda r: set_fields(r / ENCODER, model_type="bert")), "model_type is 'bert'"),
    "no width": Case(converted(lambda r: set_fields(r / ENCODER, hidden_size=None)), "hidden_size is missing"),
    "absurd width": Case(
        converted(lambda r: set_fields(r / ENCODER, hidden_size=2**60)), "hidden_size is out of range"
    ),
    "absurd layers": Case(
        converted(lambda r: set_fields(r / ENCODER, num_hidden_layers=10**9)), "num_hidden_layers is out"
    ),
    "absurd positions": Case(
        converted(lambda r: set_fields(r / ENCODER, max_position_embeddings=2**63)),
        "max_position_embeddings is out of range",
    ),
    "a vocabulary larger than the embedding": Case(
        converted(lambda r: set_fields(r / ENCODER, vocab_size=2000)), "tok_embeddings.weight has shape (960, 64)"
    ),
    "layer types that disagree": Case(
        converted(lambda r: set_fields(r / ENCODER, layer_types=["full_attention"] * 5)),
        "layer_types is not one global layer",
    ),
    "weights cut short": Case(converted(lambda r: cut(r / WEIGHTS, 600_000)), "data_offsets"),
    "weights cut in the header": Case(converted(lambda r: cut(r / WEIGHTS, 50)), "model.safetensors is truncated"),
    "weights empty": Case(converted(lambda r: cut(r / WEIGHTS, 0)), "model.safetensors"),
    "weights of another format": Case(
        converted(lambda r: (r / WEIGHTS).write_bytes(b"PK\3\4" * 99)), "model.safetensors"
    ),
    "weights with a broken header": Case(
        converted(lambda r: (r / WEIGHTS).write_bytes(safetensors_bytes(b"{nope"))),
        "model.safetensors is not valid JSON",
    ),
    "a tensor missing": Case(
        converted(lambda r: edit_weights(r, lambda t: t.pop("scorer.3.bias"))), "tensor scorer.3.bias is missing"
    ),
    "a tensor of integers": Case(
        converted(lambda r: (r / WEIGHTS).write_bytes(safetensors_bytes({"a": INTEGERS}))), "a.dtype is 'I8'"
    ),
    "a weight beyond f16": Case(
        converted(lambda r: edit_weights(r, lambda t: t.update({"scorer.1.weight": HUGE}))),
        "tensor scorer.1.weight holds values beyond the range of f16",
    ),
    "a shard missing": Case(
        converted(lambda r: split_weights(r, 2)[0].unlink()), "model-00001-of-00002.safetensors is missing"
    ),
    "an index no JSON": Case(
        converted(lambda r: (r / INDEX).write_text("x")), "model.safetensors.index.json is not valid"
    ),
    "pickled weights": Case(
        converted(lambda r: (r / "pytorch_model.bin").write_bytes(b"x")), "pytorch_model.bin holds pickled"
    ),
    "a tokenizer of another family": Case(
        converted(lambda r: edit_json(r / TOKENIZER, lambda t: t.update(pre_tokenizer={"type": "Whitespace"}))),
        "pre_tokenizer is",
    ),
    "a mask token that is not there": Case(
        converted(lambda r: set_fields(r / TOKENIZER_CONFIG, mask_token="<blank>")), "special token '<blank>'"
    ),
    "an embedded tokenizer that cannot be built": Case(
        converted(
            lambda r: edit_json(r / TOKENIZER, lambda t: t["model"].update(merges=[["a", "no such piece"]])),
            "--embed-tokenizer",
        ),
        "the tokenizer cannot be built",
    ),
    "front matter no YAML": Case(
        converted(lambda r: (r / "README.md").write_text("---\na: [\n---\n")), "README.md front matter cannot be read"
    ),
    # -- outputs
    "output in a folder that is not there": Case(
        lambda s: ["convert", s.checkpoint(), "-o", s.out / "none" / "x.gguf"], "its folder does not exist"
    ),
    "output a folder": Case(lambda s: ["convert", s.checkpoint(), "-o", s.out], "cannot be replaced: it is a folder"),
    "output its own input": Case(
        lambda s: ["convert", root := s.checkpoint(), "-o", root / WEIGHTS], "is one of the checkpoint's own files"
    ),
    "output the JSONL input": Case(
        lambda s: ["decide", "-m", s.model, "--jsonl", i := s.file("in.jsonl", "{}\n"), "-o", i],
        "is the input itself",
        2,
    ),
    # -- GGUF files
    "no such model": Case(lambda s: ["decide", "-m", s.input / "none.gguf", "x", *ASK], "no such file"),
    "no such model to tokenize": Case(lambda s: ["tokenize", "-m", s.input / "none.gguf", "x"], "no such file"),
    "an empty model": Case(loaded(b""), "is empty"),
    "a model that is text": Case(loaded(b"hello"), "is not a GGUF file"),
    "a model cut in the header": Case(loaded(raw_gguf(LAYA)[:30]), "model.gguf"),
    "a model with a wild count": Case(loaded(raw_gguf(counts=lambda t, k: (2**60, 0))), "claims"),
    "a model with a wild string": Case(loaded(raw_gguf([packed_key("a", 8, b"\xff" * 8)])), "a: a string of"),
    "a model with a wild tensor": Case(
        loaded(raw_gguf(LAYA, [packed_tensor("t", [2**62])])), "t: tensor data runs past the end of the file"
    ),
    "a model of another architecture": Case(
        loaded(raw_gguf([packed_key("general.architecture", 8, b"\5\0\0\0\0\0\0\0llama")])), "is not a Laya GGUF"
    ),
    "a model without any key": Case(loaded(raw_gguf()), "model.gguf"),
    "the same for a JSONL run": Case(loaded(b"hello", command="lines"), "is not a GGUF file"),
    "the same for tokenize": Case(loaded(b"hello", command="tokenize"), "is not a GGUF file"),
    "no sliding window": Case(keys(SLIDING_WINDOW=None), "laya.attention.sliding_window: key is missing"),
    "no window pattern": Case(
        keys(SLIDING_WINDOW_PATTERN=None), "laya.attention.sliding_window_pattern: key is missing"
    ),
    "no global RoPE base": Case(keys(ROPE_FREQ_BASE=None), "laya.rope.freq_base: key is missing"),
    "no local RoPE base": Case(keys(ROPE_FREQ_BASE_SWA=None), "laya.rope.freq_base_swa: key is missing"),
    "another activation": Case(keys(HIDDEN_ACTIVATION=text("silu")), "laya.hidden_activation: is 'silu'"),
    "a RoPE base of NaN": Case(keys(ROPE_FREQ_BASE=f32(float("nan"))), "global_rope_theta is out of range"),
    "a layer too many": Case(keys(BLOCK_COUNT=u32(6)), "blk.5.attn_norm.weight: tensor is missing"),
    "a width that is not there": Case(keys(EMBEDDING_LENGTH=u32(128)), "token_embd.weight: tensor has shape (960, 64)"),
    "layers as text": Case(keys(BLOCK_COUNT=text("5")), "laya.block_count: is not a non-negative integer"),
    "two question types": Case(keys(N_QTYPE=u32(2)), "laya.n_qtype: is 2, not 3"),
    "no act classes": Case(keys(ACT_CLASSES=u32(0)), "laya.act_classes: is 0"),
    "an infinite temperature": Case(
        keys(TEMPERATURE=array([1.0, float("inf"), 1.0], Kind.FLOAT32)), "temperature inf is not a finite number"
    ),
    "buckets without their values": Case(keys(TEMPERATURE_VALUES=array([1.0], Kind.FLOAT32)), "6 buckets but 1 values"),
    "a marker that is not the mask": Case(
        keys(MARKER_TOKEN_ID=u32(1)), "laya.marker_token_id: is 1, but the mask token is 928"
    ),
    "a CLS outside the vocabulary": Case(
        keys(BOS_TOKEN_ID=u32(9999)), "bos_token_id: id 9999 is outside the vocabulary"
    ),
    "token types of another length": Case(keys(TOKEN_TYPES=array([1, 1], Kind.INT32)), "960 tokens but 2 types"),
    "merges of nothing": Case(keys(MERGES=array(["nonsense merge"], Kind.STRING)), "the tokenizer cannot be built"),
    "an unknown tokenizer": Case(keys(LAYA_TOKENIZER=text("wordpiece")), "decision.laya.tokenizer: is 'wordpiece'"),
    "a tensor of another model": Case(
        loaded(tensors={"lm_head.weight": np.zeros((4, 64), np.float32)}), "lm_head.weight: tensor has no place"
    ),
    "a tensor of another shape": Case(
        loaded(tensors={"output_norm.weight": np.zeros(63, np.float32)}), "output_norm.weight: tensor has shape (63,)"
    ),
    "weights that are not finite": Case(
        loaded(tensors={"scorer.3.bias": np.full(1, np.nan, np.float32)}),
        "question 'q': the model's output is not finite",
    ),
    # -- states
    "a state that is no JSON": Case(asked("--state", "{a: 1}", *ASK), "not valid JSON"),
    "a state of NaN": Case(asked("--state", "NaN", *ASK), "NaN is not a JSON number (--state)"),
    "a null state": Case(asked("--state", "null", *ASK), "INVALID_REQUEST: state is missing or null (state)"),
    "a state file that is not there": Case(
        lambda s: ["decide", "-m", s.model, "--state-file", s.input / "none.txt", *ASK], "none.txt"
    ),
    "a state file that is a folder": Case(
        lambda s: ["decide", "-m", s.model, "--state-file", s.input, *ASK], "Is a directory"
    ),
    "a state file that is no text": Case(
        lambda s: ["decide", "-m", s.model, "--state-file", s.file("s.txt", b"\xff"), *ASK], "s.txt"
    ),
    "a state file that is no JSON": Case(
        lambda s: ["decide", "-m", s.model, "--state-file", s.file("s.json", b"plain"), *ASK], "s.json"
    ),
    "a state file over 1 MiB": Case(
        lambda s: ["decide", "-m", s.model, "--state-file", s.file("s.txt", b"x" * (2**20 + 1)), *ASK], "BODY_TOO_LARGE"
    ),
    # -- questions
    "a questions file that is not there": Case(
        lambda s: ["decide", "-m", s.model, "x", "--questions", s.input / "none.json"], "none.json"
    ),
    "a questions file that is no JSON": Case(questions(b"{"), "q.json"),
    "a questions file of a list": Case(questions([]), "questions must be a JSON object"),
    "a questions file without questions": Case(questions({}), "no questions are given", 2),
    "a questions file over 1 MiB": Case(questions(b'{"q": "' + b"x" * 2**20 + b'"}'), "BODY_TOO_LARGE"),
    "a question that is text": Case(
        questions({"q": "noul"}), "INVALID_REQUEST: a question must be an object (questions.q)"
    ),
    "a question without a type": Case(questions(one({})), "UNKNOWN_QUESTION_TYPE: no type"),
    "a question of an unknown type": Case(questions(one({"type": "bool"})), "(questions.q.type)"),
    "a question without instructions": Case(questions({"q": {"type": "noul"}}), "EMPTY_INSTRUCTIONS"),
    "a choice without options": Case(questions(one({"type": "choice"})), "TOO_FEW_OPTIONS"),
    "a choice of 21 options": Case(questions(one({"type": "choice", "criteria": list(range(21))})), "TOO_MANY_OPTIONS"),
    "a choice with a null label": Case(
        questions(one({"type": "choice", "criteria": ["a", None]})), "(questions.q.criteria[1])"
    ),
    "two labels with one key": Case(
        questions(one({"type": "choice", "criteria": ["1", 1]})), 'share the answer key "1"'
    ),
    "a score of an object": Case(questions(one({"type": "score", "criteria": {"a": 1}})), "UNSUPPORTED_CRITERIA_VALUE"),
    "a noul keyed yes": Case(questions(one({"type": "noul", "criteria": {"yes": "x"}})), "INVALID_NOUL_CRITERIA"),
    "noul labels alike": Case(
        questions(one({"type": "noul", "labels": {"false": "a", "true": "a"}})), "(questions.q.labels)"
    ),
    "options that do not fit": Case(
        asked("x", "--ask", "choice: Which? " + "long words " * 99 + "|b", "--truncation", "error"), "OPTIONS_TRUNCATED"
    ),
    "instructions that do not fit": Case(
        asked("x", "--ask", "noul: " + "long words " * 99, "--truncation", "error"), "PROMPT_TOO_LONG"
    ),
    "shorthand without a type": Case(asked("x", "--ask", "Is it?"), "cannot read 'Is it?'", 2),
    "shorthand without options": Case(asked("x", "--ask", "choice: Which?"), "no options after the question", 2),
    "an unknown preset": Case(asked("x", "--preset", "none"), "no preset is called 'none'", 2),
    "two questions of one name": Case(
        asked("x", "--ask", "a=noul: x", "--ask", "a=noul: y"), "two questions are called 'a'", 2
    ),
    "no threads": Case(asked("x", *ASK, "--threads", "0"), "threads must be between 1 and 1024", 2),
    # -- JSONL inputs (their lines: decide/test_jsonl_lines.py)
    "no such lines": Case(
        lambda s: ["decide", "-m", s.model, "--jsonl", s.input / "none.jsonl", "-o", s.out / "o.jsonl"], "none.jsonl"
    ),
    "lines in a folder": Case(
        lambda s: ["decide", "-m", s.model, "--jsonl", s.input, "-o", s.out / "o.jsonl"], "Is a directory"
    ),
    "lines into a folder that is not there": Case(
        lambda s: ["decide", "-m", s.model, "--jsonl", s.file("i", "{}\n"), "-o", s.out / "none" / "o.jsonl"],
        "does not exist",
    ),
    "lines into a folder": Case(
        lambda s: ["decide", "-m", s.model, "--jsonl", s.file("i", "{}\n"), "-o", s.out],
        "cannot be replaced: it is a folder",
    ),
    "a gzip that is none": Case(
        lambda s: ["decide", "-q", "-m", s.model, "--jsonl", s.file("i.gz", b"\x1f\x8b\x08 no gzip"), *ASK], "i.gz"
    ),
}


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def scene(tmp_path: Path, gguf_for: Callable[..., Path]) -> Scene:
    made = Scene(tmp_path / "input", tmp_path / "out", gguf_for(), Path(__file__).parents[2] / "fixtures")
    made.input.mkdir()
    made.out.mkdir()
    return made


def check(case: Case, scene: Scene, command: Callable[..., Any]) -> None:
    arguments = case.arrange(scene)
    before, model = contents(scene.input), scene.model.read_bytes()
    done = command(*arguments)
    assert done.code == case.code, done.err
    assert done.out == ""
    (error,) = done.error_lines
    assert case.fragment in error
    assert len(error) < 1000
    assert all(line.startswith(("error: ", "hint: ", "note: ")) for line in done.err.splitlines())
    assert contents(scene.out) == {}
    assert contents(scene.input) == before
    assert scene.model.read_bytes() == model


@pytest.mark.parametrize("name", CASES)
def test_broken_input_ends_as_one_line_and_leaves_nothing_behind(name: str, scene: Scene, cli):
    check(CASES[name], scene, cli)


# The same in a process of its own, one case of each kind.
WHOLE = ["a tensor missing", "no local RoPE base", "a null state", "no such lines"]


@pytest.mark.parametrize("name", WHOLE)
def test_broken_input_in_a_process_of_its_own(name: str, scene: Scene, layactl):
    check(CASES[name], scene, layactl)
