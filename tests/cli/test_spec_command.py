"""layactl spec: a spec in and out of a file, and nothing else of the file changed whatever happens on the way."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_edit import edited, u32
from gguf_edit import text as text_value
from make_llama_cpp_golden import CASES

import layactl as package
from layactl.convert.convert import convert
from layactl.engine.stamp import set_spec
from layactl.errors import OutputError
from layactl.gguf_file import names, rewrite
from layactl.gguf_file.reader import GgufFile

SPEC = {
    "spec_version": 1,
    "model_id": "atomic/router",
    "model_version": "1.0",
    "layout": "laya",
    "calibration": {"method": "temperature", "temperature": {"noul": 2.0}},
    "router": {"calibration": {"method": "platt", "a": 1.5, "b": -0.5}},
}
MIRRORS = {
    names.SPEC_VERSION: 1,
    names.SPEC_LAYOUT: "laya",
    names.SPEC_MODEL_ID: "atomic/router",
    names.SPEC_MODEL_VERSION: "1.0",
}
SPEC_KEYS = {names.DECISION_SPEC, *MIRRORS}
NOUL = {"q": {"type": "noul", "instructions": "Urgent?"}}


@pytest.fixture
def model_file(gguf_for: Callable[..., Path], tmp_path: Path) -> Path:
    """A private copy of a converted model."""
    return Path(shutil.copy(gguf_for("tiny-multilingual"), tmp_path / "model.gguf"))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a spec, as JSON or as it stands, and return the file."""

    def write(spec: Any, name: str = "spec.json") -> Path:
        path = tmp_path / name
        path.write_bytes(spec if isinstance(spec, bytes) else json.dumps(spec).encode())
        return path

    return write


def mirrors(file: GgufFile) -> dict[str, Any]:
    return {key: file.keys[key].value for key in file.keys if key in MIRRORS}


def assert_same_but_for_the_spec(before: Path, after: Path) -> None:
    """Every other key as the file spells it and in its order, the tensor table, and every byte of data."""
    old, new = GgufFile(before), GgufFile(after)
    assert [key for key in new.keys if key not in SPEC_KEYS] == [key for key in old.keys if key not in SPEC_KEYS]
    for key in old.keys:
        if key not in SPEC_KEYS:
            assert new.key_bytes(key) == old.key_bytes(key), key
    assert new.table_bytes() == old.table_bytes()
    assert before.read_bytes()[old.data_start :] == after.read_bytes()[new.data_start :]
    for name in old.tensors:
        np.testing.assert_array_equal(new.stored(name), old.stored(name))


# -- get -------------------------------------------------------------------------------------------------------------

TEXTS = {
    "compact": json.dumps(SPEC, separators=(",", ":")).encode(),
    "indented, with line ends of Windows": json.dumps(SPEC, indent=2).replace("\n", "\r\n").encode(),
    "with a line end after it": json.dumps(SPEC).encode() + b"\n",
    "non-ASCII": json.dumps(SPEC | {"note": "caf\u00e9 \u672c"}, ensure_ascii=False).encode(),
    "with a BOM": b"\xef\xbb\xbf" + json.dumps(SPEC).encode(),
}


@pytest.mark.parametrize("name", TEXTS)
def test_get_prints_the_bytes_that_set_was_given_and_a_line_end(name: str, model_file, write, layactl):
    assert layactl("spec", "set", model_file, write(TEXTS[name])).code == 0
    done = subprocess.run([sys.executable, "-m", "layactl", "spec", "get", model_file], capture_output=True, check=True)
    assert done.stdout == TEXTS[name] + b"\n"
    assert package.load(model_file).spec.sha256 == hashlib.sha256(TEXTS[name]).hexdigest()


def test_get_of_a_file_without_a_spec(model_file, cli):
    done = cli("spec", "get", model_file)
    assert (done.code, done.out) == (1, "")
    assert done.error_lines == [f"error: carries no decision.spec ({model_file})"]


# -- set -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outtype", ["f32", "f16", "q8_0"])
def test_set_in_place_changes_the_spec_keys_only(outtype: str, gguf_for, tmp_path: Path, write, cli):
    before = gguf_for("tiny-multilingual", outtype)
    model_file = Path(shutil.copy(before, tmp_path / "model.gguf"))
    done = cli("spec", "set", model_file, write(SPEC))
    assert (done.code, done.out) == (0, f"{model_file}\n")
    assert done.err == f"note: spec_sha256 {hashlib.sha256(json.dumps(SPEC).encode()).hexdigest()}\n"
    assert_same_but_for_the_spec(before, model_file)
    assert mirrors(GgufFile(model_file)) == MIRRORS
    assert list(GgufFile(model_file).keys)[-5:] == [names.DECISION_SPEC, *MIRRORS]


