"""convert.convert: the same bytes every time, whole or not at all, and nothing lost without a word."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
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
    restored,
    split_weights,
)

import layactl as package
from layactl.convert import convert as convert_module
from layactl.convert.convert import convert
from layactl.core.tokenizer import from_huggingface_json
from layactl.core.tokenizer_probe import probe_texts
from layactl.errors import CheckpointError, LayactlError, OutputError
from layactl.gguf_file import names
from layactl.gguf_file.reader import GgufFile

pytestmark = pytest.mark.usefixtures("fewer_probe_texts")
OUTTYPES = ["f32", "f16", "bf16", "q8_0"]


# -- the same bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outtype", ["f32", "q8_0"])
def test_the_same_folder_gives_the_same_bytes_wherever_it_lies(
    outtype: str, family: str, checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = checkpoint(family)
    moved = Path(shutil.copytree(root, tmp_path / "elsewhere" / family))
    results = [convert(folder, tmp_path / f"{n}.gguf", outtype=outtype) for n, folder in enumerate((root, root, moved))]
    monkeypatch.chdir(moved)
    results.append(convert(Path(), tmp_path / "3.gguf", outtype=outtype))
    assert len({result.path.read_bytes() for result in results}) == 1
    assert len({result.source_sha256 for result in results}) == 1


def test_bytes_do_not_depend_on_hash_seed_or_locale(checkpoint: Callable[..., Path], tmp_path: Path):
    root = checkpoint("tiny-multilingual")
    here = convert(root, tmp_path / "here.gguf").path.read_bytes()
    code = "import sys, pathlib, layactl.convert.convert as c; c.convert(*map(pathlib.Path, sys.argv[1:]))"
    env = os.environ | {"PYTHONHASHSEED": "7", "LC_ALL": "C", "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", code, str(root), str(tmp_path / "there.gguf")], env=env, check=True)
    assert (tmp_path / "there.gguf").read_bytes() == here


def test_an_earlier_output_is_replaced_by_the_same_bytes(checkpoint: Callable[..., Path], tmp_path: Path):
    root = checkpoint()
    first = convert(root, tmp_path / "x.gguf", outtype="f32").path.read_bytes()
    convert(root, tmp_path / "x.gguf", outtype="f16")
    assert convert(root, tmp_path / "x.gguf", outtype="f32").path.read_bytes() == first
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["x.gguf"]


# -- what the file holds ---------------------------------------------------------------------------------------------

# The order of the fork's converter (gguf-dialects, "Write order").
WRITE_ORDER = [
    names.BLOCK_COUNT,
    names.CONTEXT_LENGTH,
    names.EMBEDDING_LENGTH,
    names.FEED_FORWARD_LENGTH,
    names.HEAD_COUNT,
    names.CAUSAL,
    names.ROPE_FREQ_BASE,
    names.ROPE_FREQ_BASE_SWA,
    names.NORM_EPS,
    names.LAYER_NORM_EPS,
    names.FILE_TYPE,
    names.SLIDING_WINDOW,
    names.SLIDING_WINDOW_PATTERN,
    names.ROPE_SCALING_TYPE,
    names.VOCAB_SIZE,
    names.HIDDEN_ACTIVATION,
    names.HEAD_LAYERS,
    names.N_QTYPE,
    names.MAX_LEN,
    names.HEAD_MAX_LEN,
    names.TEMPERATURE,
    names.ACT_CLASSES,
    names.TEMPERATURE_BUCKETS,
    names.TEMPERATURE_VALUES,
]


def test_keys_are_in_the_forks_order(family: str, gguf_for: Callable[..., Path]):
    keys = list(GgufFile(gguf_for(family)).keys)
    calibrated = family == "tiny-english"
    wanted = [key for key in WRITE_ORDER if calibrated or not key.startswith(names.TEMPERATURE + "_by")]
    assert [key for key in keys if key in WRITE_ORDER] == wanted
    assert keys[0] == names.ARCHITECTURE
    assert names.SOURCE_SHA256 in keys
    # Both are of the bytelevel family alone.
    assert (names.LAYA_NORMALIZER in keys) == (names.LAYA_ADDED_TOKENS in keys) == calibrated


@pytest.mark.parametrize("outtype", OUTTYPES)
def test_the_type_of_every_tensor(outtype: str, family: str, gguf_for: Callable[..., Path]):
    for name, tensor in GgufFile(gguf_for(family, outtype)).tensors.items():
        wide = len(tensor.shape) == 1 or name.endswith("_norm.weight") or not name.endswith(".weight")
        # Rows that do not fill blocks of 32 (the act head's d + 4) stay F16.
        blocks = outtype != "q8_0" or tensor.shape[-1] % 32 == 0
        expected = "F32" if wide else outtype.upper() if blocks else "F16"
        assert tensor.type_name == expected, name


def test_progress_ends_at_the_bytes_of_all_tensors(checkpoint: Callable[..., Path], tmp_path: Path):
    steps: list[tuple[int, int]] = []
    convert(checkpoint(), tmp_path / "x.gguf", progress=lambda done, total: steps.append((done, total)))
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    total = sum(tensor.nbytes for tensor in GgufFile(tmp_path / "x.gguf").tensors.values())
    assert steps[-1] == (total, total)


def test_tokens_and_types_are_as_gguf_spells_them(family: str, gguf_for: Callable[..., Path]):
    file = GgufFile(gguf_for(family))
    tokens, types = file.texts(names.TOKENS), file.integers(names.TOKEN_TYPES)
    assert len(tokens) == len(types) == file.integer(names.VOCAB_SIZE)
    assert len(set(tokens)) == len(tokens)
    for n, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        assert (kind == names.TYPE_UNUSED) == (token == f"[PAD{n}]")
    special = {file.integer(key) for key in (names.BOS_TOKEN_ID, names.SEP_TOKEN_ID, names.MASK_TOKEN_ID)}
    assert {types[n] for n in special} == {names.TYPE_CONTROL}
    assert file.integer(names.EOS_TOKEN_ID) == file.integer(names.SEP_TOKEN_ID)
    assert file.integer(names.MARKER_TOKEN_ID) == file.integer(names.MASK_TOKEN_ID)


# -- metadata --------------------------------------------------------------------------------------------------------

CARDS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("", {}),
    "no front matter": ("# Title\n", {}),
    "licence and languages": (
        "---\nlicense: mit\nlanguage: [en, de]\n---\n",
        {"general.license": "mit", "general.languages": ["en", "de"]},
    ),
    "one language": ("---\nlanguage: en\n---\n", {"general.languages": ["en"]}),
    "tags": ("---\ntags:\n- a\n- 3\n---\n", {"general.tags": ["a", "3"]}),
    "values of other types": ("---\nlicense: {a: 1}\nlanguage: {en: 1}\ntags: 3\n---\n", {}),
    "dates and nulls": ("---\nlicense: 2024-01-01\nlanguage: null\ntags: [null, true]\n---\n", {}),
    "numbers as keys": ("---\n1: x\ntrue: y\n---\n", {}),
    "a list": ("---\n- a\n- b\n---\n", {}),
    "text": ("---\njust text\n---\n", {}),
    "unclosed": ("---\nlicense: mit\n", {}),
    "base model": ("---\nbase_model: org/some-model\n---\n", {"general.base_model.0.name": "Some Model"}),
    "a strange base model": ('---\nbase_model: ["", a/b/c/d, "https://x/y"]\n---\n', {}),
    "a model name": ("---\nmodel_name: Some Name\n---\n", {"general.name": "Some Name"}),
}


@pytest.mark.parametrize("name", CARDS)
def test_general_keys_come_from_the_front_matter_and_the_folder(
    name: str, checkpoint: Callable[..., Path], tmp_path: Path
):
    root = checkpoint()
    card, expected = CARDS[name]
    (root / "README.md").write_text(card)
    convert(root, tmp_path / "x.gguf")
    fields = gguf.GGUFReader(tmp_path / "x.gguf").fields
    assert fields["general.size_label"].contents() == "309K"
    if "general.name" not in expected:
        assert fields["general.name"].contents() == "Tiny English"
    for key, value in expected.items():
        assert fields[key].contents() == value


def test_no_readme_is_no_metadata_and_the_folder_names_the_model(checkpoint: Callable[..., Path], tmp_path: Path):
    root = checkpoint()
    (root / "README.md").unlink()
    convert(root, tmp_path / "x.gguf")
    assert GgufFile(tmp_path / "x.gguf").text("general.name") == "Tiny English"


def test_a_given_name_beats_readme_and_folder(checkpoint: Callable[..., Path], tmp_path: Path):
    root = checkpoint()
    (root / "README.md").write_text("---\nmodel_name: Other\n---\n")
    convert(root, tmp_path / "x.gguf", model_name="Caf\u00e9")
    assert GgufFile(tmp_path / "x.gguf").text("general.name") == "Caf\u00e9"


BROKEN_CARDS = {
    "no YAML": b"---\na: [\n---\n",
    "an alias bomb's start": b"---\na: *b\n---\n",
    "a tag": b"---\na: !!python/object/apply:os.system ['true']\n---\n",
    "not UTF-8": b"---\nlicense: \xff\n---\n",
    "deep": b"---\na: " + b"[" * 3000 + b"]" * 3000 + b"\n---\n",
}


@pytest.mark.parametrize("name", BROKEN_CARDS)
def test_front_matter_that_cannot_be_read_is_named(name: str, checkpoint: Callable[..., Path], tmp_path: Path):
    root = checkpoint()
    (root / "README.md").write_bytes(BROKEN_CARDS[name])
    with pytest.raises(CheckpointError, match=r"README\.md") as error:
        convert(root, tmp_path / "x.gguf")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "x.gguf").exists()


# -- whole or not at all ---------------------------------------------------------------------------------------------


class Stop(Exception):
    pass


def fail_at(share: float, error: BaseException) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done >= total * share:
            raise error

    return progress


FAILURES: dict[str, tuple[BaseException, float]] = {
    "Ctrl-C at the start": (KeyboardInterrupt(), 0.0),
    "Ctrl-C in the middle": (KeyboardInterrupt(), 0.5),
    "Ctrl-C at the last byte": (KeyboardInterrupt(), 1.0),
    "an exception": (Stop(), 0.5),
    "exit": (SystemExit(3), 0.5),
}


@pytest.mark.parametrize("earlier", [None, b"earlier"], ids=["new", "replacing"])
@pytest.mark.parametrize("name", FAILURES)
def test_a_conversion_that_ends_early_changes_nothing(
    name: str, earlier: bytes | None, checkpoint: Callable[..., Path], tmp_path: Path
):
    root, folder = checkpoint(), tmp_path / "out"
    folder.mkdir()
    if earlier is not None:
        (folder / "x.gguf").write_bytes(earlier)
    error, share = FAILURES[name]
    with pytest.raises(type(error)):
        convert(root, folder / "x.gguf", progress=fail_at(share, error))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == ({"x.gguf": earlier} if earlier else {})


FULL_DISK = """
import resource, sys
from pathlib import Path
from layactl.convert.convert import convert
from layactl.errors import OutputError
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    convert(Path(sys.argv[1]), Path(sys.argv[2]), outtype="f32")
except OutputError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
@pytest.mark.parametrize("limit", [0, 50_000, 1_000_000])
def test_a_full_disk_changes_nothing_and_is_named(limit: int, checkpoint: Callable[..., Path], tmp_path: Path):
    root, folder = checkpoint(), tmp_path / "out"
    folder.mkdir()
    (folder / "x.gguf").write_bytes(b"earlier")
    run = [sys.executable, "-c", FULL_DISK, str(root), str(folder / "x.gguf"), str(limit)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"cannot be written: File too large ({folder / 'x.gguf'})\n", done.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"x.gguf": b"earlier"}


