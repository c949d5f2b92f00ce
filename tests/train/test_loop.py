"""A run learns, stops, goes on to the very same bytes, and keeps its best weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from layactl.checkpoint.folder import read_checkpoint
from layactl.errors import InputError, LayactlError, NumericError, OutputError, UsageError
from layactl.train.batches import epoch_batches, length_batches
from layactl.train.run import Outcome, TrainingRun, read_data
from layactl.train.run_folder import STATE_FORMAT, RunFolder
from layactl.train.settings import OBJECTIVES, TrainSettings, learning_rate
from tests.conftest import CHECKPOINTS
from tests.train.data import data_files

SETTINGS = TrainSettings(epochs=2, batch_size=8, accumulate=2, encoder_lr=2e-3, head_lr=2e-3, eval_every=2, patience=99)
# Of a folder whose run is complete; times and names of folders stand in none of them.
BYTES = ("latest.safetensors", "best.safetensors", "metrics.jsonl", "report.json", "model/model.safetensors")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    folder = tmp_path_factory.mktemp("data")
    train, dev = data_files(folder)
    return read_data(CHECKPOINTS / "tiny-english", [train], [dev], "error")


def start(data, root: Path, settings: TrainSettings = SETTINGS, *, stop_after: int = 0, **options: object) -> Outcome:
    """stop_after: ask for a stop after so many updates of this call; 0 never."""
    asked: list[None] = []

    def stop() -> bool:
        asked.append(None)
        return len(asked) == stop_after

    resume = bool(options.pop("resume", False))
    run = TrainingRun(data, settings, RunFolder(root), threads=1, **options)
    return run.start(resume=resume, stop=stop)


def contents(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in BYTES}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_run_learns(data, objective: str, tmp_path: Path):
    outcome = start(data, tmp_path / "run", replace(SETTINGS, objective=objective, epochs=5))
    assert outcome.done
    assert outcome.final.loss < outcome.initial.loss - 0.05
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {record["kind"] for record in records} == {"train", "dev"}
    assert ("policy" in next(r for r in records if r["kind"] == "train")) == (objective == "rlcd")


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that nothing stopped, by its objective."""
    folders = {name: tmp_path_factory.mktemp("whole") / name for name in OBJECTIVES}
    for name, folder in folders.items():
        assert start(data, folder, replace(SETTINGS, objective=name)).done
    return folders


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("stop_after", [1, 4, 5])
def test_a_stopped_run_ends_with_the_same_bytes(data, whole, objective: str, stop_after: int, tmp_path: Path):
    settings = replace(SETTINGS, objective=objective)
    outcome = start(data, tmp_path / "parts", settings, stop_after=stop_after)
    assert (outcome.done, outcome.updates) == (False, stop_after)
    assert not (tmp_path / "parts" / "model").exists()
    assert start(data, tmp_path / "parts", settings, resume=True).done
    assert contents(tmp_path / "parts") == contents(whole[objective])


def test_a_killed_run_ends_with_the_same_bytes(data, whole, tmp_path: Path):
    """It goes on from the last save: records after it are made again, and only once."""
    start(data, tmp_path / "parts", save_every=3, stop_after=3)
    saved = (tmp_path / "parts" / "latest.safetensors").read_bytes()
    start(data, tmp_path / "parts", save_every=3, resume=True, stop_after=3)
    # As if the process had died before its later saves, in the middle of a line.
    (tmp_path / "parts" / "latest.safetensors").write_bytes(saved)
    with (tmp_path / "parts" / "metrics.jsonl").open("ab") as metrics:
        metrics.write(b'{"kind":"train","upd')
    start(data, tmp_path / "parts", save_every=3, resume=True)
    assert contents(tmp_path / "parts") == contents(whole["rlcd"])


def test_the_seed_decides(data, whole, tmp_path: Path):
    for name, seed in (("same", SETTINGS.seed), ("other", SETTINGS.seed + 1)):
        start(data, tmp_path / name, replace(SETTINGS, seed=seed))
    assert contents(tmp_path / "same") == contents(whole["rlcd"])
    other = (tmp_path / "other" / "best.safetensors").read_bytes()
    assert other != (whole["rlcd"] / "best.safetensors").read_bytes()


def test_the_act_head_changes_only_when_asked_for(tmp_path: Path, data):
    from safetensors.numpy import load_file

    multilingual = read_data(
        CHECKPOINTS / "tiny-multilingual", [data.train.files[0].path], [data.dev.files[0].path], "error"
    )
    for asked in (False, True):
        root = tmp_path / str(asked)
        start(multilingual, root, replace(SETTINGS, act_head=asked))
        trained = load_file(root / "model" / "model.safetensors")
        base = load_file(CHECKPOINTS / "tiny-multilingual" / "model.safetensors")
        assert (trained["act_head.2.weight"] == base["act_head.2.weight"]).all() == (not asked)
        assert (trained["scorer.1.weight"] != base["scorer.1.weight"]).any()


def test_only_an_act_head_of_two_classes_can_be_trained(data, tmp_path: Path):
    with pytest.raises(UsageError, match="3 classes"):
        start(data, tmp_path / "run", replace(SETTINGS, act_head=True))