def test_set_with_o_writes_a_new_file_and_leaves_the_old(model_file, write, tmp_path: Path, cli):
    before, out = model_file.read_bytes(), tmp_path / "out.gguf"
    assert cli("spec", "set", model_file, write(SPEC), "-o", out).out == f"{out}\n"
    assert model_file.read_bytes() == before
    assert_same_but_for_the_spec(model_file, out)
    cli("spec", "set", model_file, write(SPEC))
    assert model_file.read_bytes() == out.read_bytes()


def test_a_stamped_model_computes_what_it_did_and_answers_by_its_spec(model_file, write, cli):
    before = package.load(model_file).decide("Billed twice", NOUL, debug=True)["answers"]["q"]["debug"]
    cli("spec", "set", model_file, write(SPEC))
    response = package.load(model_file).decide("Billed twice", NOUL, debug=True)
    after = response["answers"]["q"]["debug"]
    assert after["logits"] == before["logits"]
    assert (before["temperature"], after["temperature"]) == (1.0, 2.0)
    assert response["runtime"]["spec_sha256"] == hashlib.sha256(json.dumps(SPEC).encode()).hexdigest()
    assert response["runtime"]["calibration"].startswith("cal-")


def test_setting_twice_is_setting_once(model_file, write, cli):
    cli("spec", "set", model_file, write(SPEC))
    once = model_file.read_bytes()
    cli("spec", "set", model_file, write(SPEC))
    assert model_file.read_bytes() == once


def test_a_second_spec_takes_the_place_of_the_first_and_stale_mirrors_go(model_file, write, cli):
    cli("spec", "set", model_file, write(SPEC))
    places = list(GgufFile(model_file).keys)
    cli("spec", "set", model_file, write(SPEC | {"model_version": "2.0"}))
    assert list(GgufFile(model_file).keys) == places
    assert mirrors(GgufFile(model_file)) == MIRRORS | {names.SPEC_MODEL_VERSION: "2.0"}
    cli("spec", "set", model_file, write({"spec_version": 1, "layout": "laya"}))
    assert mirrors(GgufFile(model_file)) == {names.SPEC_VERSION: 1, names.SPEC_LAYOUT: "laya"}


def test_a_spec_without_a_model_id_survives_a_rename_and_o(model_file, write, tmp_path: Path, cli):
    out = tmp_path / "another name.gguf"
    assert cli("spec", "set", model_file, write({"spec_version": 1, "layout": "laya"}), "-o", out).code == 0
    assert package.load(out).spec.model_id == "another name"
    renamed = out.rename(tmp_path / "third.name.gguf")
    assert package.load(renamed).spec.model_id == "third.name"
    assert cli("spec", "verify", renamed).code == 0


def test_set_repairs_a_file_whose_spec_is_broken(model_file, write, tmp_path: Path, cli):
    broken = edited(model_file, tmp_path / "broken.gguf", keys={names.DECISION_SPEC: text_value("{")})
    assert cli("spec", "verify", broken).code == 1
    assert cli("spec", "set", broken, write(SPEC)).code == 0
    assert cli("spec", "verify", broken).code == 0


def test_a_calibration_in_the_spec_replaces_what_the_file_ships_and_without_one_it_stays(
    gguf_for, tmp_path, write, cli
):
    path = tmp_path / "english.gguf"
    cli("spec", "set", gguf_for("tiny-english"), write({"spec_version": 1, "layout": "laya"}), "-o", path)
    assert package.load(path).spec.calibration == package.load(gguf_for("tiny-english")).spec.calibration
    cli("spec", "set", path, write({"spec_version": 1, "layout": "laya", "calibration": None}))
    assert not package.load(path).spec.calibration.calibrated


@pytest.mark.parametrize("case", ["stock-english", "stock-multilingual"])
def test_a_file_of_the_other_dialect_takes_a_spec_too(case: str, write, tmp_path: Path, cli):
    checkpoint = CASES[case].write(tmp_path)
    before, out = tmp_path / "before.gguf", tmp_path / "after.gguf"
    convert(checkpoint, before, outtype="f32", dialect="llama.cpp")
    assert cli("spec", "set", before, write(SPEC), "-o", out).code == 0
    assert_same_but_for_the_spec(before, out)
    assert cli("spec", "verify", out).code == 0
    plain, stamped = package.load(before), package.load(out)
    assert stamped.spec.router.platt == (1.5, -0.5)
    assert stamped.tokenizer.control_texts == plain.tokenizer.control_texts
    # The tokens that user text may not place are told by the file's token types, in either dialect.
    convert(checkpoint, tmp_path / "laya.gguf", outtype="f32")
    assert package.load(tmp_path / "laya.gguf").tokenizer.control_texts == plain.tokenizer.control_texts