@pytest.mark.skipif(os.geteuid() == 0 if hasattr(os, "geteuid") else True, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_named(checkpoint: Callable[..., Path], tmp_path: Path):
    folder = tmp_path / "out"
    folder.mkdir(mode=0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        convert(checkpoint(), folder / "x.gguf")


# -- outputs that are refused ----------------------------------------------------------------------------------------


def make_folder(path: Path, root: Path) -> Path:
    path.mkdir()
    return path


def make_link(path: Path, root: Path) -> Path:
    (path.parent / "target").write_bytes(b"target")
    path.symlink_to(path.parent / "target")
    return path


def make_dangling_link(path: Path, root: Path) -> Path:
    path.symlink_to(path.parent / "nowhere")
    return path


def make_pipe(path: Path, root: Path) -> Path:
    os.mkfifo(path)
    return path


def hard_link(path: Path, root: Path) -> Path:
    os.link(root / WEIGHTS, path)
    return path


def below_a_file(path: Path, root: Path) -> Path:
    path.write_bytes(b"x")
    return path / "y.gguf"


def own(name: str) -> Callable[[Path, Path], Path]:
    return lambda path, root: root / name


OUTPUTS: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "a folder": (make_folder, "is a folder"),
    "a symbolic link": (make_link, "not a regular file"),
    "a dangling link": (make_dangling_link, "not a regular file"),
    "a pipe": (make_pipe, "not a regular file"),
    "a folder that is not there": (lambda path, root: path.parent / "none" / "x.gguf", "folder does not exist"),
    "a path below a file": (below_a_file, ""),
    "its own weights": (own(WEIGHTS), "one of the checkpoint's own files"),
    "its own weights by another name": (hard_link, "one of the checkpoint's own files"),
    "its own config": (own(AGENT), "one of the checkpoint's own files"),
    "its own encoder config": (own(ENCODER), "one of the checkpoint's own files"),
    "its own tokenizer": (own(TOKENIZER), "one of the checkpoint's own files"),
    "its own tokenizer config": (own(TOKENIZER_CONFIG), "one of the checkpoint's own files"),
    "its own README": (own("README.md"), "one of the checkpoint's own files"),
    "the checkpoint itself": (lambda path, root: root, "is a folder"),
}


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_would_destroy_something_is_refused(name: str, checkpoint: Callable[..., Path], tmp_path: Path):
    root = checkpoint()
    make, fragment = OUTPUTS[name]
    out = make(tmp_path / "x.gguf", root)
    before = snapshot(tmp_path)
    with pytest.raises(OutputError) as error:
        convert(root, out)
    assert fragment in error.value.message
    assert error.value.where == str(out)
    assert snapshot(tmp_path) == before


def test_an_index_and_every_shard_are_own_files(checkpoint: Callable[..., Path], tmp_path: Path):
    root = checkpoint()
    shards = split_weights(root, 2)
    before = snapshot(tmp_path)
    for path in (root / INDEX, *shards):
        with pytest.raises(OutputError, match="own files"):
            convert(root, path)
    assert snapshot(tmp_path) == before


def test_an_output_inside_the_checkpoint_folder_may_be_written_twice(checkpoint: Callable[..., Path]):
    root = checkpoint()
    first = convert(root, root / "laya.gguf").path.read_bytes()
    assert convert(root, root / "laya.gguf").path.read_bytes() == first


# -- what a type cannot hold -----------------------------------------------------------------------------------------

MATRIX, VECTOR = "scorer.1.weight", "scorer.1.bias"


def with_values(name: str, *values: float) -> Callable[[dict[str, Stored]], object]:
    """The first values of a tensor, stored as F32."""

    def change(tensors: dict[str, Stored]) -> None:
        wide = restored(tensors[name], "F32")
        data = np.array(values, dtype="<f4").tobytes()
        tensors[name] = Stored("F32", wide.shape, data + wide.data[len(data) :])

    return change


def test_weights_that_f16_rounds_are_told_with_the_tensor_and_the_way_out(
    checkpoint: Callable[..., Path], tmp_path: Path
):
    root = checkpoint()
    assert convert(root, tmp_path / "exact.gguf").fidelity.inexact == {}
    edit_weights(root, with_values(MATRIX, 1.0001, 3.0))
    result = convert(root, tmp_path / "x.gguf")
    error = abs(float(np.float16(1.0001)) - float(np.float32(1.0001)))
    assert result.fidelity.inexact == {"scorer.1.weight": pytest.approx(error)}
    (note,) = (note for note in result.notes() if "cannot hold" in note)
    assert note.startswith("f16 cannot hold 1 of 55 tensors exactly (largest error")
    assert "in scorer.1.weight" in note
    assert "--outtype f32" in note
    assert convert(root, tmp_path / "wide.gguf", outtype="f32").fidelity.inexact == {}


@pytest.mark.parametrize("value", [65520.0, -1e6, 3e38])
def test_weights_beyond_f16_are_refused_with_the_tensor_and_the_way_out(
    value: float, checkpoint: Callable[..., Path], tmp_path: Path
):
    root, folder = checkpoint(), tmp_path / "out"
    folder.mkdir()
    edit_weights(root, with_values(MATRIX, value))
    with pytest.raises(CheckpointError) as error:
        convert(root, folder / "x.gguf", outtype="f16")
    assert error.value.message == "tensor scorer.1.weight holds values beyond the range of f16"
    assert error.value.where == str(root / WEIGHTS)
    assert error.value.hint == "use --outtype f32"
    assert list(folder.iterdir()) == []
    assert convert(root, folder / "x.gguf", outtype="f32").fidelity.nonfinite == []


def test_a_vector_beyond_f16_is_no_matter_since_vectors_stay_f32(checkpoint: Callable[..., Path], tmp_path: Path):
    root = checkpoint()
    edit_weights(root, with_values(VECTOR, 1e6))
    convert(root, tmp_path / "x.gguf", outtype="f16")
    assert GgufFile(tmp_path / "x.gguf").floats("scorer.1.bias")[0] == 1e6


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", [MATRIX, VECTOR])
def test_weights_that_are_not_finite_are_kept_and_told(
    name: str, outtype: str, checkpoint: Callable[..., Path], tmp_path: Path
):
    root = checkpoint()
    edit_weights(root, with_values(name, float("nan"), float("inf")))
    result = convert(root, tmp_path / "x.gguf", outtype=outtype)
    assert result.fidelity.nonfinite == [name]
    assert any(f"{name} holds values that are not finite" in note for note in result.notes())
    stored = GgufFile(tmp_path / "x.gguf").floats(name).reshape(-1)
    assert np.isnan(stored[0])
    assert np.isinf(stored[1])


def test_weights_that_are_not_finite_are_not_quantized(checkpoint: Callable[..., Path], tmp_path: Path):
    root = checkpoint()
    edit_weights(root, with_values(MATRIX, float("nan")))
    with pytest.raises(CheckpointError, match=r"tensor scorer\.1\.weight holds values that are not finite"):
        convert(root, tmp_path / "x.gguf", outtype="q8_0")
    assert not (tmp_path / "x.gguf").exists()


# -- the tokenizer ---------------------------------------------------------------------------------------------------


def lowercased(tokenizer: dict[str, Any]) -> None:
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}


