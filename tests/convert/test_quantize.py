"""Quantized files: which tensors become what, to the byte what gguf's own quantizers make of them."""

from __future__ import annotations

import math

import gguf
import numpy as np
import pytest

from layactl.convert.convert import convert
from layactl.convert.quantize import quantize
from layactl.convert.recipe import RECIPES, decode, encode
from layactl.errors import CheckpointError, GgufError, OutputError
from layactl.gguf_file import names
from layactl.gguf_file.reader import GgufFile

KINDS = gguf.GGMLQuantizationType
WIDE = ("token_embd.", "type_emb.", "scorer.", "act_head.")


@pytest.fixture
def quantized(gguf_for, tmp_path, family):
    """recipe -> (the f32 file, its quantized copy)."""

    def make(recipe: str) -> tuple[GgufFile, GgufFile]:
        out = tmp_path / f"{recipe}.gguf"
        quantize(gguf_for(family, "f32"), out, recipe)
        return GgufFile(gguf_for(family, "f32")), GgufFile(out)

    return make


@pytest.mark.parametrize("recipe", ["q8_0", "q8_0-mixed"])
def test_every_tensor_has_the_type_and_the_bytes_of_its_recipe(quantized, recipe):
    source, result = quantized(recipe)
    assert list(result.tensors) == list(source.tensors)
    for name, tensor in result.tensors.items():
        floats = source.floats(name)
        matrix = len(tensor.shape) > 1 and name.endswith(".weight") and not name.endswith("_norm.weight")
        if not matrix:
            expected = KINDS.F32
        elif (recipe == "q8_0-mixed" and name.startswith(WIDE)) or tensor.shape[-1] % 32:
            expected = KINDS.F16
        else:
            expected = KINDS.Q8_0
        assert tensor.type_code == expected, name
        wanted = floats.astype(np.float16) if expected == KINDS.F16 else gguf.quants.quantize(floats, expected)
        assert result.stored(name).tobytes() == wanted.tobytes(), name


@pytest.mark.parametrize("recipe", ["q8_0", "q8_0-mixed"])
def test_the_recipe_is_recorded_and_other_keys_are_copied(quantized, recipe):
    source, result = quantized(recipe)
    assert result.text(names.RECIPE) == recipe
    assert result.integer(names.FILE_TYPE) == gguf.LlamaFileType.MOSTLY_Q8_0
    own = {names.RECIPE, names.FILE_TYPE, names.QUANTIZATION_VERSION}
    for key in set(source.keys) - own:
        assert result.key_bytes(key) == source.key_bytes(key), key


def test_converting_to_q8_0_gives_the_bytes_of_quantizing_an_f32_file(quantized, checkpoint, family, tmp_path):
    _, result = quantized("q8_0")
    direct = tmp_path / "direct.gguf"
    convert(checkpoint(family), direct, outtype="q8_0")
    other = GgufFile(direct)
    assert all(other.stored(name).tobytes() == result.stored(name).tobytes() for name in result.tensors)


def test_a_quantized_file_is_not_quantized_again(quantized, tmp_path):
    _, result = quantized("q8_0")
    with pytest.raises(GgufError, match="quantized already"):
        quantize(result.path, tmp_path / "twice.gguf", "q8_0-mixed")
    assert not (tmp_path / "twice.gguf").exists()


def test_a_file_is_not_quantized_onto_itself(gguf_for, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_for("tiny-english", "f32").read_bytes())
    before = path.read_bytes()
    with pytest.raises(OutputError, match="input itself"):
        quantize(path, path, "q8_0")
    assert path.read_bytes() == before


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_not_quantized(value, tmp_path, recipe_checkpoint):
    root = recipe_checkpoint(value)
    with pytest.raises(CheckpointError, match="not finite"):
        convert(root, tmp_path / "out.gguf", outtype="q8_0")
    assert not (tmp_path / "out.gguf").exists()


@pytest.fixture
def recipe_checkpoint(tmp_path):
    """value -> an F32 checkpoint with that value in one encoder weight."""
    from checkpoint_factory import WIDE as WIDE_RECIPE
    from checkpoint_factory import write_checkpoint
    from safetensors.numpy import load_file, save_file

    def make(value: float):
        root = tmp_path / "wide"
        write_checkpoint(WIDE_RECIPE, root)
        tensors = load_file(root / "model.safetensors")
        tensors["encoder.layers.1.mlp.Wo.weight"][3, 5] = value
        save_file(tensors, root / "model.safetensors")
        return root

    return make


def test_float16_is_rounded_as_numpy_rounds_it():
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    edges = np.array(
        [0, 1, 0x33000000, 0x33000001, 0x387FFFFF, 0x38800000, 0x477FEFFF, 0x477FF000, 0x7F800000], np.uint32
    )
    values = np.concatenate([bits, edges, edges | np.uint32(0x80000000)]).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        assert encode(values, KINDS.F16).tobytes() == values.astype(np.float16).tobytes()


@pytest.mark.parametrize("recipe", RECIPES)
def test_decoding_gives_back_what_a_reader_would(recipe):
    values = np.linspace(-3, 3, 128, dtype=np.float32).reshape(2, 64)
    stored = encode(values, RECIPES[recipe].kind)
    assert np.array_equal(decode(stored, RECIPES[recipe].kind), gguf.quants.dequantize(stored, RECIPES[recipe].kind))