def test_the_file_keeps_its_permissions(model_file, write, cli):
    model_file.chmod(0o640)
    cli("spec", "set", model_file, write(SPEC))
    assert stat.S_IMODE(model_file.stat().st_mode) == 0o640


# -- set that fails --------------------------------------------------------------------------------------------------

UNUSABLE = {
    "a bad spec": (b'{"spec_version": 2}', "spec_version is 2"),
    "no JSON": (b"{", "not valid JSON"),
    "no text": (b"\xff\xfe", "is not UTF-8"),
    "a bare calibration": (b'{"temperature": 1.3}', "spec_version is missing"),
    "another layout": (b'{"spec_version": 1, "layout": "clef"}', "layout is clef"),
    "over 1 MiB": (b" " * (2**20 + 1), "is larger than"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_refused_set_leaves_the_file_as_it_was(name: str, model_file, write, tmp_path: Path, cli):
    data, message = UNUSABLE[name]
    before = model_file.read_bytes()
    done = cli("spec", "set", model_file, write(data))
    assert (done.code, done.out, len(done.error_lines)) == (1, "", 1)
    assert message in done.error_lines[0]
    assert str(tmp_path / "spec.json") in done.error_lines[0]
    assert model_file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "spec.json"]


def test_set_needs_its_files(model_file, write, tmp_path: Path, cli):
    assert "no such file" in cli("spec", "set", tmp_path / "x.gguf", write(SPEC)).err
    assert "cannot be read" in cli("spec", "set", model_file, tmp_path / "x.json").err
    assert "cannot be read" in cli("spec", "set", model_file, tmp_path).err
    assert "its folder does not exist" in cli("spec", "set", model_file, write(SPEC), "-o", tmp_path / "x" / "y").err
    assert "it is a folder" in cli("spec", "set", model_file, write(SPEC), "-o", tmp_path).err
    assert "is not a GGUF file" in cli("spec", "set", write(b"not a GGUF", "text.gguf"), write(SPEC)).err


def test_o_is_never_the_input(model_file, write, tmp_path: Path, cli):
    before = model_file.read_bytes()
    (tmp_path / "hard.gguf").hardlink_to(model_file)
    for out in (model_file, tmp_path / "hard.gguf", tmp_path / "." / "model.gguf"):
        done = cli("spec", "set", model_file, write(SPEC), "-o", out)
        assert done.code == 1
        assert "is the input itself" in done.error_lines[0]
    assert model_file.read_bytes() == before


def test_a_full_disk_leaves_the_file_as_it_was(model_file, write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = model_file.read_bytes()

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rewrite, "_copy_rest", full)
    with pytest.raises(OutputError, match="No space left"):
        set_spec(model_file, write(SPEC), None)
    assert model_file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "spec.json"]


@pytest.mark.parametrize("moment", ["_copy_rest", "sync"])
def test_a_killed_set_leaves_the_file_as_it_was(moment: str, model_file, write):
    """Killed with the header written, and with everything written but the name."""
    before = model_file.read_bytes()
    module = "layactl.gguf_file.rewrite" if moment == "_copy_rest" else "layactl.durable"
    code = f"""
import os, signal, sys
from pathlib import Path
import {module} as module
module.{moment} = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
from layactl.engine.stamp import set_spec
set_spec(Path(sys.argv[1]), Path(sys.argv[2]), None)
"""
    done = subprocess.run([sys.executable, "-c", code, model_file, write(SPEC)], capture_output=True)
    assert done.returncode == -9, done.stderr
    assert model_file.read_bytes() == before
    package.load(model_file)


def test_data_reaches_the_new_file_where_the_kernel_cannot_hand_it_over(model_file, write, gguf_for, monkeypatch):
    def refuse(*arguments: Any) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    set_spec(model_file, write(SPEC), None)
    assert_same_but_for_the_spec(gguf_for("tiny-multilingual"), model_file)


# -- verify ----------------------------------------------------------------------------------------------------------


def test_verify_says_what_a_sound_file_carries(model_file, write, cli):
    cli("spec", "set", model_file, write(SPEC))
    sha256 = hashlib.sha256(json.dumps(SPEC).encode()).hexdigest()
    for more in ([], [write(SPEC)], [write(json.dumps(SPEC).encode() + b"\n", "from get.json")]):
        done = cli("spec", "verify", model_file, *more)
        assert (done.code, done.out, done.err) == (0, f"ok  laya  atomic/router  spec_sha256 {sha256}\n", "")


def test_verify_against_another_spec_exits_with_2(model_file, write, cli):
    cli("spec", "set", model_file, write(SPEC))
    for other in (SPEC | {"model_version": "2"}, json.dumps(SPEC, indent=1).encode()):
        file = write(other, "other.json")
        done = cli("spec", "verify", model_file, file)
        assert (done.code, done.out) == (2, f"{model_file} carries another spec than {file}\n")


