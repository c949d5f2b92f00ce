"""reference.reference_model: it sees a private copy only, and is refused where it would not be the reference."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkpoint_edit import (
    INDEX,
    TOKENIZER_CONFIG,
    WEIGHTS,
    Stored,
    edit_json,
    read_stored,
    restored,
    set_fields,
    split_weights,
    write_stored,
)
from conftest import FAMILIES

from layactl.core.model_shape import EncoderShape
from layactl.errors import CheckpointError, LayactlError, ModelLoadError, OutputError
from layactl.reference import reference_model
from layactl.reference.private_copy import private_copy, scratch_folder
from layactl.reference.reference_model import ReferenceModel, refuse_other_rope, refuse_reduced_precision, versions

QUESTIONS = {
    "refund": {"type": "noul", "instructions": "Asks for money back?"},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "technical", "other"]},
}


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def listing(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every path below a folder: mode, time of the last change, bytes."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_mtime_ns, b"" if path.is_dir() else path.read_bytes())
    return found


# -- the copy -------------------------------------------------------------------------------------------------------


def test_the_copy_holds_the_model_and_nothing_else(checkpoint: Callable[..., Path], scratch: Path) -> None:
    folder = checkpoint()
    for other in ("eval/data.jsonl", "tokenizer/old/tokenizer.json", "encoder/model.safetensors"):
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).write_text("not of the model", encoding="utf-8")
    copy = private_copy(folder, scratch)
    assert copy.parent == scratch
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if not path.is_dir()} == {
        "rl_agent_config.json",
        "encoder/config.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
        "model.safetensors",
    }
    assert (copy / WEIGHTS).readlink() == (folder / WEIGHTS).resolve()
    assert private_copy(folder, scratch) != copy


def test_a_copy_of_a_read_only_folder_can_be_written_to(checkpoint: Callable[..., Path], scratch: Path) -> None:
    folder = checkpoint()
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        before = listing(folder)
        copy = private_copy(folder, scratch)
        written = [path for path in copy.rglob("*") if not path.is_symlink()]
        assert all(path.stat().st_mode & 0o200 for path in [copy, *written])
        assert listing(folder) == before
    finally:
        for path in paths:
            path.chmod(0o755)


def test_weights_behind_a_link_are_linked_themselves(checkpoint: Callable[..., Path], scratch: Path) -> None:
    """As the snapshots of a hub cache are laid out."""
    folder = checkpoint()
    blob = folder.parent / "blob"
    (folder / WEIGHTS).rename(blob)
    (folder / WEIGHTS).symlink_to(blob)
    assert (private_copy(folder, scratch) / WEIGHTS).readlink() == blob.resolve()


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_shards_are_merged_with_their_bytes_and_types(
    shards: int, checkpoint: Callable[..., Path], scratch: Path
) -> None:
    from safetensors import safe_open

    folder = checkpoint()
    tensors = read_stored(folder / WEIGHTS)
    names = sorted(tensors)
    # All three types, and an F16 tensor of an odd length, after which nothing would be aligned.
    mixed = {name: restored(tensors[name], ("BF16", "F32", "F16")[n % 3]) for n, name in enumerate(names)}
    mixed["odd"] = Stored("F16", (3,), b"\x00\x3c" * 3)
    write_stored(folder / WEIGHTS, mixed)
    split_weights(folder, shards)
    copy = private_copy(folder, scratch)
    assert not (copy / WEIGHTS).is_symlink()
    assert not (copy / INDEX).exists()
    assert read_stored(copy / WEIGHTS) == mixed
    with safe_open(copy / WEIGHTS, framework="pt") as file:
        assert set(file.keys()) == set(mixed)
        for name in names:
            part = file.get_slice(name)
            assert (part.get_dtype(), tuple(part.get_shape())) == (mixed[name].dtype, mixed[name].shape)
            stored = np.frombuffer(mixed[name].data, np.uint8)
            assert np.array_equal(file.get_tensor(name).view(-1).view(_bytes()).numpy(), stored)


def _bytes() -> Any:
    import torch

    return torch.uint8


def test_merging_holds_no_more_than_a_slice_in_memory(
    checkpoint: Callable[..., Path], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint()
    # A buffer of the limit's size is set aside for each small file.
    monkeypatch.setattr("layactl.reference.private_copy.MAX_TOKENIZER_BYTES", 2**20)
    tensors = read_stored(folder / WEIGHTS) | {"large": Stored("F32", (2**14, 2**10), bytes(2**26))}
    write_stored(folder / WEIGHTS, tensors)
    split_weights(folder, 3)
    del tensors
    tracemalloc.start()
    try:
        private_copy(folder, scratch)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


def _remove(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()

    return change


def _index_names(shard: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        split_weights(folder, 2)
        edit_json(folder / INDEX, lambda index: index["weight_map"].update(temperature=shard))

    return change


def _same_tensor_twice(folder: Path) -> None:
    first, second = split_weights(folder, 2)
    write_stored(second, read_stored(second) | dict([next(iter(read_stored(first).items()))]))


def _damaged_shard(folder: Path) -> None:
    second = split_weights(folder, 2)[1]
    second.write_bytes(second.read_bytes()[:-1])


UNUSABLE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no agent config": (_remove("rl_agent_config.json"), "rl_agent_config.json is missing"),
    "no encoder": (_remove("encoder"), "config.json is missing"),
    "no tokenizer": (_remove("tokenizer"), "tokenizer cannot be read"),
    "no weights": (_remove(WEIGHTS), f"{WEIGHTS} is missing"),
    "a shard that is not there": (_index_names("model-3.safetensors"), "model-3.safetensors is missing"),
    "a shard elsewhere": (_index_names("../secret.safetensors"), "weight_map names '../secret.safetensors'"),
    "a tensor in two shards": (_same_tensor_twice, "is in an earlier shard too"),
    "a shard that ends early": (_damaged_shard, "data_offsets"),
}


@pytest.mark.parametrize("flaw", UNUSABLE)
def test_what_cannot_be_copied_names_its_file(flaw: str, checkpoint: Callable[..., Path], scratch: Path) -> None:
    folder = checkpoint()
    change, message = UNUSABLE[flaw]
    change(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        private_copy(folder, scratch)
    assert str(folder) in str(caught.value.where)


def test_the_copy_never_lies_in_the_checkpoint(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint()
    before = listing(folder)
    for place in (folder, folder / "encoder", folder / ".." / folder.name / "tokenizer"):
        with pytest.raises(OutputError, match="never written"):
            private_copy(folder, place)
    assert listing(folder) == before


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    use_as_temporary(folder, monkeypatch)
    return folder


def use_as_temporary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_temporary_folder_in_the_checkpoint_is_refused_before_anything_is_written(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint()
    before = listing(folder)
    use_as_temporary(folder / "encoder", monkeypatch)
    with pytest.raises(OutputError, match="never written"), scratch_folder(folder):
        pass
    assert listing(folder) == before


def test_a_scratch_folder_is_gone_at_the_end(checkpoint: Callable[..., Path], temporary: Path) -> None:
    with scratch_folder(checkpoint()) as folder:
        assert list(temporary.iterdir()) == [folder]
        private_copy(checkpoint("tiny-multilingual"), folder)
    assert not list(temporary.iterdir())


HOLDS_A_SCRATCH_FOLDER = """
import sys, time
from pathlib import Path
from layactl.reference.private_copy import scratch_folder
with scratch_folder(Path("/nowhere")) as folder:
    (folder / "copy").mkdir()
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process and its scratch folder, which looks old."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS_A_SCRATCH_FOLDER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    aged(folder)
    yield process, folder
    process.kill()
    process.communicate()


