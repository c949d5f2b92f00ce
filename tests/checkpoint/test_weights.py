"""checkpoint.weights and safetensors_file: one file or shards, three stored types, and the package as the oracle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
from checkpoint_edit import (
    INDEX,
    WEIGHTS,
    Stored,
    as_floats,
    edit_json,
    edit_weights,
    read_stored,
    restored,
    safetensors_bytes,
    split_weights,
    stored_bytes,
    write_stored,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from layactl.checkpoint.folder import read_checkpoint
from layactl.checkpoint.safetensors_file import read_safetensors
from layactl.convert.convert import convert
from layactl.core.tensor_table import tensor_specs
from layactl.errors import CheckpointError
from layactl.gguf_file.reader import GgufFile

pytestmark = pytest.mark.usefixtures("fewer_probe_texts")


# -- shards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_shards_are_the_single_file(shards: int, family: str, checkpoint: Callable[..., Path], tmp_path: Path):
    whole = checkpoint(family)
    single = convert(whole, tmp_path / "single.gguf", outtype="f32")
    split_weights(whole, shards)
    sharded = convert(whole, tmp_path / "sharded.gguf", outtype="f32")
    assert sharded.source_sha256 == single.source_sha256
    assert (tmp_path / "sharded.gguf").read_bytes() == (tmp_path / "single.gguf").read_bytes()


def test_the_order_of_tensors_in_the_file_changes_nothing(checkpoint: Callable[..., Path]):
    root = checkpoint()
    before = read_checkpoint(root).source_sha256()
    edit_weights(root, lambda tensors: [tensors.update({name: tensors.pop(name)}) for name in sorted(tensors)])
    assert read_checkpoint(root).source_sha256() == before


def test_one_changed_bit_changes_the_digest(checkpoint: Callable[..., Path]):
    root = checkpoint()
    before = read_checkpoint(root).source_sha256()

    def flip(tensors: dict[str, Stored]) -> None:
        tensor = tensors["scorer.3.bias"]
        tensors["scorer.3.bias"] = Stored(tensor.dtype, tensor.shape, bytes([tensor.data[0] ^ 1]) + tensor.data[1:])

    edit_weights(root, flip)
    assert read_checkpoint(root).source_sha256() != before


def edit_index(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit_json(root / INDEX, change)


def lose_a_shard(root: Path) -> None:
    split_weights(root, 3)[1].unlink()


def put_tensor_elsewhere(root: Path) -> None:
    split_weights(root, 2)
    edit_index(root, lambda index: index["weight_map"].update({"scorer.3.bias": "model-00001-of-00002.safetensors"}))
    edit_index(root, lambda index: index["weight_map"].update({"type_emb.weight": "model-00001-of-00002.safetensors"}))


def forget_a_tensor(root: Path) -> None:
    split_weights(root, 2)
    edit_index(root, lambda index: index["weight_map"].pop("scorer.3.bias"))


def all_in(shard: Any) -> Callable[[Path], None]:
    """The index names this shard for every tensor."""

    def damage(root: Path) -> None:
        split_weights(root, 1)
        edit_index(root, lambda index: index.update(weight_map=dict.fromkeys(index["weight_map"], shard)))

    return damage


def index_without_map(root: Path) -> None:
    split_weights(root, 1)
    edit_index(root, lambda index: index.pop("weight_map"))


def empty_map(root: Path) -> None:
    split_weights(root, 1)
    edit_index(root, lambda index: index.update(weight_map={}))


def index_no_json(root: Path) -> None:
    (root / INDEX).write_text("{")


def single_beside_shards(root: Path) -> None:
    tensors = read_stored(root / WEIGHTS)
    split_weights(root, 2)
    write_stored(root / WEIGHTS, tensors)


BROKEN_SHARDS = {
    "a shard is missing": (lose_a_shard, "model-00002-of-00003.safetensors is missing"),
    "a tensor is in another shard": (put_tensor_elsewhere, "which the index"),
    "a tensor is not in the index": (forget_a_tensor, "scorer.3.bias, which the index does not put there"),
    "a shard outside the folder": (
        all_in("../elsewhere.safetensors"),
        "'../elsewhere.safetensors', not a shard beside it",
    ),
    "a shard at an absolute path": (all_in("/model.safetensors"), "'/model.safetensors', not a shard beside it"),
    "a pickled shard": (all_in("pytorch_model-1.bin"), "not a shard beside it"),
    "a number for a shard": (all_in(1), "must be a string, not 1"),
    "no weight_map": (index_without_map, "weight_map is missing"),
    "an empty weight_map": (empty_map, "tensor encoder.embeddings.tok_embeddings.weight is missing"),
    "the index is no JSON": (index_no_json, "model.safetensors.index.json is not valid JSON"),
    "a single file beside them": (single_beside_shards, "model.safetensors stands beside an index"),
}


@pytest.mark.parametrize("name", BROKEN_SHARDS)
def test_broken_shards_are_refused(name: str, checkpoint: Callable[..., Path]):
    root = checkpoint()
    damage, fragment = BROKEN_SHARDS[name]
    damage(root)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(root)
    assert fragment in error.value.message


# -- stored types ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_stored_type_arrives_exactly(dtype: str, family: str, checkpoint: Callable[..., Path], tmp_path: Path):
    root = checkpoint(family)
    # Seven bits of significand: every value fits all three types.
    edit_weights(
        root, lambda tensors: tensors.update({n: restored(restored(t, "BF16"), dtype) for n, t in tensors.items()})
    )
    expected = {name: as_floats(tensor) for name, tensor in read_stored(root / WEIGHTS).items()}
    stored = read_checkpoint(root)
    convert(root, tmp_path / "x.gguf", outtype="f32")
    file = GgufFile(tmp_path / "x.gguf")
    for spec in tensor_specs(stored.shape):
        assert stored.tensors[spec.checkpoint].dtype == dtype
        assert file.tensors[spec.gguf].type_name == "F32"
        assert np.array_equal(file.floats(spec.gguf), expected[spec.checkpoint])


def test_types_may_differ_from_tensor_to_tensor(checkpoint: Callable[..., Path], tmp_path: Path):
    root = checkpoint()
    before = convert(root, tmp_path / "before.gguf", outtype="f32")
    edit_weights(
        root,
        lambda tensors: tensors.update(
            {n: restored(t, "F32") for k, (n, t) in enumerate(list(tensors.items())) if k % 2}
        ),
    )
    after = convert(root, tmp_path / "after.gguf", outtype="f32")
    assert after.source_sha256 != before.source_sha256
    a, b = GgufFile(tmp_path / "before.gguf"), GgufFile(tmp_path / "after.gguf")
    assert all(a.stored(name).tobytes() == b.stored(name).tobytes() for name in a.tensors)


# -- tensors that do not fit the model -------------------------------------------------------------------------------


def rename(old: str, new: str) -> Callable[[dict[str, Stored]], object]:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


def reshape(name: str, *shape: int) -> Callable[[dict[str, Stored]], object]:
    return lambda tensors: tensors.update({name: Stored(tensors[name].dtype, shape, tensors[name].data)})


ZEROS = Stored("F32", (2, 2), bytes(16))
MISFITS: dict[str, tuple[Callable[[dict[str, Stored]], object], str]] = {
    "a missing tensor": (lambda t: t.pop("scorer.1.weight"), "tensor scorer.1.weight is missing"),
    "a renamed tensor": (rename("scorer.0.bias", "scorer.0.beta"), "tensor scorer.0.bias is missing"),
    "a tensor too many": (lambda t: t.update({"lm_head.weight": ZEROS}), "tensor lm_head.weight has no place"),
    "a norm in layer 0": (
        lambda t: t.update({"encoder.layers.0.attn_norm.weight": t["encoder.layers.1.attn_norm.weight"]}),
        "tensor encoder.layers.0.attn_norm.weight has no place",
    ),
    "an encoder bias": (
        lambda t: t.update({"encoder.layers.0.attn.Wo.bias": t["scorer.0.bias"]}),
        "tensor encoder.layers.0.attn.Wo.bias has no place",
    ),
    "transposed": (
        reshape("encoder.layers.2.mlp.Wo.weight", 96, 64),
        "encoder.layers.2.mlp.Wo.weight has shape (96, 64), not (64, 96)",
    ),
    "a dimension too many": (reshape("scorer.3.bias", 1, 1), "scorer.3.bias has shape (1, 1), not (1,)"),
    "a dimension too few": (reshape("scorer.3.weight", 64), "scorer.3.weight has shape (64,), not (1, 64)"),
    "a scalar": (reshape("scorer.3.bias"), "scorer.3.bias has shape (), not (1,)"),
    "an unused tensor of another shape": (
        lambda t: t.update({"temperature": ZEROS}),
        "temperature has shape (2, 2), not (3,)",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_tensor_that_does_not_fit_is_named(name: str, checkpoint: Callable[..., Path]):
    root = checkpoint()
    change, fragment = MISFITS[name]
    edit_weights(root, change)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(root)
    assert fragment in error.value.message
    assert error.value.where == str(root / WEIGHTS)


def test_the_unused_temperature_tensor_may_be_absent_and_is_not_in_the_digest(checkpoint: Callable[..., Path]):
    root = checkpoint()
    before = read_checkpoint(root).source_sha256()
    edit_weights(root, lambda tensors: tensors.pop("temperature"))
    after = read_checkpoint(root)
    assert "temperature" not in after.tensors
    assert after.source_sha256() == before


# -- the reader against the safetensors package ----------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(lambda n: n != "__metadata__")
SHAPES = st.lists(st.integers(0, 5), max_size=4)
TENSORS = st.dictionaries(NAMES, st.tuples(st.sampled_from(["F32", "F16", "BF16"]), SHAPES), max_size=6)


def random_tensors(plan: dict[str, tuple[str, list[int]]], seed: int) -> dict[str, Stored]:
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, (dtype, shape) in plan.items():
        floats = rng.standard_normal(shape).astype(np.float32)
        tensors[name] = restored(Stored("F32", tuple(shape), np.ascontiguousarray(floats).tobytes()), dtype)
    return tensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the property tests, whose examples share it."""
    return tmp_path_factory.mktemp("safetensors")


