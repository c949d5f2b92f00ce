"""A checkpoint folder as a model: converted once, found again, never trusted blindly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from layactl.convert import cache as cache_module
from layactl.convert.cache import cached_conversion, choose_prunable, default_cache_dir, list_entries, remove_entry
from layactl.convert.content_key import content_key
from layactl.convert.resolve import resolve_model
from layactl.errors import CheckpointError, OutputError


def resolve(root: Path, cache: Path, outtype: str = "f16"):
    return cached_conversion(root, outtype, cache, lambda done, total: None)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_the_second_use_of_a_folder_is_a_hit_with_the_same_file(checkpoint, cache):
    root = checkpoint()
    first, second = resolve(root, cache), resolve(root, cache)
    assert (first.hit, second.hit) == (False, True)
    assert first.file.path == second.file.path == cache / first.key / f"{root.name}.gguf"
    assert second.convert_ms == 0


def test_a_cached_conversion_holds_the_bytes_of_an_ordinary_one(checkpoint, cache, gguf_for):
    cached = resolve(checkpoint("tiny-english"), cache)
    assert cached.file.path.read_bytes() == gguf_for("tiny-english", "f16").read_bytes()


def test_out_types_are_kept_apart(checkpoint, cache):
    root = checkpoint()
    assert resolve(root, cache, "f16").key != resolve(root, cache, "f32").key


def _edit_config(root: Path) -> None:
    path = root / "rl_agent_config.json"
    status = path.stat()
    path.write_text(path.read_text().replace("0.1006", "0.1007"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _touch_new_file(root: Path) -> None:
    (root / "tokenizer" / "special_tokens_map.json").write_text("{}")


def _rename(root: Path) -> None:
    root.rename(root.with_name("other-name"))


@pytest.mark.parametrize("change", [_edit_config, _touch_new_file, _rename])
def test_a_change_the_converter_could_see_changes_the_key(checkpoint, change):
    root = checkpoint()
    before = content_key(root, "f16")
    change(root)
    after = content_key(root if root.exists() else root.with_name("other-name"), "f16")
    assert after != before


def _hidden_file(root: Path) -> None:
    (root / ".git").write_text("x")


def _below_other_folder(root: Path) -> None:
    (root / "eval" / "data.json").write_text("x")


@pytest.mark.parametrize("change", [_hidden_file, _below_other_folder])
def test_a_change_the_converter_never_reads_keeps_the_key(checkpoint, change):
    root = checkpoint()
    (root / "eval").mkdir()
    before = content_key(root, "f16")
    change(root)
    assert content_key(root, "f16") == before


def test_large_files_count_by_size_time_and_link_target(checkpoint, monkeypatch):
    monkeypatch.setattr("layactl.convert.content_key._CONTENT_BYTES", 1000)
    root = checkpoint()
    weights = root / "model.safetensors"
    before = content_key(root, "f16")
    os.utime(weights, ns=(1, 1))
    touched = content_key(root, "f16")
    assert touched != before
    blob = root / ".blob"
    weights.rename(blob)
    weights.symlink_to(blob.name)
    linked = content_key(root, "f16")
    assert linked != touched


@pytest.mark.parametrize("damage", ["truncated", "empty", "header"])
def test_a_damaged_entry_is_converted_again(checkpoint, cache, damage):
    root = checkpoint()
    path = resolve(root, cache).file.path
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[:-64], "empty": b"", "header": b"GGUF\xff" + whole[5:]}[damage])
    again = resolve(root, cache)
    assert not again.hit
    assert path.read_bytes() == whole


def test_a_checkpoint_that_changes_while_it_is_converted_is_refused(checkpoint, cache, monkeypatch):
    root = checkpoint()
    real = cache_module.convert

    def convert_and_edit(*args, **kwargs):
        result = real(*args, **kwargs)
        _edit_config(root)
        return result

    monkeypatch.setattr(cache_module, "convert", convert_and_edit)
    with pytest.raises(CheckpointError, match="changed while it was converted"):
        resolve(root, cache)
    assert not list(cache.rglob("*.gguf")) and not list(cache.rglob("*.tmp"))


def test_a_refused_checkpoint_leaves_nothing_in_the_cache(checkpoint, cache):
    root = checkpoint()
    (root / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError):
        resolve(root, cache)
    assert not list(cache.iterdir())


def test_a_cache_inside_the_checkpoint_is_refused_before_anything_is_made(checkpoint):
    root = checkpoint()
    with pytest.raises(OutputError, match="inside the checkpoint"):
        resolve(root, root / "cache")
    assert not (root / "cache").exists()


def _link_folder(folder: Path) -> None:
    real = folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(real)


def _link_file(folder: Path) -> None:
    entry = next(folder.glob("*.gguf"))
    real = entry.rename(folder.parent / "elsewhere.gguf")
    entry.symlink_to(real)


def _open_folder(folder: Path) -> None:
    folder.chmod(0o777)


def _open_file(folder: Path) -> None:
    next(folder.glob("*.gguf")).chmod(0o666)


def _foreign(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(next(folder.glob("*.gguf")), 12345, 12345)


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (_link_folder, "symbolic link"),
        (_link_file, "symbolic link"),
        (_open_folder, "written by anybody"),
        (_open_file, "written by anybody"),
        (_foreign, "another user"),
    ],
)
def test_an_entry_that_somebody_else_could_control_is_refused(checkpoint, cache, tamper, message):
    root = checkpoint()
    tamper(resolve(root, cache).file.path.parent)
    with pytest.raises(OutputError, match=message):
        resolve(root, cache)


def test_stale_temporaries_go_before_the_next_conversion_and_fresh_ones_stay(checkpoint, cache):
    root = checkpoint()
    folder = cache / content_key(root, "f16")
    folder.mkdir(parents=True)
    stale, fresh = folder / ".m.gguf.aa.tmp", folder / ".m.gguf.bb.tmp"
    for path in (stale, fresh):
        path.write_bytes(b"x")
    os.utime(stale, (time.time() - 3600,) * 2)
    resolve(root, cache)
    assert not stale.exists() and fresh.exists()


def _start(root: Path, cache: Path) -> subprocess.Popen[bytes]:
    command = ("decide", "-q", "-m", root, "--cache-dir", cache, "hello there", "--ask", "noul: Is it a greeting?")
    return subprocess.Popen(
        [sys.executable, "-m", "layactl", *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_eight_cold_starts_at_once_end_with_one_file_and_equal_answers(checkpoint, cache):
    root = checkpoint()
    starts = [_start(root, cache) for _ in range(8)]
    outputs = [start.communicate() for start in starts]
    assert [start.returncode for start in starts] == [0] * 8, [err.decode() for _, err in outputs]
    answers = [json.loads(out)["answers"] for out, _ in outputs]
    assert all(answer == answers[0] for answer in answers)
    assert len(list(cache.rglob("*.gguf"))) == 1 and not list(cache.rglob("*.tmp"))


def test_a_conversion_that_is_killed_leaves_no_model_and_the_next_start_works(checkpoint, cache):
    root = checkpoint()
    killer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\n"
            "from pathlib import Path\n"
            "from layactl.convert.cache import cached_conversion\n"
            "def stall(done, total):\n"
            "    print('writing', flush=True)\n"
            "    time.sleep(60)\n"
            "cached_conversion(Path(sys.argv[1]), 'f16', Path(sys.argv[2]), stall)\n",
            str(root),
            str(cache),
        ],
        stdout=subprocess.PIPE,
    )
    assert killer.stdout is not None
    assert killer.stdout.readline() == b"writing\n"
    killer.send_signal(signal.SIGKILL)
    killer.wait()
    killer.stdout.close()
    assert not list(cache.rglob("*.gguf")) and list(cache.rglob("*.tmp"))
    assert not resolve(root, cache).hit
    assert resolve(root, cache).hit


def test_threads_that_start_at_once_share_one_entry(checkpoint, cache):
    root = checkpoint()
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(resolve(root, cache).file.path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1


def test_a_gguf_path_never_touches_the_cache(gguf_for, cache, monkeypatch):
    monkeypatch.setenv("LAYACTL_CACHE", str(cache))
    assert resolve_model(gguf_for("tiny-english")).cached is None
    assert not cache.exists()


def test_the_default_place_follows_the_variables(monkeypatch, tmp_path):
    monkeypatch.delenv("LAYACTL_CACHE", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "layactl" / "gguf"
    monkeypatch.setenv("LAYACTL_CACHE", str(tmp_path / "mine"))
    assert default_cache_dir() == tmp_path / "mine"


def test_prune_takes_the_old_and_then_the_least_recently_used(checkpoint, cache):
    root = checkpoint()
    for outtype in ("f16", "f32"):
        resolve(root, cache, outtype)
    entries = list_entries(cache)
    os.utime(entries[0].folder, (time.time() - 1000,) * 2)
    (cache / "not-a-key").mkdir()
    entries = list_entries(cache)
    assert len(entries) == 2
    older = entries[1]
    assert choose_prunable(entries, 500, None) == [older]
    assert choose_prunable(entries, None, entries[0].nbytes) == [older]
    assert choose_prunable(entries, None, 0) == entries
    assert choose_prunable(entries, 5000, None) == []
    remove_entry(older)
    assert list_entries(cache) == entries[:1]


def test_cache_commands_list_and_prune(layactl, checkpoint, cache):
    root = checkpoint()
    path = layactl("convert", "-q", root, "--cache-dir", cache).out.strip()
    listed = json.loads(layactl("cache", "list", "--cache-dir", cache).out)
    assert Path(path).parent.name == listed["key"] and listed["name"] == root.name
    assert listed["bytes"] == Path(path).stat().st_size
    dry = layactl("cache", "prune", "--max-size", "0", "--dry-run", "--cache-dir", cache)
    assert dry.code == 0 and Path(path).exists()
    assert layactl("cache", "prune", "--cache-dir", cache).code == 2
    assert layactl("cache", "prune", "--older-than", "nonsense", "--cache-dir", cache).code == 2
    assert layactl("cache", "prune", "--max-size", "0", "--cache-dir", cache).code == 0
    assert not Path(path).exists()