def aged(folder: Path) -> None:
    os.utime(folder, (time.time() - 3600,) * 2)


def test_sigterm_takes_the_scratch_folder_with_it(holder: tuple[subprocess.Popen[str], Path], temporary: Path) -> None:
    process, _ = holder
    process.terminate()
    assert process.wait(60) == 143
    assert not list(temporary.iterdir())


def test_the_folder_of_a_killed_process_goes_and_that_of_a_living_one_stays(
    holder: tuple[subprocess.Popen[str], Path], temporary: Path, checkpoint: Callable[..., Path]
) -> None:
    process, folder = holder
    model = checkpoint()
    with scratch_folder(model):
        assert folder.exists()
    process.kill()
    process.wait()
    with scratch_folder(model):
        assert not folder.exists()


def test_only_what_a_run_left_is_removed(temporary: Path, checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for folder in (elsewhere, temporary / "layactl-reference-new", temporary / "another-old"):
        folder.mkdir()
        (folder / "lock").touch()
    (temporary / "layactl-reference-without-lock").mkdir()
    (temporary / "layactl-reference-file").touch()
    (temporary / "layactl-reference-link").symlink_to(elsewhere)
    for name in ("another-old", "layactl-reference-without-lock", "layactl-reference-file"):
        aged(temporary / name)
    aged(elsewhere)
    before = listing(tmp_path)
    with scratch_folder(checkpoint()):
        pass
    after = listing(tmp_path)
    assert set(before) <= set(after)


def test_a_scratch_folder_that_is_not_there_is_an_output_error(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        private_copy(checkpoint(), tmp_path / "nowhere")


# -- the reference --------------------------------------------------------------------------------------------------

needs_reference = pytest.mark.reference


@needs_reference
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shards", [None, 3])
def test_asking_leaves_the_folder_as_it_was(
    name: str, shards: int | None, checkpoint: Callable[..., Path], scratch: Path
) -> None:
    pytest.importorskip("laya")
    folder = checkpoint(name)
    # What the reference rewrites where it finds it.
    set_fields(folder / TOKENIZER_CONFIG, tokenizer_class="TokenizersBackend")
    whole = ReferenceModel(folder, scratch).ask("Billed twice.", QUESTIONS)
    if shards:
        split_weights(folder, shards)
    before = listing(folder)
    reference = ReferenceModel(folder, scratch)
    response = reference.ask("Billed twice.", QUESTIONS)
    assert listing(folder) == before
    assert all(b"TokenizersBackend" not in (copy / TOKENIZER_CONFIG).read_bytes() for copy in scratch.iterdir())
    assert response == whole
    assert list(response.questions) == list(QUESTIONS)
    assert response.refusal is None
    for item in response.questions.values():
        assert len(item.logits) == len(item.markers) == item.options["options"]
        assert reference.forward(reference.sequences("Billed twice.", QUESTIONS)["team"])[0]
        assert json.loads(json.dumps(item.answer)) == item.answer


@needs_reference
def test_limits_and_refusals_are_the_reference_s_own(checkpoint: Callable[..., Path], scratch: Path) -> None:
    pytest.importorskip("laya")
    reference = ReferenceModel(checkpoint(), scratch)
    long = reference.ask("word " * 500, QUESTIONS)
    short = reference.ask("word " * 500, QUESTIONS, limits=(64, 48))
    assert max(len(item.ids) for item in short.questions.values()) <= 64
    assert max(len(item.ids) for item in long.questions.values()) > 64
    refused = reference.ask("s", {"q": {"type": "poem", "instructions": "?"}})
    assert (refused.questions, refused.refusal and refused.refusal.split(":")[0]) == ({}, "ValueError")


@needs_reference
def test_versions_name_every_package_the_numbers_come_from() -> None:
    pytest.importorskip("laya")
    assert list(versions()) == ["laya", "torch", "transformers", "tokenizers", "numpy"]
    assert versions()["laya"] == reference_model.LAYA_VERSION


@pytest.mark.parametrize("found", [None, "0.3.20", "1.0"])
def test_without_the_one_version_there_is_no_reference(
    found: str | None, checkpoint: Callable[..., Path], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(reference_model, "version", version)
    with pytest.raises(
        ModelLoadError, match="is not installed" if found is None else f"laya {found} is installed"
    ) as e:
        ReferenceModel(checkpoint(), scratch)
    assert e.value.hint == "pip install 'layactl[reference]'"
    if found is None:
        with pytest.raises(ModelLoadError, match="needs laya"):
            versions()


def test_a_reference_that_cannot_be_imported_is_no_traceback(
    checkpoint: Callable[..., Path], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> Any:
        raise ImportError("libtorch.so: cannot open")

    monkeypatch.setattr(reference_model, "version", lambda name: reference_model.LAYA_VERSION)
    monkeypatch.setattr(reference_model, "import_module", broken)
    with pytest.raises(ModelLoadError, match="cannot be imported: libtorch"):
        ReferenceModel(checkpoint(), scratch)


@needs_reference
def test_reduced_precision_is_that_of_its_own_option(checkpoint, scratch: Path, monkeypatch: pytest.MonkeyPatch):
    from laya.agent import Agent

    folder, state = checkpoint("tiny-multilingual"), "Billed twice for one seat, please refund the second charge."
    timed = ReferenceModel(folder, scratch)
    exact = timed.agent.system_one(state, QUESTIONS)["answers"]
    timed.reduce_precision()
    found = timed.agent.system_one(state, QUESTIONS)["answers"]
    monkeypatch.setenv("LAYA_CPU_AMP", "bf16")
    (scratch / "own").mkdir()
    own = Agent(str(private_copy(folder, scratch / "own")), device="cpu").system_one(state, QUESTIONS)["answers"]
    assert found == own
    assert found != exact


# -- what would make it compute something else ----------------------------------------------------------------------


def autocast_variable(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("LAYA_CPU_AMP", "bf16")


def autocast_in_the_process(patch: pytest.MonkeyPatch) -> None:
    import torch

    patch.setattr(torch, "is_autocast_enabled", lambda device: device == "cpu")


def half_weights(patch: pytest.MonkeyPatch) -> None:
    import laya.agent

    original = laya.agent.build_model
    patch.setattr(laya.agent, "build_model", lambda *a, **k: original(*a, **k).bfloat16())


def one_double_weight(patch: pytest.MonkeyPatch) -> None:
    import laya.agent

    original = laya.agent.build_model

    def build(*arguments: Any, **options: Any) -> Any:
        model = original(*arguments, **options)
        model.scorer.double()
        return model

    patch.setattr(laya.agent, "build_model", build)


def a_default_theta(patch: pytest.MonkeyPatch) -> None:
    """As transformers 4 read the configs that transformers 5 writes: the thetas it does not find are its own."""
    import torch
    from transformers.models.modernbert import modeling_modernbert

    def frequencies(config: Any, device: Any = None, layer_type: str | None = None, **rest: Any) -> Any:
        dim = config.hidden_size // config.num_attention_heads
        theta = 160000.0 if layer_type == "full_attention" else 500.0
        return 1.0 / (theta ** (torch.arange(0, dim, 2) / dim)), 1.0

    patch.setattr(
        modeling_modernbert.ModernBertRotaryEmbedding, "compute_default_rope_parameters", staticmethod(frequencies)
    )


def a_damaged_digest(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("LAYA_SHA256_DIGESTS", '{"model.safetensors": "00"}')


OTHER_ARITHMETIC: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "LAYA_CPU_AMP": (autocast_variable, "under autocast"),
    "autocast": (autocast_in_the_process, "autocast is on"),
    "bfloat16 weights": (half_weights, "as bfloat16 on cpu"),
    "one float64 weight": (one_double_weight, "holds scorer.0.weight as float64"),
    "another theta": (a_default_theta, "encoder layer 1 .* RoPE theta 10000"),
    "digests that do not match": (a_damaged_digest, "does not load it: ValueError"),
}


@needs_reference
@pytest.mark.parametrize("cause", OTHER_ARITHMETIC)
def test_a_reference_that_would_compute_something_else_is_refused(
    cause: str, checkpoint: Callable[..., Path], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("laya")
    change, message = OTHER_ARITHMETIC[cause]
    change(monkeypatch)
    with pytest.raises(ModelLoadError, match=message):
        ReferenceModel(checkpoint(), scratch)


@needs_reference
def test_autocast_that_begins_later_is_refused_at_the_question(checkpoint: Callable[..., Path], scratch: Path) -> None:
    pytest.importorskip("laya")
    import torch

    reference = ReferenceModel(checkpoint(), scratch)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ModelLoadError, match="autocast is on"):
        reference.ask("s", QUESTIONS)
    assert reference.ask("s", QUESTIONS).questions


@pytest.fixture
def product() -> Iterator[Callable[[Callable[[Any], Any]], None]]:
    """Lets every product of torch pass through a function."""
    import torch

    original = torch.Tensor.__matmul__

    def through(change: Callable[[Any], Any]) -> None:
        torch.Tensor.__matmul__ = lambda a, b: change(original(change(a), change(b)))

    yield through
    torch.Tensor.__matmul__ = original


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_products_of_another_precision_are_noticed(kind: str, product: Callable[..., None]) -> None:
    import torch

    refuse_reduced_precision()
    product(lambda tensor: tensor.to(getattr(torch, kind)).float())
    with pytest.raises(ModelLoadError, match="lower precision"):
        refuse_reduced_precision()


def test_a_lowered_precision_setting_is_noticed_where_it_has_an_effect() -> None:
    import torch

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        a, b = torch.rand(64, 64, dtype=torch.float64), torch.rand(64, 64, dtype=torch.float64)
        if float((a.float() @ b.float() - a @ b).abs().max()) < 1e-3:
            pytest.skip("this processor multiplies in float32 whatever the setting")
        with pytest.raises(ModelLoadError, match="lower precision"):
            refuse_reduced_precision()
    finally:
        torch.set_float32_matmul_precision(before)


# -- RoPE as either version of transformers holds it ----------------------------------------------------------------

SHAPE = EncoderShape(
    vocab_size=10,
    hidden=16,
    layers=3,
    heads=2,
    ffn=8,
    context_length=32,
    norm_eps=1e-5,
    global_theta=160000.0,
    local_theta=10000.0,
    local_attention=8,
    global_every=3,
)
FULL, SLIDING = "full_attention", "sliding_attention"


def frequencies(theta: float) -> Any:
    import torch

    return 1.0 / (theta ** (torch.arange(0, 8, 2, dtype=torch.float32) / 8))


def encoder_of(buffers: dict[str, Any], kinds: tuple[str | None, ...] = (FULL, SLIDING, SLIDING)) -> Any:
    return SimpleNamespace(
        layers=[SimpleNamespace(attention_type=kind) if kind else SimpleNamespace() for kind in kinds],
        named_buffers=lambda: buffers.items(),
    )


def per_layer(*thetas: float) -> Any:
    """transformers 4."""
    return encoder_of(
        {f"layers.{n}.attn.rotary_emb.inv_freq": frequencies(theta) for n, theta in enumerate(thetas)},
        (None,) * 3,
    )


def per_kind(full: float, sliding: float, **kinds: Any) -> Any:
    """transformers 5."""
    return encoder_of(
        {f"rotary_emb.{FULL}_inv_freq": frequencies(full), f"rotary_emb.{SLIDING}_inv_freq": frequencies(sliding)},
        **kinds,
    )


def test_both_versions_of_transformers_show_their_frequencies() -> None:
    refuse_other_rope(per_layer(160000.0, 10000.0, 10000.0), SHAPE, "here")
    refuse_other_rope(per_kind(160000.0, 10000.0), SHAPE, "here")


MISREAD: dict[str, tuple[Callable[[], Any], str]] = {
    "4: one theta for all": (lambda: per_layer(160000.0, 160000.0, 160000.0), "encoder layer 1 .* theta 10000"),
    "4: another global theta": (lambda: per_layer(10000.0, 10000.0, 10000.0), "encoder layer 0 .* theta 160000"),
    "4: only the last layer": (lambda: per_layer(160000.0, 10000.0, 10001.0), "encoder layer 2 .* theta 10000"),
    "4: a layer without": (lambda: per_layer(160000.0, 10000.0), "encoder layer 2 .* shows no RoPE"),
    "5: thetas swapped": (lambda: per_kind(10000.0, 160000.0), "encoder layer 0 .* theta 160000"),
    "5: layer kinds shifted": (
        lambda: per_kind(160000.0, 10000.0, kinds=(FULL, FULL, SLIDING)),
        "encoder layer 1 .* theta 10000",
    ),
    "5: one kind missing": (
        lambda: encoder_of({f"rotary_emb.{FULL}_inv_freq": frequencies(160000.0)}),
        "encoder layer 1 .* shows no RoPE",
    ),
    "names of a version to come": (
        lambda: encoder_of({"rope.frequencies": frequencies(160000.0)}),
        "encoder layer 0 .* shows no RoPE",
    ),
    "heads of another width": (
        lambda: encoder_of({f"rotary_emb.{kind}_inv_freq": frequencies(10000.0)[:2] for kind in (FULL, SLIDING)}),
        "encoder layer 0 .* theta",
    ),
}


@pytest.mark.parametrize("reading", MISREAD)
def test_an_encoder_that_misreads_its_rope_settings_is_refused(reading: str) -> None:
    make, message = MISREAD[reading]
    with pytest.raises(LayactlError, match=message) as caught:
        refuse_other_rope(make(), SHAPE, "here")
    assert isinstance(caught.value, ModelLoadError)
