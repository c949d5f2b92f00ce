"""convert --dialect llama.cpp and gguf convert-dialect, against what stock llama.cpp's converter writes.

The golden descriptions are those of the stock converter (fixtures/make_llama_cpp_golden.py); with LAYACTL_LLAMA_CPP
naming a source tree, the converter itself is run and its files are compared byte for byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
from checkpoint_edit import ENCODER, TOKENIZER, TOKENIZER_CONFIG, edit_json, set_fields
from checkpoint_factory import TINY_ENGLISH, write_checkpoint
from gguf_edit import Value, array, edited, read_values, text, u32
from make_llama_cpp_golden import CASES, convert_with_stock, describe, read_golden

from layactl.convert.convert import convert
from layactl.convert.convert_dialect import convert_dialect
from layactl.convert.quantize import quantize
from layactl.core.tokenizer import METASPACE
from layactl.errors import CheckpointError, GgufError, OutputError
from layactl.gguf_file import names
from layactl.gguf_file.comparison import first_difference
from layactl.gguf_file.dialect import read_model
from layactl.gguf_file.reader import GgufFile

TREE = os.environ.get("LAYACTL_LLAMA_CPP")
EVERY_FILE = [(name, outtype) for name, case in CASES.items() for outtype in case.outtypes]
DECISION = "modern-bert.decision."

# Where the stock converter's file is not written, key by key: (what stock writes, what stands in ours, why).
DIFFERENCES: dict[str, dict[str, tuple[str | None, str | None, str]]] = {
    "stock-sparse-config": {
        "modern-bert.attention.layer_norm_epsilon": (
            "FLOAT32 1.9999999494757503e-05",
            "FLOAT32 9.999999747378752e-06",
            "stock copies layer_norm_eps, which its engine then uses; the reference uses norm_eps",
        ),
        "modern-bert.classifier.pooling_type": (
            "UINT32 2",
            None,
            "no decision reads it: where the config names none, stock writes the default of its transformers version",
        ),
        "modern-bert.attention.sliding_window_pattern": (
            None,
            "UINT32 3",
            "stock leaves the pattern out of a config that only lists layer_types, and then assumes 3",
        ),
        f"{DECISION}max_head_tokens": ("UINT32 256", "UINT32 192", "the reference's default is 192"),
        f"{DECISION}temperature.choice": (None, "FLOAT32 1.0", "the reference's default, spelled out"),
        f"{DECISION}temperature.score": (None, "FLOAT32 1.0", "the reference's default, spelled out"),
        f"{DECISION}temperature.noul": (None, "FLOAT32 1.0", "the reference's default, spelled out"),
    },
    "stock-stripped-runs": {
        "tokenizer.ggml.tokens": (
            "ARRAY STRING of 1280, 0590d6a5494b7ab45fefe4f3de0b7be5",
            "ARRAY STRING of 1280, c923b04c9e7c56ea2ac3a5c2718ed08d",
            "stock spells an added token as the decoder gives it back; one that strips a leading space makes every run "
            "of U+2581 one too short, so that two ids share a piece and a merge has none",
        )
    },
}


@pytest.fixture(scope="session")
def stock_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """case name -> its checkpoint, written on first use. Not to be written to."""
    folder = tmp_path_factory.mktemp("stock")
    written: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in written:
            written[name] = CASES[name].write(folder)
        return written[name]

    return get


@pytest.fixture(scope="session")
def ours(stock_case: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """(case name, outtype, dialect) -> its GGUF, converted on first use. Not to be written to."""
    folder = tmp_path_factory.mktemp("ours")

    def get(name: str, outtype: str = "f32", dialect: str = "llama.cpp") -> Path:
        path = folder / f"{name}-{outtype}-{dialect}.gguf"
        if not path.exists():
            convert(stock_case(name), path, outtype=outtype, dialect=dialect)
        return path

    return get


# -- the stock converter's file --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "outtype"), EVERY_FILE)
def test_the_file_is_the_stock_converters(name: str, outtype: str, ours: Callable[..., Path]):
    golden, written = read_golden()[name][outtype], describe(ours(name, outtype))
    assert written["tensors"] == golden["tensors"]
    assert list(written["tensors"]) == list(golden["tensors"])
    found = {
        key: (golden["keys"].get(key), written["keys"].get(key))
        for key in {**golden["keys"], **written["keys"]}
        if golden["keys"].get(key) != written["keys"].get(key)
    }
    assert found == {key: expected[:2] for key, expected in DIFFERENCES.get(name, {}).items()}
    shared = [key for key in golden["keys"] if key in written["keys"]]
    assert [key for key in written["keys"] if key in golden["keys"]] == shared
    assert (written["sha256"] == golden["sha256"]) == (name not in DIFFERENCES)


def test_every_difference_has_its_reason():
    assert set(DIFFERENCES) < set(CASES)
    assert all(reason for keys in DIFFERENCES.values() for _, _, reason in keys.values())


def test_the_runs_that_stock_spells_too_short(ours: Callable[..., Path]):
    """The one difference that a digest hides: stock's tokens are ours, with each added run one U+2581 shorter."""
    path = ours("stock-stripped-runs", "f16")
    tokens = read_values(path)[names.TOKENS].value
    runs = {token for token in tokens if len(token) > 1 and not token.strip(METASPACE)}
    assert len(runs) == 7
    shortened = array([token[1:] if token in runs else token for token in tokens], gguf.GGUFValueType.STRING)
    other = edited(path, path.with_name("shortened.gguf"), keys={names.TOKENS: shortened})
    golden = read_golden()["stock-stripped-runs"]["f16"]
    assert describe(other)["keys"][names.TOKENS] == golden["keys"][names.TOKENS]