@settings(max_examples=60)
@given(plan=TENSORS, seed=st.integers(0, 2**32))
def test_random_files_read_as_the_package_reads_them(plan: dict[str, tuple[str, list[int]]], seed: int, folder: Path):
    tensors = random_tensors(plan, seed)
    data = stored_bytes(tensors)
    theirs = safetensors.torch.load(data)
    path = folder / "random.safetensors"
    path.write_bytes(data)
    ours = read_safetensors(path)
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        assert ours[name].shape == tuple(tensor.shape)
        if tensor.dim():
            assert np.array_equal(ours[name].floats(0, tensor.shape[0]), tensor.float().numpy())
            assert ours[name].stored(0, ours[name].shape[0]).tobytes() == tensors[name].data


ENTRY: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
EIGHT = bytes(8)
MALFORMED = {
    "empty": b"",
    "seven bytes": b"\x02\0\0\0\0\0\0",
    "header length only": (2).to_bytes(8, "little"),
    "header longer than the file": (100).to_bytes(8, "little") + b"{}",
    "header length of 2^63": (2**63).to_bytes(8, "little") + b"{}",
    "header is no JSON": safetensors_bytes(b"{nope}"),
    "header is an array": safetensors_bytes(b"[]"),
    "header is not UTF-8": safetensors_bytes(b'{"\xff": {}}'),
    "entry is text": safetensors_bytes({"a": "F32"}),
    "entry is null": safetensors_bytes({"a": None}),
    "no dtype": safetensors_bytes({"a": {"shape": [2], "data_offsets": [0, 8]}}, EIGHT),
    "unknown dtype": safetensors_bytes({"a": ENTRY | {"dtype": "F33"}}, EIGHT),
    "dtype as a number": safetensors_bytes({"a": ENTRY | {"dtype": 32}}, EIGHT),
    "no shape": safetensors_bytes({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, EIGHT),
    "negative dimension": safetensors_bytes({"a": ENTRY | {"shape": [-2]}}, EIGHT),
    "fractional dimension": safetensors_bytes({"a": ENTRY | {"shape": [2.0]}}, EIGHT),
    "bool dimension": safetensors_bytes({"a": ENTRY | {"shape": [True, 2]}}, EIGHT),
    "dimensions that overflow": safetensors_bytes({"a": ENTRY | {"shape": [2**40, 2**40]}}, EIGHT),
    "no offsets": safetensors_bytes({"a": {"dtype": "F32", "shape": [2]}}, EIGHT),
    "one offset": safetensors_bytes({"a": ENTRY | {"data_offsets": [0]}}, EIGHT),
    "three offsets": safetensors_bytes({"a": ENTRY | {"data_offsets": [0, 8, 8]}}, EIGHT),
    "negative offset": safetensors_bytes({"a": ENTRY | {"data_offsets": [-8, 0]}}, EIGHT),
    "offsets reversed": safetensors_bytes({"a": ENTRY | {"data_offsets": [8, 0]}}, EIGHT),
    "offsets of another size": safetensors_bytes({"a": ENTRY | {"data_offsets": [0, 4]}}, EIGHT),
    "data past the end": safetensors_bytes({"a": ENTRY | {"shape": [4], "data_offsets": [0, 16]}}, EIGHT),
    "data too short": safetensors_bytes({"a": ENTRY}, EIGHT[:7]),
    "bytes after the last tensor": safetensors_bytes({"a": ENTRY}, EIGHT + b"x"),
    "bytes without any tensor": safetensors_bytes({}, EIGHT),
    "hole before the first tensor": safetensors_bytes({"a": ENTRY | {"data_offsets": [8, 16]}}, EIGHT * 2),
    "hole between tensors": safetensors_bytes({"a": ENTRY, "b": ENTRY | {"data_offsets": [16, 24]}}, EIGHT * 3),
    "overlap": safetensors_bytes({"a": ENTRY, "b": ENTRY | {"data_offsets": [4, 12]}}, EIGHT + EIGHT[:4]),
    "two tensors in one place": safetensors_bytes({"a": ENTRY, "b": ENTRY}, EIGHT),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_refused_as_the_package_refuses_it(name: str, tmp_path: Path):
    with pytest.raises(safetensors.SafetensorError):
        safetensors.torch.load(MALFORMED[name])
    path = tmp_path / "x.safetensors"
    path.write_bytes(MALFORMED[name])
    with pytest.raises(CheckpointError) as error:
        read_safetensors(path)
    assert error.value.where == str(path)


OURS_ALONE = {
    "an integer tensor": (safetensors_bytes({"a": ENTRY | {"dtype": "I32"}}, EIGHT), "a.dtype is 'I32'"),
    "a tensor of doubles": (
        safetensors_bytes({"a": ENTRY | {"dtype": "F64", "shape": [1]}}, EIGHT),
        "a.dtype is 'F64'",
    ),
    "five dimensions": (safetensors_bytes({"a": ENTRY | {"shape": [1, 1, 1, 1, 2]}}, EIGHT), "a.shape"),
    "a name twice": (
        safetensors_bytes(
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
            EIGHT,
        ),
        "there twice",
    ),
    "a number of 5,000 digits": (
        safetensors_bytes(b'{"a":{"dtype":"F32","shape":[' + b"1" * 5000 + b'],"data_offsets":[0,8]}}', EIGHT),
        "",
    ),
    "nested 500 deep": (safetensors_bytes(b'{"a":' + b"[" * 500 + b"]" * 500 + b"}", EIGHT), ""),
}


@pytest.mark.parametrize("name", OURS_ALONE)
def test_what_no_weight_of_a_model_can_be_is_refused(name: str, tmp_path: Path):
    data, fragment = OURS_ALONE[name]
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as error:
        read_safetensors(path)
    assert fragment in error.value.message
    assert len(error.value.message) < 300


def test_metadata_is_no_tensor(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes({"__metadata__": {"format": "pt"}, "a": ENTRY}, EIGHT))
    assert list(read_safetensors(path)) == ["a"]


@settings(max_examples=150)
@given(plan=TENSORS.filter(bool), seed=st.integers(0, 2**32), data=st.data())
def test_what_the_package_refuses_in_a_damaged_file_is_refused_here(
    plan: dict[str, tuple[str, list[int]]], seed: int, data: Any, folder: Path
):
    file = bytearray(stored_bytes(random_tensors(plan, seed)))
    header = 8 + int.from_bytes(file[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        file[data.draw(st.integers(0, header - 1))] = data.draw(st.sampled_from(list(b'0123456789[]{}",:FB\x00\xff')))
    path = folder / "damaged.safetensors"
    path.write_bytes(file)
    try:
        theirs = safetensors.torch.load(bytes(file))
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError):
        theirs = None
    try:
        ours = read_safetensors(path)
    except CheckpointError:
        return
    # Stricter is right; whatever is accepted must be accepted there too, with the same tensors.
    assert theirs is not None
    assert {name: tensor.shape for name, tensor in ours.items()} == {n: tuple(t.shape) for n, t in theirs.items()}


def test_the_weights_of_the_fixtures_read_alike(family: str):
    path = Path(__file__).parents[2] / "fixtures" / family / WEIGHTS
    theirs = safetensors.torch.load_file(path)
    ours = read_safetensors(path)
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        assert np.array_equal(ours[name].floats(0, tensor.shape[0]), tensor.float().numpy())


@pytest.mark.parametrize("name", ["missing", "folder"])
def test_what_is_no_file_is_named(name: str, tmp_path: Path):
    path = tmp_path / WEIGHTS
    if name == "folder":
        path.mkdir()
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        read_safetensors(path)


@pytest.mark.parametrize("padding", ["{}", "{}       ", " {}", "\n{}\n"], ids=["none", "after", "before", "lines"])
def test_spaces_around_the_header_are_allowed_as_the_package_allows_them(padding: str, tmp_path: Path):
    path = tmp_path / "x.safetensors"
    text = padding.replace("{}", json.dumps({"a": ENTRY}, separators=(",", ":")))
    path.write_bytes(safetensors_bytes(text.encode(), EIGHT))
    assert list(read_safetensors(path)) == list(safetensors.torch.load(path.read_bytes())) == ["a"]