def rstripped(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"][0]["rstrip"] = True


OUTSIDE = {"another normalizer": (lowercased, "normalizer"), "a flag": (rstripped, "rstrip")}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_tokenizer_outside_the_families_is_carried_whole_on_request(
    name: str, checkpoint: Callable[..., Path], tmp_path: Path
):
    root = checkpoint()
    change, fragment = OUTSIDE[name]
    edit_json(root / TOKENIZER, change)
    if name == "a flag":
        content = "added_tokens_decoder"
        edit_json(root / TOKENIZER_CONFIG, lambda config: config.pop(content))
    with pytest.raises(CheckpointError, match=fragment):
        convert(root, tmp_path / "x.gguf")
    convert(root, tmp_path / "x.gguf", embed_tokenizer=True)
    text = (root / TOKENIZER).read_text(encoding="utf-8")
    assert GgufFile(tmp_path / "x.gguf").text(names.HUGGINGFACE_JSON) == text
    original, model = from_huggingface_json(text), package.load(tmp_path / "x.gguf")
    for sample in probe_texts(300, ["[MASK]", "[CLS]"]):
        assert model.tokenizer.encode(sample) == original.encode(sample, add_special_tokens=False).ids


def test_an_embedded_tokenizer_of_a_family_gives_the_answers_of_the_rebuilt_one(
    family: str, checkpoint: Callable[..., Path], tmp_path: Path, model_for
):
    convert(checkpoint(family), tmp_path / "x.gguf", outtype="f32", embed_tokenizer=True)
    question = {"q": {"type": "noul", "instructions": "Caf\u00e9 <mask> [MASK] ok?"}}
    embedded = package.load(tmp_path / "x.gguf").decide(["a", "b\u00e9"], question, debug=True)
    assert embedded["answers"] == model_for(family).decide(["a", "b\u00e9"], question, debug=True)["answers"]


def test_a_wordpiece_tokenizer_can_be_carried(checkpoint: Callable[..., Path], tmp_path: Path):
    root = checkpoint()

    def wordpiece(tokenizer: dict[str, Any]) -> None:
        vocab = tokenizer["model"]["vocab"]
        tokenizer["model"] = {
            "type": "WordPiece",
            "unk_token": "<|endoftext|>",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        }
        tokenizer["pre_tokenizer"] = {"type": "BertPreTokenizer"}
        tokenizer["decoder"] = None

    edit_json(root / TOKENIZER, wordpiece)
    with pytest.raises(CheckpointError):
        convert(root, tmp_path / "x.gguf")
    convert(root, tmp_path / "x.gguf", embed_tokenizer=True)
    original = from_huggingface_json((root / TOKENIZER).read_text(encoding="utf-8"))
    model = package.load(tmp_path / "x.gguf")
    assert model.tokenizer.encode("a [MASK] b") == original.encode("a [MASK] b", add_special_tokens=False).ids


def test_the_probe_refuses_a_tokenizer_that_reads_differently(
    checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = checkpoint()
    read = convert_module.read_checkpoint

    def tampered(*args: Any, **options: Any) -> Any:
        found = read(*args, **options)
        found.tokenizer.merges.reverse()
        return found

    monkeypatch.setattr(convert_module, "read_checkpoint", tampered)
    with pytest.raises(CheckpointError, match=r"the rebuilt tokenizer reads .* differently") as error:
        convert(root, tmp_path / "x.gguf")
    assert error.value.hint is not None and "--embed-tokenizer" in error.value.hint
    assert error.value.where == str(root / TOKENIZER)
    assert not (tmp_path / "x.gguf").exists()


# -- folders that are no checkpoint ----------------------------------------------------------------------------------

NO_CHECKPOINT: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing there": (shutil.rmtree, "no such folder"),
    "a file": (lambda root: (shutil.rmtree(root), root.write_bytes(b"x")), "is a file, not a checkpoint folder"),
    "another kind of model": (lambda root: (root / AGENT).unlink(), "rl_agent_config.json is missing"),
    "no weights": (lambda root: (root / WEIGHTS).unlink(), "model.safetensors is missing"),
    "no encoder folder": (lambda root: shutil.rmtree(root / "encoder"), "config.json is missing"),
    "no tokenizer folder": (lambda root: shutil.rmtree(root / "tokenizer"), "tokenizer.json is missing"),
    "an agent config that is a folder": (
        lambda root: ((root / AGENT).unlink(), (root / AGENT).mkdir()),
        "rl_agent_config.json is missing",
    ),
    "a config that is a folder": (
        lambda root: ((root / ENCODER).unlink(), (root / ENCODER).mkdir()),
        "config.json is not a regular file",
    ),
    "cut weights": (lambda root: os.truncate(root / WEIGHTS, 5000), ""),
}


@pytest.mark.parametrize("name", NO_CHECKPOINT)
def test_what_is_no_checkpoint_is_said(name: str, checkpoint: Callable[..., Path], tmp_path: Path):
    root = checkpoint()
    damage, fragment = NO_CHECKPOINT[name]
    damage(root)
    with pytest.raises(LayactlError) as error:
        convert(root, tmp_path / "x.gguf")
    assert isinstance(error.value, CheckpointError)
    assert fragment in error.value.message
    assert not (tmp_path / "x.gguf").exists()


def test_a_checkpoint_behind_links_converts(checkpoint: Callable[..., Path], tmp_path: Path):
    # Hugging Face snapshots are folders of links into a store of blobs.
    root, linked = checkpoint(), tmp_path / "snapshot" / "tiny-english"
    for path in root.rglob("*"):
        if path.is_file():
            link = linked / path.relative_to(root)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    assert (
        convert(linked, tmp_path / "a.gguf").path.read_bytes() == convert(root, tmp_path / "b.gguf").path.read_bytes()
    )


def test_convert_stamps_a_spec_before_the_file_takes_its_name(layactl, checkpoint, tmp_path):
    spec, out = tmp_path / "spec.json", tmp_path / "stamped.gguf"
    spec.write_text('{"spec_version": 1, "layout": "laya", "confidence": "max_p"}')
    assert layactl("convert", "-q", checkpoint(), "-o", out, "--spec", spec).code == 0
    assert layactl("spec", "verify", out, spec).code == 0
    spec.write_text('{"spec_version": 1, "layout": "laya", "confidence": "no such rule"}')
    refused = layactl("convert", "-q", checkpoint("tiny-multilingual"), "-o", tmp_path / "refused.gguf", "--spec", spec)
    assert refused.code == 1 and "confidence" in refused.error_lines[0]
    assert not list(tmp_path.glob("*refused*"))