@pytest.mark.skipif(TREE is None, reason="LAYACTL_LLAMA_CPP names no llama.cpp source tree")
@pytest.mark.parametrize(("name", "outtype"), EVERY_FILE)
def test_the_stock_converter_itself_writes_the_same(
    name: str, outtype: str, ours: Callable[..., Path], stock_case: Callable[[str], Path], tmp_path: Path
):
    assert TREE is not None
    out = tmp_path / "stock.gguf"
    convert_with_stock(Path(TREE), CASES[name], stock_case(name), out, outtype)
    assert describe(out) == read_golden()[name][outtype]
    difference = first_difference(GgufFile(ours(name, outtype)), GgufFile(out))
    assert (difference is None) == (name not in DIFFERENCES), difference


# -- what cannot be written ------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A checkpoint to break: width 64, so that the decision head has one attention head."""
    root = tmp_path / "checkpoint"
    write_checkpoint(replace(TINY_ENGLISH, heads=1, layers=2), root)
    return root


def added_flag(content: str, **flags: bool) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        def change(tokenizer: dict[str, Any]) -> None:
            next(token for token in tokenizer["added_tokens"] if token["content"] == content).update(flags)

        edit_json(root / TOKENIZER, change)
        set_fields(root / TOKENIZER_CONFIG, added_tokens_decoder=None)

    return edit