WRONG_MIRRORS = {
    "version": ({names.SPEC_VERSION: u32(2)}, names.SPEC_VERSION),
    "version as text": ({names.SPEC_VERSION: text_value("1")}, names.SPEC_VERSION),
    "layout": ({names.SPEC_LAYOUT: text_value("clef")}, names.SPEC_LAYOUT),
    "layout as a number": ({names.SPEC_LAYOUT: u32(1)}, names.SPEC_LAYOUT),
    "model_id": ({names.SPEC_MODEL_ID: text_value("other")}, names.SPEC_MODEL_ID),
    "model_version": ({names.SPEC_MODEL_VERSION: text_value("")}, names.SPEC_MODEL_VERSION),
    "model_version that the spec does not state": (
        {names.DECISION_SPEC: text_value('{"spec_version": 1, "layout": "laya", "model_id": "atomic/router"}')},
        names.SPEC_MODEL_VERSION,
    ),
}


@pytest.mark.parametrize("name", WRONG_MIRRORS)
def test_a_mirror_that_disagrees_is_an_error_for_verify_and_for_loading(name: str, model_file, write, tmp_path, cli):
    changes, key = WRONG_MIRRORS[name]
    cli("spec", "set", model_file, write(SPEC))
    wrong = edited(model_file, tmp_path / "wrong.gguf", keys=changes)
    for command in (["spec", "verify", wrong], ["decide", "-m", wrong, "x", "--ask", "noul: Urgent?"]):
        done = cli(*command)
        assert (done.code, done.out, len(done.error_lines)) == (1, "", 1)
        assert key in done.error_lines[0]


@pytest.mark.parametrize("key", MIRRORS)
def test_a_mirror_may_be_absent(key: str, model_file, write, tmp_path: Path, cli):
    cli("spec", "set", model_file, write(SPEC))
    assert cli("spec", "verify", edited(model_file, tmp_path / "less.gguf", keys={key: None})).code == 0


def test_verify_of_a_file_without_a_spec(model_file, cli):
    done = cli("spec", "verify", model_file)
    assert done.error_lines == [f"error: carries no decision.spec ({model_file})"]


# -- which spec is in force ------------------------------------------------------------------------------------------


def test_a_spec_file_replaces_the_files_own_as_a_whole(model_file, write, cli):
    cli("spec", "set", model_file, write(SPEC))
    other = write({"spec_version": 1, "layout": "laya", "confidence": "max_p"}, "other.json")
    spec = package.load(model_file, spec=other).spec
    assert (spec.source, spec.confidence, spec.router.platt, spec.model_id) == ("file", "max_p", None, "model")
    assert package.load(model_file).spec.source == "gguf"


def test_a_spec_file_is_in_force_where_the_files_own_is_broken(model_file, write, tmp_path: Path, cli):
    broken = edited(model_file, tmp_path / "broken.gguf", keys={names.DECISION_SPEC: text_value("{")})
    assert package.load(broken, spec=write(SPEC)).spec.model_id == "atomic/router"


def test_an_unstamped_file_has_a_default_spec(model_file):
    spec = package.load(model_file).spec
    assert (spec.source, spec.layout, spec.model_id) == ("default", "laya", "model")


def test_a_bare_calibration_is_in_force_when_it_is_given(model_file, write, cli):
    sidecar = write({"temperature": 1.7})
    done = cli("decide", "-q", "-m", model_file, "--spec", sidecar, "x", "--ask", "noul: Urgent?", "--debug")
    response = json.loads(done.out)
    assert response["answers"]["q1"]["debug"]["temperature"] == 1.7
    assert response["runtime"]["spec_sha256"] == hashlib.sha256(sidecar.read_bytes()).hexdigest()


def test_a_refused_spec_file_is_one_error_line(model_file, write, cli):
    file = write(SPEC | {"confidence": "entropy"})
    done = cli("decide", "-m", model_file, "--spec", file, "x", "--ask", "noul: Urgent?")
    assert (done.code, done.out) == (1, "")
    assert done.error_lines == [f"error: confidence is 'entropy'; one of: laya, typesafe, max_p ({file})"]


def test_inspect_shows_the_stamped_spec(layactl: Callable[..., Any], model_file: Path, write: Callable[..., Path]):
    assert json.loads(layactl("gguf", "inspect", "--json", model_file).out)["spec"] is None
    spec = write(SPEC)
    set_spec(model_file, spec)
    shown = json.loads(layactl("gguf", "inspect", "--json", model_file).out)["spec"]
    assert shown == {"sha256": hashlib.sha256(spec.read_bytes()).hexdigest(), "content": SPEC}