def test_a_run_without_progress_ends_early_and_keeps_its_best(data, tmp_path: Path):
    settings = replace(SETTINGS, epochs=50, encoder_lr=0.05, head_lr=0.05, eval_every=1, patience=2, warmup=0.0)
    outcome = start(data, tmp_path / "run", settings)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = {record["update"]: record["loss"] for record in records if record["kind"] == "dev"}
    assert outcome.updates < 50
    assert outcome.best_update == min(losses, key=losses.__getitem__)
    assert outcome.updates == outcome.best_update + 2
    # The checkpoint stores what the base stores (bfloat16), so its loss is that of rounded weights.
    assert outcome.final.loss == pytest.approx(losses[outcome.best_update], abs=0.05)
    assert outcome.saved.changed > 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 7}, "seed"),
        ({"epochs": 3}, "epochs"),
        ({"objective": "soft-ce"}, "objective"),
        ({"freeze_encoder": True}, "freeze_encoder"),
    ],
)
def test_another_run_is_not_gone_on_with(data, change: dict, field: str, tmp_path: Path):
    start(data, tmp_path / "run", stop_after=2)
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    features = {"features": tmp_path / "states"} if "freeze_encoder" in change else {}
    with pytest.raises(UsageError, match=f"different settings.{field}") as refused:
        start(data, tmp_path / "run", replace(SETTINGS, **change), resume=True, **features)
    assert refused.value.hint == "another -o starts a run of its own"
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_other_data_is_not_gone_on_with(data, tmp_path: Path):
    start(data, tmp_path / "run", stop_after=2)
    train, dev = data_files(tmp_path, train=25)
    other = read_data(CHECKPOINTS / "tiny-english", [train], [dev], "error")
    with pytest.raises(UsageError, match=r"different data\.train"):
        start(other, tmp_path / "run", resume=True)


def test_another_checkpoint_is_not_gone_on_with(data, tmp_path: Path):
    start(data, tmp_path / "run", stop_after=2)
    files = [data.train.files[0].path], [data.dev.files[0].path]
    with pytest.raises(UsageError, match=r"different checkpoint\.sha256"):
        start(read_data(CHECKPOINTS / "tiny-multilingual", *files, "error"), tmp_path / "run", resume=True)


def test_the_same_data_may_be_called_otherwise(data, whole, tmp_path: Path):
    start(data, tmp_path / "run", stop_after=2)
    train, dev = data_files(tmp_path)
    assert start(read_data(CHECKPOINTS / "tiny-english", [train], [dev], "error"), tmp_path / "run", resume=True).done
    assert contents(tmp_path / "run") == contents(whole["rlcd"])


@pytest.mark.parametrize("left", [(), ("metrics.jsonl",), ("metrics.meta.json",), (".metrics.jsonl.0a1b2c.tmp",)])
@pytest.mark.parametrize("resume", [False, True])
def test_a_run_killed_before_its_first_record_starts_again(data, whole, left: tuple, resume: bool, tmp_path: Path):
    (tmp_path / "run").mkdir()
    for name in left or (".latest.safetensors.0a1b2c.tmp",):
        (tmp_path / "run" / name).write_bytes(b"")
    assert start(data, tmp_path / "run", resume=resume).done
    assert contents(tmp_path / "run") == contents(whole["rlcd"])
    assert not [path.name for path in (tmp_path / "run").iterdir() if path.name.endswith(".tmp")]


def test_what_a_killed_run_was_writing_is_removed(data, tmp_path: Path):
    start(data, tmp_path / "run", stop_after=2)
    (tmp_path / "run" / ".latest.safetensors.0123456789ab.tmp").write_bytes(b"half")
    (tmp_path / "run" / ".model.tmp").mkdir()
    start(data, tmp_path / "run", resume=True)
    assert not list((tmp_path / "run").glob(".*"))


def test_an_output_may_not_lie_in_the_checkpoint(tmp_path: Path):
    import shutil

    base = Path(shutil.copytree(CHECKPOINTS / "tiny-english", tmp_path / "base"))
    train, dev = data_files(tmp_path)
    inside = read_data(base, [train], [dev], "error")
    for options in ({}, {"features": base / "states"}):
        settings = replace(SETTINGS, freeze_encoder=bool(options))
        with pytest.raises(UsageError, match="lies in the checkpoint"):
            start(inside, tmp_path / "run" if options else base / "run", settings, **options)
    assert not (base / "run").exists()


def test_a_dev_loss_that_is_no_number_names_its_example(data, tmp_path: Path):
    """Of a word that only the dev data holds."""
    from layactl.checkpoint.save import save_checkpoint

    base = read_checkpoint(CHECKPOINTS / "tiny-english")
    table = "encoder.embeddings.tok_embeddings.weight"
    known = {token for example in data.train.examples for token in example.ids.tolist()}
    (only, *_) = [t for example in data.dev.examples for t in example.ids.tolist() if t not in known]
    rows = base.tensors[table].floats(0, base.tensors[table].shape[0])
    rows[only] = 1e30
    save_checkpoint(tmp_path / "base", base, {table: rows}, "f32")
    files = [data.train.files[0].path], [data.dev.files[0].path]
    broken = read_data(tmp_path / "base", *files, "error")
    with pytest.raises(NumericError, match="example 'dev-"):
        start(broken, tmp_path / "run")