FLAGS = "has added tokens or a normalizer that the llama.cpp dialect"
UNWRITABLE: dict[str, tuple[Callable[[Path], None], str]] = {
    "more heads in the encoder": (
        lambda root: set_fields(root / ENCODER, num_attention_heads=2),
        "has 2 attention heads in the encoder and 1 in the decision head",
    ),
    "a normalized control token": (added_flag("[PAD]", normalized=True), FLAGS),
    "lstrip on another token": (added_flag("[SEP]", lstrip=True), FLAGS),
    "a mask without lstrip": (added_flag("[MASK]", lstrip=False), FLAGS),
    "a user-defined token on raw text": (added_flag("[unused3]", normalized=False), FLAGS),
    "no NFC": (lambda root: set_fields(root / TOKENIZER, normalizer=None), FLAGS),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_model_without_a_place_in_the_dialect_is_refused_and_leaves_nothing(name: str, small: Path, tmp_path: Path):
    edit, message = UNWRITABLE[name]
    edit(small)
    out = tmp_path / "out.gguf"
    with pytest.raises(CheckpointError, match=message) as error:
        convert(small, out, dialect="llama.cpp")
    assert error.value.hint == "--dialect laya holds the model"
    assert list(tmp_path.iterdir()) == [small]
    convert(small, out)
    with pytest.raises(GgufError, match=message):
        convert_dialect(out, tmp_path / "again.gguf")
    assert not (tmp_path / "again.gguf").exists()


def test_an_embedded_tokenizer_has_no_place(small: Path, tmp_path: Path):
    laya = tmp_path / "embedded.gguf"
    with pytest.raises(CheckpointError, match=r"carries its tokenizer\.json whole"):
        convert(small, tmp_path / "out.gguf", dialect="llama.cpp", embed_tokenizer=True)
    convert(small, laya, embed_tokenizer=True)
    with pytest.raises(GgufError, match=r"carries its tokenizer\.json whole"):
        convert_dialect(laya, tmp_path / "out.gguf")


def test_a_conversion_says_what_is_lost_and_what_stock_will_do(stock_case: Callable[[str], Path], tmp_path: Path):
    notes = convert(stock_case("stock-headless"), tmp_path / "out.gguf", dialect="llama.cpp").notes()
    assert notes[-4].startswith("not in the file: the act head")
    assert "--max-len 192" in notes[-4]
    assert "applies them as they are" in notes[-3]
    assert notes[-3].endswith("clamps to [0.5, 5]: choice.11 0.1006")
    assert "without head layers" in notes[-2]
    calm = convert(stock_case("stock-multilingual"), tmp_path / "calm.gguf", dialect="llama.cpp").notes()
    assert [note for note in calm if "stock" in note] == []


# -- from a file of the laya dialect ---------------------------------------------------------------------------------

# What a laya file holds of them: the f16 of a bf16 checkpoint has rounded the type embeddings, which stay f32 here.
TRANSLATED = [
    ("stock-multilingual", "f32"),
    ("stock-multilingual", "f16"),
    ("stock-english", "f32"),
    ("stock-headless", "f32"),
    ("stock-sparse-config", "f16"),
    ("stock-stripped-runs", "f16"),
]


@pytest.mark.parametrize(("name", "outtype"), TRANSLATED)
def test_a_laya_file_becomes_the_file_a_conversion_writes(
    name: str, outtype: str, ours: Callable[..., Path], tmp_path: Path
):
    out = tmp_path / "out.gguf"
    notes = convert_dialect(ours(name, outtype, "laya"), out)
    assert "the act head" in notes[0] and "--max-len" in notes[0]
    # The one key with no place in a laya file, and of no use to a decision.
    expected = edited(ours(name, outtype), tmp_path / "expected.gguf", keys={names.CLASSIFIER_POOLING: None})
    assert first_difference(GgufFile(out), GgufFile(expected)) is None


@pytest.mark.parametrize("recipe", ["q8_0-mixed", "q8_0"])
def test_the_weights_of_a_quantized_file_keep_their_types(recipe: str, ours: Callable[..., Path], tmp_path: Path):
    laya, out = tmp_path / "laya.gguf", tmp_path / "out.gguf"
    quantize(ours("stock-english", "f32", "laya"), laya, recipe)
    convert_dialect(laya, out)
    source, written = GgufFile(laya), GgufFile(out)
    assert written.tensors["token_types.weight"].type_name == "F32"
    assert written.tensors["cls.weight"].type_name == source.tensors["scorer.1.weight"].type_name
    assert written.text(names.RECIPE) == recipe
    before, after = read_model(source).weights, read_model(written).weights
    for name in ("type_emb.weight", "scorer.1.weight", "head.layers.1.linear2.weight"):
        assert (before[name] == after[name]).all()


def test_general_keys_of_every_type_and_a_spec_are_carried(ours: Callable[..., Path], tmp_path: Path):
    more = {
        "general.author": text("somebody"),
        "general.tags": array(["a", "b"], gguf.GGUFValueType.STRING),
        "general.size_label": text("7B"),
        "general.sampling.top_k": Value(40, gguf.GGUFValueType.INT32),
        names.DECISION_SPEC: text("{}"),
        names.SPEC_VERSION: u32(1),
    }
    laya = edited(ours("stock-english", "f32", "laya"), tmp_path / "laya.gguf", keys=more)
    convert_dialect(laya, tmp_path / "out.gguf")
    values = read_values(tmp_path / "out.gguf")
    assert {key: values[key] for key in more} == more


def test_there_is_no_way_back(ours: Callable[..., Path], tmp_path: Path):
    with pytest.raises(GgufError, match="holds neither the act head nor the max_len") as error:
        convert_dialect(ours("stock-english"), tmp_path / "out.gguf")
    assert "layactl convert CHECKPOINT" in str(error.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_the_input_is_never_the_output(ours: Callable[..., Path], tmp_path: Path):
    laya = tmp_path / "laya.gguf"
    laya.write_bytes(ours("stock-english", "f32", "laya").read_bytes())
    with pytest.raises(OutputError, match="is the input itself"):
        convert_dialect(laya, laya)


# -- the commands ----------------------------------------------------------------------------------------------------


def test_the_commands(stock_case: Callable[[str], Path], cli: Callable[..., Any], tmp_path: Path):
    direct, laya, translated = (tmp_path / f"{name}.gguf" for name in ("direct", "laya", "translated"))
    root = stock_case("stock-multilingual")
    written = cli("convert", root, "-o", direct, "--dialect", "llama.cpp", "--outtype", "f32")
    assert (written.code, written.out) == (0, f"{direct}\n")
    assert "note: not in the file: the act head" in written.err
    assert cli("convert", root, "-o", laya, "--outtype", "f32", "-q").code == 0
    done = cli("gguf", "convert-dialect", laya, "-o", translated)
    assert (done.code, done.out) == (0, f"{translated}\n")
    assert "--max-len 256" in done.err
    assert cli("gguf", "convert-dialect", laya, "-o", translated, "-q").err == ""
    back = cli("gguf", "convert-dialect", direct, "-o", laya)
    assert back.code == 1
    assert len(back.error_lines) == 1
    kept = cli("convert", root, "--dialect", "llama.cpp")
    assert (kept.code, kept.out) == (2, "")
