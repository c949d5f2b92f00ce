"""gguf_file.llama_cpp_dialect: a file of stock llama.cpp answers as the laya file of the same checkpoint does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType as Kind
from gguf_edit import Value, array, edited, f32, read_tensor, read_values, text, u32
from make_llama_cpp_golden import CASES

import layactl
from layactl.convert.convert import convert
from layactl.core.tokenizer import METASPACE, Tokenizer
from layactl.core.tokenizer_probe import probe_texts
from layactl.errors import GgufError, ModelLoadError, UsageError
from layactl.gguf_file import names
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.inspection import inspect
from layactl.gguf_file.llama_cpp_names import bucket_name, checkpoint_bucket, systemone_template
from layactl.gguf_file.model_file import ModelFile
from layactl.gguf_file.reader import GgufFile

ENGLISH, MULTILINGUAL = "stock-english", "stock-multilingual"
FAMILIES = (ENGLISH, MULTILINGUAL)
LLAMA_CPP, LAYA = "llama.cpp", "laya"

QUESTIONS = {
    "refund": {"type": "noul", "instructions": "Does the customer ask for money back?"},
    "team": {
        "type": "choice",
        "instructions": "Which team?",
        "criteria": {"billing": "payments", "technical": None, "other": ["x", 1]},
    },
    "urgency": {"type": "score", "instructions": {"how": "urgent"}, "criteria": ["low", "medium", "high", "now"]},
    "many": {"type": "choice", "instructions": "Which?", "criteria": [f"option {n}" for n in range(12)]},
}
STATES = (
    "Billed twice this month, please refund me.",
    "cafe\u0301, \u1ec7\u0323 and \u00c5 \u212b: 1234567.89",
    {"subject": "<mask> [MASK]  two  spaces", "lines": ["\n\n", "\t", METASPACE * 3]},
    [{"role": "user", "text": "word " * 400}],
)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """(case name, dialect) -> its f32 GGUF, converted on first use. Not to be written to."""
    folder = tmp_path_factory.mktemp("dialects")

    def get(name: str, dialect: str = LLAMA_CPP) -> Path:
        path = folder / dialect / f"{name}.gguf"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            checkpoint = folder / name
            convert(
                checkpoint if checkpoint.exists() else CASES[name].write(folder), path, outtype="f32", dialect=dialect
            )
        return path

    return get


@pytest.fixture
def loaded(pair: Callable[..., Path], tmp_path: Path) -> Callable[..., ModelFile]:
    """Read an edited copy: loaded(ENGLISH, keys={...}, tensors={...})."""

    def load(family: str = ENGLISH, **changes: Any) -> ModelFile:
        return read_model(GgufFile(edited(pair(family), tmp_path / "edited.gguf", **changes)))

    return load


# -- the same answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_both_dialects_hold_the_same_tokenizer(family: str, pair: Callable[..., Path]):
    ours, laya = (read_model(GgufFile(pair(family, dialect))).tokenizer for dialect in (LLAMA_CPP, LAYA))
    assert ours == laya
    tokenizers = Tokenizer(ours), Tokenizer(laya)
    for probe in probe_texts(3000, [token.content for token in laya.added]):
        first, second = (tokenizer.encode(probe) for tokenizer in tokenizers)
        assert first == second, probe


@pytest.mark.parametrize("family", FAMILIES)
def test_both_dialects_give_the_same_answers_but_for_the_act_head(family: str, pair: Callable[..., Path]):
    laya = layactl.load(pair(family, LAYA))
    ours = layactl.load(pair(family), max_len=laya.limits.max_len)
    assert ours.limits == laya.limits
    for state in STATES:
        expected, found = (model.decide(state, QUESTIONS, debug=True) for model in (laya, ours))
        assert found["usage"] == expected["usage"]
        assert found["warnings"] == expected["warnings"]
        for question, answer in expected["answers"].items():
            # Bit for bit: the weights and every operation on them are the same.
            assert found["answers"][question]["debug"]["logits"] == answer["debug"]["logits"]
            assert answer.pop("action") and answer["debug"].pop("act_logits")
            assert found["answers"][question] == answer


def test_an_answer_says_where_its_temperatures_come_from(pair: Callable[..., Path]):
    response = layactl.load(pair(ENGLISH)).decide("x", QUESTIONS)
    assert response["runtime"]["calibration"] == "gguf:modern-bert.decision.temperature"


def test_a_head_without_layers_and_layers_of_two_digits(pair: Callable[..., Path]):
    for name in ("stock-headless", "stock-shards"):
        laya, ours = (layactl.load(pair(name, dialect)) for dialect in (LAYA, LLAMA_CPP))
        expected, found = (m.decide("x", {"q": QUESTIONS["team"]}, debug=True)["answers"]["q"] for m in (laya, ours))
        assert found["debug"]["logits"] == expected["debug"]["logits"]


# -- the sequence limit ----------------------------------------------------------------------------------------------


def test_without_max_len_the_context_length_is_used_and_said(pair: Callable[..., Path]):
    model = layactl.load(pair(MULTILINGUAL))
    assert model.limits.max_len == 512
    assert model.notes == ["the file stores no max_len; its context length is used, 512 (--max-len sets another)"]
    assert layactl.load(pair(MULTILINGUAL), max_len=100).notes == []


def test_max_len_cuts_the_sequence(pair: Callable[..., Path]):
    model = layactl.load(pair(ENGLISH), max_len=48)
    response = model.decide("word " * 100, {"q": QUESTIONS["refund"]})
    assert response["usage"]["questions"]["q"]["input_tokens"] == 48


@pytest.mark.parametrize("max_len", [-1, 0, 3, 513])
def test_an_impossible_max_len_is_refused(max_len: int, pair: Callable[..., Path]):
    with pytest.raises(UsageError, match=f"must be between 4 and 512, not {max_len}"):
        layactl.load(pair(ENGLISH), max_len=max_len)


def test_a_file_that_stores_its_limit_takes_no_other(pair: Callable[..., Path], tmp_path: Path):
    with pytest.raises(UsageError, match="the file stores a limit of its own, 192 tokens"):
        layactl.load(pair(ENGLISH, LAYA), max_len=192)
    early = edited(pair(ENGLISH, LAYA), tmp_path / "early.gguf", keys={names.MAX_LEN: None})
    assert layactl.load(early).limits.max_len == 1024
    assert layactl.load(early, max_len=77).limits.max_len == 77


def test_every_command_that_takes_a_model_takes_max_len(pair: Callable[..., Path], cli: Callable[..., Any]):
    ours, laya = pair(ENGLISH), pair(ENGLISH, LAYA)
    ask = ("state", "--ask", "noul: Urgent?")
    checkpoint = ours.parent.parent / ENGLISH
    for command in (("decide", *ask), ("tokenize", "text"), ("tokenizer", "verify", checkpoint, "--count", 50)):
        assert cli(*command, "-m", ours, "--max-len", 64).code == 0
        refused = cli(*command, "-m", laya, "--max-len", 64)
        assert (refused.code, refused.out) == (2, "")
        assert refused.error_lines == ["error: the file stores a limit of its own, 192 tokens (max_len)"]
    assert "note: the file stores no max_len" in cli("decide", *ask, "-m", ours).err


def test_a_run_is_not_resumed_with_another_max_len(pair: Callable[..., Path], cli: Callable[..., Any], tmp_path: Path):
    lines, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines.write_text('{"state": "a"}\n')
    run = ("decide", "-m", pair(ENGLISH), "--jsonl", lines, "-o", out, "--ask", "noul: Urgent?", "--max-len")
    assert cli(*run, 64).code == 0
    assert cli(*run, 64, "--resume").code == 0
    assert cli(*run, 65, "--resume").code == 2


# -- temperatures ----------------------------------------------------------------------------------------------------

BUCKETS = {
    "choice:2": "choice.2",
    "choice:3-5": "choice.3_5",
    "score:6-10": "score.6_10",
    "noul:11+": "noul.11",
}


@pytest.mark.parametrize("name", BUCKETS)
def test_bucket_names_go_both_ways(name: str):
    assert bucket_name(name) == BUCKETS[name]
    assert checkpoint_bucket(BUCKETS[name]) == name


def test_temperatures_and_buckets(loaded: Callable[..., ModelFile]):
    calibration = loaded().calibration
    assert calibration.temperature["choice"] == {"1-2": 1.21, "3-5": 1.76, "6-10": 2.2, "11+": 0.1006, "*": 1.31}
    assert calibration.temperature_for("choice", 30) == 0.5  # clamped where it is applied
    assert not loaded(MULTILINGUAL).calibration.calibrated


def test_an_absent_temperature_is_one(loaded: Callable[..., ModelFile]):
    keys = {f"{names.DECISION_TEMPERATURE}{kind}": None for kind in ("choice", "noul")}
    calibration = loaded(keys=keys).calibration
    assert calibration.temperature_for("choice", 4) == 1.76
    assert calibration.temperature["choice"]["*"] == calibration.temperature["noul"]["*"] == 1.0
    assert calibration.temperature["score"]["*"] == 0.93


def test_a_bucket_that_the_reference_never_looks_up_changes_nothing(loaded: Callable[..., ModelFile]):
    unknown = {f"{names.DECISION_TEMPERATURE}choice.4_9": f32(3.0), f"{names.DECISION_TEMPERATURE}choice.4": f32(3.0)}
    assert loaded(keys=unknown).calibration == loaded().calibration


def test_inspect_says_that_temperatures_are_raw(pair: Callable[..., Path]):
    report = inspect(GgufFile(pair(ENGLISH)))
    assert (report["dialect"], report["head"]["act_classes"], report["limits"]["max_len"]) == (LLAMA_CPP, 0, 512)
    assert report["calibration"]["stored"] == "raw"
    assert any("stock llama.cpp does not clamp" in warning for warning in report["warnings"])
    assert any("stores no max_len" in warning for warning in report["warnings"])
    assert not any("stock" in warning for warning in inspect(GgufFile(pair(ENGLISH, LAYA)))["warnings"])


def test_a_stamped_spec_is_in_force(pair: Callable[..., Path], tmp_path: Path):
    spec = '{"spec_version": 1, "layout": "laya", "model_id": "mine", "calibration": {"method": "none"}}'
    stamped = edited(pair(ENGLISH), tmp_path / "stamped.gguf", keys={names.DECISION_SPEC: text(spec)})
    assert layactl.load(stamped).spec.source == "gguf"


# -- the vocabulary --------------------------------------------------------------------------------------------------


def test_runs_of_u2581_are_added_tokens_although_the_file_calls_them_normal(loaded: Callable[..., ModelFile]):
    model = loaded(MULTILINGUAL)
    types = dict(enumerate(model.file.integers(names.TOKEN_TYPES)))
    runs = [token for token in model.tokenizer.added if not token.content.strip(METASPACE)]
    assert [len(token.content) for token in runs] == list(range(2, 9))
    assert {types[token.id] for token in runs} == {names.TYPE_NORMAL}
    assert Tokenizer(model.tokenizer).encode(f"a{METASPACE * 3}b")[1:-1] == [runs[1].id]
    # The one that begins words is a piece like any other.
    assert METASPACE in model.tokenizer.pieces and METASPACE not in {token.content for token in model.tokenizer.added}


def test_spaces_in_a_user_defined_token_stand_for_u2581(loaded: Callable[..., ModelFile], pair: Callable[..., Path]):
    """As converters before b11434 spelled the runs, and every converter a mixed token."""
    values = read_values(pair(MULTILINGUAL))
    tokens, types = list(values[names.TOKENS].value), list(values[names.TOKEN_TYPES].value)
    for token_id, token in enumerate(tokens):
        if len(token) > 1 and not token.strip(METASPACE):
            tokens[token_id], types[token_id] = " " * len(token), names.TYPE_USER_DEFINED
    spelled = {names.TOKENS: array(tokens, Kind.STRING), names.TOKEN_TYPES: array(types, Kind.INT32)}
    assert loaded(MULTILINGUAL, keys=spelled).tokenizer == loaded(MULTILINGUAL).tokenizer


def test_the_flags_of_a_bytelevel_vocabulary_follow_from_the_types(loaded: Callable[..., ModelFile]):
    tokenizer = loaded(ENGLISH).tokenizer
    assert tokenizer.normalizer == "nfc"
    for token in tokenizer.added:
        assert token.normalized == (not token.control)
        assert token.lstrip == (token.content == "[MASK]")
    assert loaded(MULTILINGUAL).tokenizer.normalizer == "none"
    assert not any(token.normalized or token.lstrip for token in loaded(MULTILINGUAL).tokenizer.added)


# -- what may be absent, and what is refused -------------------------------------------------------------------------


def test_an_absent_pattern_is_one_global_layer_in_three(loaded: Callable[..., ModelFile]):
    absent = {names.llama_cpp_key(names.SLIDING_WINDOW_PATTERN): None}
    assert loaded(keys=absent).shape == loaded().shape


def test_keys_that_layactl_does_not_read_may_be_absent(loaded: Callable[..., ModelFile]):
    unread = (
        names.CHAT_TEMPLATES,
        names.SYSTEMONE_TEMPLATE,
        names.TOKEN_TYPE_COUNT,
        names.CLASSIFIER_POOLING,
        names.ADD_BOS,
        names.llama_cpp_key(names.LAYER_NORM_EPS),
    )
    assert loaded(keys=dict.fromkeys(unread)).tokenizer == loaded().tokenizer


def test_dimensions_of_1_may_come_and_go(loaded: Callable[..., ModelFile], pair: Callable[..., Path]):
    flat = read_tensor(pair(ENGLISH), "cls.output.weight").reshape(-1)
    assert loaded(tensors={"cls.output.weight": flat}).weights["scorer.3.weight"].shape == (128,)


@dataclass(frozen=True)
class Bad:
    """An edit that makes a file unusable, and a part of the message it must give."""

    fragment: str
    keys: Mapping[str, Value | None] = field(default_factory=dict)
    tensors: Mapping[str, np.ndarray | None] = field(default_factory=dict)


def _key(name: str) -> str:
    return names.llama_cpp_key(name)


WIDTHS = _key(names.FEED_FORWARD_LENGTH)
BAD = {
    **{
        f"without {key}": Bad(f"{key}: key is missing", {key: None})
        for key in (
            *map(_key, (names.BLOCK_COUNT, names.CONTEXT_LENGTH, names.EMBEDDING_LENGTH, names.FEED_FORWARD_LENGTH)),
            *map(_key, (names.HEAD_COUNT, names.VOCAB_SIZE, names.NORM_EPS, names.SLIDING_WINDOW)),
            *map(_key, (names.ROPE_FREQ_BASE, names.ROPE_FREQ_BASE_SWA)),
            names.DECISION_BLOCK_COUNT,
            names.DECISION_HEAD_TOKENS,
            names.TOKENIZER_PRE,
            names.TOKENS,
            names.MERGES,
            names.BOS_TOKEN_ID,
            names.SEP_TOKEN_ID,
            names.MASK_TOKEN_ID,
        )
    },
    "no encoder blocks": Bad("7 of 7 blocks leave no encoder", {names.DECISION_BLOCK_COUNT: u32(7)}),
    "more blocks than widths": Bad("holds 7 widths, not 8", {_key(names.BLOCK_COUNT): u32(8)}),
    "one width for all": Bad("is not an array of integers", {WIDTHS: u32(96)}),
    "an uneven encoder": Bad("is not one width", {WIDTHS: array([96, 96, 96, 96, 97, 512, 512], Kind.INT32)}),
    "a narrow head": Bad("is not one width", {WIDTHS: array([96, 96, 96, 96, 96, 512, 256], Kind.INT32)}),
    "another number of heads": Bad("is 4, which this dialect gives the head's", {_key(names.HEAD_COUNT): u32(4)}),
    "SwiGLU": Bad("is 'silu'; only \"gelu\" is known", {_key(names.HIDDEN_ACTIVATION): text("silu")}),
    "scaled RoPE": Bad("is 'yarn'; only \"none\" is known", {_key(names.ROPE_SCALING_TYPE): text("yarn")}),
    "another tokenizer": Bad("is 'gpt-2'; only modern-bert and mmbert are", {names.TOKENIZER_PRE: text("gpt-2")}),
    "a NaN temperature": Bad("temperature nan is not", {f"{names.DECISION_TEMPERATURE}score": f32(math.nan)}),
    "a temperature as text": Bad("is not a float", {f"{names.DECISION_TEMPERATURE}noul.2": text("1.0")}),
    "an act head": Bad("tensor has no place in this model", {}, {"act_head.0.bias": np.zeros(256, np.float32)}),
    "no scorer": Bad("cls.output.bias: tensor is missing", {}, {"cls.output.bias": None}),
    "two type embeddings": Bad("not (3, 128)", {}, {"token_types.weight": np.zeros((2, 128), np.float32)}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_used_says_why(name: str, loaded: Callable[..., ModelFile], tmp_path: Path):
    case = BAD[name]
    with pytest.raises(GgufError) as error:
        loaded(keys=case.keys, tensors=case.tensors)
    assert case.fragment in error.value.message
    assert error.value.where == str(tmp_path / "edited.gguf")


def test_another_prompt_is_another_model(loaded: Callable[..., ModelFile]):
    """A Julia checkpoint converts to the same keys and tensors; only its options are put into words differently."""
    laya = systemone_template("[CLS]", "[SEP]", "[MASK]")
    start, end = laya.index("{% if type =="), laya.index("{% endfor %}")
    julia = laya[:start] + "{% if o.description %}{{ o.description }}{% else %}{{ o.key }}{% endif %}" + laya[end:]
    with pytest.raises(ModelLoadError, match="in another prompt than Laya's"):
        loaded(keys={names.SYSTEMONE_TEMPLATE: text(julia)})