def test_a_folder_that_holds_something_is_not_written_to(data, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="not empty"):
        start(data, tmp_path)
    with pytest.raises(OutputError, match="no run to resume"):
        start(data, tmp_path, resume=True)


def test_a_complete_run_is_left_alone(data, tmp_path: Path):
    start(data, tmp_path / "run", replace(SETTINGS, epochs=1))
    with pytest.raises(OutputError, match="complete"):
        start(data, tmp_path / "run", replace(SETTINGS, epochs=1), resume=True)


@pytest.mark.parametrize("damage", [b"", b"not a file of tensors", None])
def test_a_damaged_state_is_one_clear_error(data, damage: bytes | None, tmp_path: Path):
    start(data, tmp_path / "run", stop_after=2)
    latest = tmp_path / "run" / "latest.safetensors"
    latest.write_bytes(latest.read_bytes()[:-5] if damage is None else damage)
    with pytest.raises(LayactlError, match=r"latest\.safetensors"):
        start(data, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "change",
    [
        {"update": "3"},
        {"update": -3},
        {"update": 10**9},
        {"best_loss": "low"},
        {"finished": "no"},
        {"tensors": lambda t: t | {"exp_avg.scorer.0.bias": t["exp_avg.scorer.0.bias"][:3].clone()}},
        {"tensors": lambda t: {k: v for k, v in t.items() if k != "exp_avg_sq.scorer.0.bias"}},
        {"tensors": lambda t: t | {"parameter.scorer.0.bias": t["parameter.scorer.0.bias"].long()}},
    ],
)
def test_a_state_that_cannot_be_of_this_run_is_refused(data, change: dict, tmp_path: Path):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    start(data, tmp_path / "run", stop_after=2)
    latest = tmp_path / "run" / "latest.safetensors"
    with safe_open(latest, framework="pt") as file:
        state = json.loads(file.metadata()["state"])
    edit = change.get("tensors", lambda tensors: tensors)
    state |= {key: value for key, value in change.items() if key != "tensors"}
    save_file(edit(load_file(latest)), latest, {"state": json.dumps(state)})
    with pytest.raises(InputError, match=r"latest\.safetensors"):
        start(data, tmp_path / "run", resume=True)


def test_best_weights_of_another_run_are_refused(data, tmp_path: Path):
    from safetensors.torch import save_file

    start(data, tmp_path / "run", stop_after=2)
    best = tmp_path / "run" / "best.safetensors"
    save_file({"other": torch.zeros(3)}, best, {"state": json.dumps({"format": STATE_FORMAT})})
    with pytest.raises(InputError, match=r"best\.safetensors"):
        start(data, tmp_path / "run", resume=True)


def test_a_state_of_other_tensors_is_one_clear_error(data, tmp_path: Path):
    start(data, tmp_path / "run", stop_after=2)
    (tmp_path / "run" / "latest.safetensors").write_bytes((CHECKPOINTS / "tiny-english/model.safetensors").read_bytes())
    with pytest.raises(LayactlError, match="not the state of a training run"):
        start(data, tmp_path / "run", resume=True)


@pytest.mark.parametrize("count", [1, 7, 64, 1000])
def test_an_epoch_holds_every_example_once(count: int):
    lengths = [(37 * n) % 91 for n in range(count)]
    batches = epoch_batches(lengths, 8, seed=3, epoch=0)
    assert sorted(index for batch in batches for index in batch) == list(range(count))
    assert all(len(batch) <= 8 for batch in batches)
    assert batches == epoch_batches(lengths, 8, seed=3, epoch=0)
    assert sorted(index for batch in length_batches(lengths, 8) for index in batch) == list(range(count))
    if count > 8:
        assert batches != epoch_batches(lengths, 8, seed=3, epoch=1)
        assert batches != epoch_batches(lengths, 8, seed=4, epoch=0)


def test_batches_are_of_similar_length():
    lengths = [(37 * n) % 91 + 10 for n in range(1000)]
    padded = sum(len(batch) * max(lengths[n] for n in batch) for batch in epoch_batches(lengths, 8, seed=3, epoch=0))
    assert padded < 1.1 * sum(lengths)


def test_the_rate_warms_up_and_falls_to_nothing():
    rates = [learning_rate(n, 100, 0.1) for n in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(0.5)
    assert 0 < rates[99] < 0.001


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"epochs": 0}, "--epochs"),
        ({"warmup": 1.0}, "--warmup"),
        ({"dropout": 1.0}, "--dropout"),
        ({"encoder_lr": float("nan")}, "--encoder-lr"),
        ({"clip": 0.0}, "--clip"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_a_setting_out_of_range_is_named(change: dict, option: str):
    with pytest.raises(UsageError) as refused:
        replace(TrainSettings(), **change).check()
    assert refused.value.where == option
