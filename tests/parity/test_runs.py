"""Run files: records in order, continued, sharded, by several processes, and read back with suspicion."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from layactl.errors import InputError, OutputError, UsageError
from layactl.parity import run_file
from layactl.parity.answering import EngineSide, ServerSide
from layactl.parity.items import load_items, parse_items
from layactl.parity.run import run
from layactl.parity.run_file import merge_runs, read_run
from layactl.reporting.record_stream import sidecar

from .run_maker import items


@pytest.fixture
def item_file(tmp_path: Path) -> Path:
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in items()), encoding="utf-8")
    return path


@pytest.fixture
def side(gguf_of: Callable[[str, str], Path]) -> EngineSide:
    return EngineSide(gguf_of("tiny-english", "f32"), "tiny", threads=1, kernels="reference")


def answer(side: EngineSide, item_file: Path, out: Path, **options: Any) -> bytes:
    shard = options.pop("shard", (0, 1))
    chosen = load_items(item_file, shard=shard)
    run(side, chosen, out, side.identity(chosen), **options)
    return out.read_bytes()


def test_a_run_holds_one_record_an_item_in_order_and_says_what_ran(side: EngineSide, item_file: Path, tmp_path: Path):
    answer(side, item_file, tmp_path / "run.jsonl")
    found = read_run(tmp_path / "run.jsonl")
    assert list(found.items) == [item["id"] for item in items()]
    assert found.items["null"].refusal is not None and found.items["null"].state == "null"
    assert found.items["turns"].state == "list"
    identity = found.identity
    assert identity["corpus"] == {"sha256": load_items(item_file).sha256, "subset": "all", "items": len(items())}
    assert (identity["side"], identity["kernels"], identity["activations"]) == ("engine", "reference", "f32")
    assert (identity["model"]["weights"], identity["model"]["dialect"]) == ("F32", "laya")
    assert len(identity["model"]["sha256"]) == len(identity["source_manifest"]) == 64
    assert {"layactl", "torch", "tokenizers", "python"} <= identity["versions"].keys()
    assert {"cpu", "instruction_sets", "cpus"} <= identity["host"].keys()


def test_several_processes_write_the_bytes_of_one(side: EngineSide, item_file: Path, tmp_path: Path):
    alone = answer(side, item_file, tmp_path / "alone.jsonl")
    assert answer(side, item_file, tmp_path / "two.jsonl", jobs=2) == alone


def test_a_run_through_a_server_has_the_bytes_of_one_through_the_engine(
    side: EngineSide, item_file: Path, tmp_path: Path
):
    alone = answer(side, item_file, tmp_path / "alone.jsonl")
    served = ServerSide(side)
    chosen = load_items(item_file)
    run(served, chosen, tmp_path / "served.jsonl", served.identity(chosen))
    assert (tmp_path / "served.jsonl").read_bytes() == alone
    assert read_run(tmp_path / "served.jsonl").identity["via"] == "server"


def test_a_stopped_run_goes_on_to_the_same_bytes(side: EngineSide, item_file: Path, tmp_path: Path):
    out = tmp_path / "run.jsonl"
    whole = answer(side, item_file, out)
    lines = whole.splitlines(keepends=True)
    for torn in (b"".join(lines[:3]), b"".join(lines[:3]) + lines[3][:50], b""):
        out.write_bytes(torn)
        assert answer(side, item_file, out, resume=True) == whole


def test_a_run_of_something_else_is_not_continued(
    side: EngineSide, item_file: Path, tmp_path: Path, gguf_of: Callable[[str, str], Path]
):
    out = tmp_path / "run.jsonl"
    before = answer(side, item_file, out)
    other = EngineSide(gguf_of("tiny-english", "f16"), "tiny", threads=1)
    with pytest.raises(UsageError, match="different identity"):
        answer(other, item_file, out, resume=True)
    assert out.read_bytes() == before
    with pytest.raises(UsageError, match=r"with different identity\.threads: 1, now 2 "):
        answer(replace(side, threads=2), item_file, out, resume=True)
    out.write_bytes(b"".join(reversed(before.splitlines(keepends=True))))
    with pytest.raises(OutputError, match="not those of the first items"):
        answer(side, item_file, out, resume=True)


def test_a_model_that_cannot_be_opened_leaves_an_earlier_run_alone(side: EngineSide, item_file: Path, tmp_path: Path):
    out = tmp_path / "run.jsonl"
    before = answer(side, item_file, out)
    chosen = load_items(item_file)
    broken = EngineSide(tmp_path / "none.gguf", "tiny")
    for jobs in (1, 2):
        with pytest.raises(Exception, match="no such file"):
            run(broken, chosen, out, side.identity(chosen), jobs=jobs)
        assert out.read_bytes() == before


def test_shards_merge_into_the_whole_run(side: EngineSide, item_file: Path, tmp_path: Path):
    whole = answer(side, item_file, tmp_path / "whole.jsonl")
    shards = []
    for n in range(3):
        shards.append(tmp_path / f"shard{n}.jsonl")
        answer(side, item_file, shards[-1], shard=(n, 3))
    merged = tmp_path / "merged.jsonl"
    assert merge_runs(shards, merged) == len(items())
    assert sorted(merged.read_bytes().splitlines()) == sorted(whole.splitlines())
    assert read_run(merged).identity == read_run(tmp_path / "whole.jsonl").identity
    with pytest.raises(InputError, match="hold 5 of 7 items"):
        merge_runs(shards[:2], tmp_path / "part.jsonl")
    with pytest.raises(InputError, match="is in an earlier shard"):
        merge_runs([*shards, shards[0]], tmp_path / "part.jsonl")
    for clash in (shards[0], *(tmp_path / name for name in ("shard1.jsonl", "merged"))):
        with pytest.raises(UsageError, match=r"is shard [12] itself|must end in \.jsonl"):
            merge_runs(shards, clash)
    meta = json.loads(sidecar(shards[1]).read_text())
    meta["identity"]["kernels"] = "other"
    sidecar(shards[1]).write_text(json.dumps(meta))
    with pytest.raises(InputError, match="shard of another run: its kernels differs"):
        merge_runs(shards, tmp_path / "part.jsonl")
    assert not (tmp_path / "part.jsonl").exists()


# -- items ------------------------------------------------------------------------------------------------------------


BAD_ITEMS = {
    "no JSON": (b"{", "is no item"),
    "a list": (b"[]", "is no item"),
    "no state": (b'{"id": "a", "questions": {}}', "is no item"),
    "questions as a list": (b'{"id": "a", "state": 1, "questions": []}', "is no item"),
    "a number as the id": (b'{"id": 1, "state": 1, "questions": {}}', "must be text"),
    "an empty id": (b'{"id": "", "state": 1, "questions": {}}', "must be text"),
    "NaN": (b'{"id": "a", "state": NaN, "questions": {}}', "is no item"),
    "a blank line": (b"", "is no item"),
    "two in a line": (
        b'{"id": "a", "state": 1, "questions": {}}\r{"id": "b", "state": 1, "questions": {}}',
        "is no item",
    ),
}


@pytest.mark.parametrize("name", BAD_ITEMS)
def test_a_line_that_is_no_item_is_named(name: str):
    line, fragment = BAD_ITEMS[name]
    with pytest.raises(InputError) as error:
        parse_items(b'{"id": "x", "state": 1, "questions": {}}\n' + line + b"\n", "items.jsonl")
    assert fragment in error.value.message
    assert error.value.where == "items.jsonl, line 2"


def test_only_a_line_feed_ends_a_line():
    line = b'{"id": "%d",\r"state":\r1, "questions": {}}\r\n'
    assert [item["id"] for item in parse_items(line % 1 + line % 2, "items.jsonl")] == ["1", "2"]


def test_no_items_are_no_run(item_file: Path, tmp_path: Path):
    (tmp_path / "empty.jsonl").write_bytes(b"")
    for path, options in ((tmp_path / "empty.jsonl", {}), (item_file, {"shard": (7, 8)})):
        with pytest.raises(UsageError, match="no items are left"):
            load_items(path, **options)


def test_an_id_is_there_once(tmp_path: Path):
    line = b'{"id": "x", "state": 1, "questions": {}}\n'
    with pytest.raises(InputError, match="'x' is there twice"):
        parse_items(line * 2, "items.jsonl")


def test_subsets_are_named_and_leave_the_hash_alone(item_file: Path):
    whole, every, some = load_items(item_file), load_items(item_file, every=3), load_items(item_file, only=["turns"])
    assert (whole.subset, every.subset) == ("all", "every 3")
    assert [item["id"] for item in every.items] == ["item_0", "item_3", "null"]
    assert [item["id"] for item in some.items] == ["turns"]
    assert len({whole.subset, every.subset, some.subset}) == 3
    assert whole.sha256 == every.sha256 == some.sha256
    with pytest.raises(UsageError, match="no item is called 'nobody'"):
        load_items(item_file, only=["nobody"])


# -- hostile run files ------------------------------------------------------------------------------------------------


BAD_RECORDS: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "is not JSON"),
    "a list": ("[]", "is not a JSON object"),
    "no id": ('{"questions": {}}', "id and state must be texts"),
    "neither questions nor refusal": ('{"id": "a"}', "not exactly one of questions, a refusal and a failure"),
    "both": ('{"id": "a", "questions": {}, "refusal": "x"}', "not exactly one of"),
    "a refusal that is no text": ('{"id": "a", "refusal": 1}', "not exactly one of"),
    "questions as a list": ('{"id": "a", "questions": []}', "not exactly one of"),
    "a question as text": ('{"id": "a", "questions": {"q": "x"}}', "questions.q. must be an object"),
    "ids as text": ('{"id": "a", "questions": {"q": {"ids": "x"}}}', "questions.q.ids must be a list of integers"),
    "a bool as an id": ('{"id": "a", "questions": {"q": {"ids": [true]}}}', "questions.q.ids must be a list"),
    "no logits": ('{"id": "a", "questions": {"q": {"ids": [1]}}}', "questions.q.logits must be a list of numbers"),
    "empty logits": ('{"id": "a", "questions": {"q": {"ids": [1], "logits": []}}}', "questions.q.logits must be"),
    "markers as floats": (
        '{"id": "a", "questions": {"q": {"ids": [1], "logits": [1], "markers": [1.5]}}}',
        "questions.q.markers must be a list of integers",
    ),
    "act logits as text": (
        '{"id": "a", "questions": {"q": {"ids": [1], "logits": [1], "act_logits": "x"}}}',
        "questions.q.act_logits must be a list of numbers",
    ),
    "an answer as a list": (
        '{"id": "a", "questions": {"q": {"ids": [1], "logits": [1], "answer": []}}}',
        "questions.q.answer must be an object",
    ),
    "too deep": ("[" * 100_000, "more than 128 nested levels"),
    "an item twice": ('{"id": "first", "questions": {}}', "the item 'first' is there twice"),
    "a type that is no text": (
        '{"id": "a", "questions": {"q": {"type": ["noul"], "ids": [1], "logits": [1]}}}',
        "questions.q.type must be text",
    ),
    "a surrogate in the id": (r'{"id": "\ud800", "questions": {}}', "unpaired surrogate"),
    "a surrogate in a key of an answer": (
        r'{"id": "a", "questions": {"q": {"ids": [1], "logits": [1], "answer": {"\udc00": 1}}}}',
        "unpaired surrogate",
    ),
    "a key twice": ('{"id": "a", "id": "b", "questions": {}}', "the key 'id' is there twice"),
    "a key twice further in": (
        '{"id": "a", "questions": {"q": {"ids": [1], "logits": [1], "answer": {"x": 1, "x": 2}}}}',
        "the key 'x' is there twice",
    ),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_a_malformed_record_is_refused_by_line_and_field(name: str, tmp_path: Path):
    line, fragment = BAD_RECORDS[name]
    path = tmp_path / "run.jsonl"
    sidecar(path).write_text('{"format": "layactl.parity-run/1", "identity": {"corpus": {}}}')
    path.write_text('{"id": "first", "questions": {}}\n' + line + "\n")
    with pytest.raises(InputError) as error:
        read_run(path)
    assert fragment in error.value.message
    assert error.value.where == f"{path}, line 2"


def test_a_torn_run_says_how_to_finish_it(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    sidecar(path).write_text('{"format": "layactl.parity-run/1", "identity": {"corpus": {}}}')
    path.write_text('{"id": "a", "questions": {}}')
    with pytest.raises(InputError, match="torn") as error:
        read_run(path)
    assert error.value.hint is not None and "--resume" in error.value.hint


BAD_SIDECARS = {
    "missing": (None, "run.meta.json is missing"),
    "no JSON": ("{", "is not JSON"),
    "too large": (" " * 2**20 + "{}", f"is larger than {2**20} bytes"),
    "a surrogate": (r'{"format": "layactl.parity-run/1", "identity": {"corpus": {}, "x": "\ud800"}}', "surrogate"),
    "a key twice": ('{"format": "layactl.parity-run/1", "identity": {"a": 1, "a": 2}}', "the key 'a' is there twice"),
    "of another format": ('{"format": "layactl-decide-run/1"}', "is not a parity run"),
    "no identity": ('{"format": "layactl.parity-run/1"}', "identity"),
    "no corpus": ('{"format": "layactl.parity-run/1", "identity": {}}', "identity.corpus"),
}


@pytest.mark.parametrize("name", BAD_SIDECARS)
def test_a_run_without_its_identity_is_refused(name: str, tmp_path: Path):
    text, fragment = BAD_SIDECARS[name]
    path = tmp_path / "run.jsonl"
    path.write_text("")
    if text is not None:
        sidecar(path).write_text(text)
    with pytest.raises(InputError) as error:
        read_run(path)
    assert fragment in error.value.message
    assert error.value.where == str(sidecar(path))


def test_a_line_of_any_length_is_refused_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_file, "_MAX_LINE_BYTES", 100)
    path = tmp_path / "run.jsonl"
    sidecar(path).write_text('{"format": "layactl.parity-run/1", "identity": {"corpus": {}}}')
    path.write_text(" " * 1000)
    with pytest.raises(InputError, match="the line is larger than 100 bytes"):
        read_run(path)


def test_lines_of_a_run_end_at_line_feeds_alone(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    sidecar(path).write_text('{"format": "layactl.parity-run/1", "identity": {"corpus": {"items": 2}}}')
    text = b'{"id": "b",\r"questions": {}}\r\n{"id": "a", "questions": {}}\n'
    path.write_bytes(text)
    assert merge_runs([path], tmp_path / "merged.jsonl") == 2
    assert sorted((tmp_path / "merged.jsonl").read_bytes().splitlines()) == sorted(text.splitlines())


PIPES: dict[str, Callable[[Path], object]] = {
    "run.jsonl": read_run,
    "run.meta.json": lambda path: read_run(path.with_name("run.jsonl")),
    "items.jsonl": load_items,
}


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path):
    for other in ("run.jsonl", "run.meta.json"):
        (tmp_path / other).write_text('{"format": "layactl.parity-run/1", "identity": {"corpus": {}}}')
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=f"{name} is not a regular file"):
        PIPES[name](tmp_path / name)


def test_a_pipe_for_a_sidecar_is_not_waited_for(side: EngineSide, item_file: Path, tmp_path: Path):
    out = tmp_path / "run.jsonl"
    answer(side, item_file, out)
    sidecar(out).unlink()
    os.mkfifo(sidecar(out))
    with pytest.raises(UsageError, match="cannot be read"):
        answer(side, item_file, out, resume=True)


# -- the processes of a run -------------------------------------------------------------------------------------------


def processes_below(pid: int) -> set[int]:
    """Every process that another one started, from /proc."""
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found |= {child, *processes_below(child)}
    return found


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "still not so"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def started(side: EngineSide, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a run on two processes over items without end, and waits for its first record (or for its processes)."""
    (tmp_path / "many.jsonl").write_text(
        "".join(json.dumps(items()[n % 5] | {"id": f"item_{n}"}) + "\n" for n in range(20_000)), encoding="utf-8"
    )
    out = tmp_path / "run.jsonl"
    opened: list[subprocess.Popen[bytes]] = []

    def start(*, answering: bool = True) -> subprocess.Popen[bytes]:
        command = ["parity", "run", "-m", side.path, "-o", out, tmp_path / "many.jsonl", "--jobs", "2", "-q"]
        opened.append(
            subprocess.Popen(
                [sys.executable, "-m", "layactl", *map(str, command)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        )
        run = opened[-1]

        def begun() -> bool:
            assert run.poll() is None, run.communicate()
            # The processes, and the one that Python itself keeps beside them.
            return out.exists() and out.stat().st_size > 0 if answering else len(processes_below(run.pid)) >= 2

        wait_for(begun)
        return run

    yield start
    for process in opened:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_the_processes_of_a_run_end_with_it(number: int, started: Callable[..., subprocess.Popen[bytes]]):
    run = started()
    children = processes_below(run.pid)
    assert len(children) >= 3
    run.send_signal(number)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    wait_for(lambda: not any(map(is_running, children)), 20)
    if number != signal.SIGKILL:
        assert errors.decode() == ("error: interrupted\n" if number == signal.SIGINT else "")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at /proc")
def test_an_interrupt_while_the_processes_start_is_one_line(started: Callable[..., subprocess.Popen[bytes]]):
    run = started(answering=False)
    # As a terminal does it: to every process of the group.
    os.killpg(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert (run.returncode, errors.decode()) == (130, "error: interrupted\n")
