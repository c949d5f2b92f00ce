"""A run file read back, checked record by record: nothing of it is believed before it has its shape."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.core import strict_json
from layactl.core.json_fields import JsonObject
from layactl.durable import read_limited, replacing
from layactl.errors import InputError, RequestError
from layactl.parity.run import RUN_FORMAT, check_run_target, run_meta
from layactl.reporting.json_lines import read_lines
from layactl.reporting.record_stream import sidecar

_MAX_META_BYTES = 2**20
_MAX_LINE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class QuestionRecord:
    """One question of a run. markers: None where the run has none; answer: None where it gave none.

    Numbers may be anything a float can be: whether they are finite is for the gate to say.
    """

    type: str
    ids: list[int]
    markers: list[int] | None
    logits: list[float]
    act_logits: list[float] | None
    answer: dict[str, Any] | None


@dataclass(frozen=True)
class ItemRecord:
    """One item of a run: its questions, or why it was refused, or why the side failed at it.

    state: "null", "list" or "other".
    """

    id: str
    state: str
    questions: dict[str, QuestionRecord]
    refusal: str | None
    failure: str | None


@dataclass(frozen=True)
class Run:
    """identity: what ran (reporting.identity); items: records by item id, in file order."""

    path: Path
    identity: dict[str, Any]
    items: Mapping[str, ItemRecord]


def read_run(path: Path) -> Run:
    """RUN.jsonl and its RUN.meta.json. Raises InputError naming the file, the line and the field."""
    identity = _identity(sidecar(path))
    items: dict[str, ItemRecord] = {}
    for where, line in read_lines(path, _MAX_LINE_BYTES):
        if not line.endswith(b"\n"):
            raise InputError("the last line is torn", where=where, hint="--resume finishes such a run")
        item = _item(_object(line, where), where)
        if item.id in items:
            raise InputError(f"the item {item.id!r:.60} is there twice", where=where)
        items[item.id] = item
    return Run(path, identity, items)


def run_files(runs: Mapping[str, Path]) -> dict[str, Path]:
    """{what a run is: its path} -> the same with the sidecars, as `refuse_input` takes them."""
    return {**runs, **{f"the identity of {what}": sidecar(path) for what, path in runs.items()}}


def merge_runs(paths: list[Path], out: Path) -> int:
    """Shards of one run -> the whole run, in an order that does not depend on theirs; returns the number of items.

    Every shard must have the same identity, and together they must hold every item.
    Raises UsageError (the output is one of the shards), InputError, OutputError.
    """
    check_run_target(out, run_files({f"shard {n}": path for n, path in enumerate(paths, start=1)}))
    runs = [read_run(path) for path in paths]
    identity = runs[0].identity
    for run in runs[1:]:
        for field in identity | run.identity:
            if identity.get(field) != run.identity.get(field):
                raise InputError(f"is a shard of another run: its {field} differs", where=str(run.path))
    lines: dict[str, bytes] = {}
    for run in runs:
        with run.path.open("rb") as handle:
            for item_id, line in zip(run.items, handle, strict=True):
                if item_id in lines:
                    raise InputError(f"the item {item_id!r:.60} is in an earlier shard", where=str(run.path))
                lines[item_id] = line
    if len(lines) != (total := identity["corpus"].get("items")):
        raise InputError(f"the shards hold {len(lines)} of {total} items", where=str(paths[0]))
    with replacing(out) as temporary:
        temporary.write_bytes(b"".join(lines[item_id] for item_id in sorted(lines)))
    with replacing(sidecar(out)) as temporary:
        temporary.write_text(json.dumps(run_meta(identity), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return len(lines)


def _identity(path: Path) -> dict[str, Any]:
    try:
        data = read_limited(path, _MAX_META_BYTES)
    except InputError as error:
        raise InputError(f"the identity of the run cannot be read: {error.message}", where=str(path)) from None
    meta = _object(data, str(path))
    fields = JsonObject(meta, str(path), InputError)
    if meta.get("format") != RUN_FORMAT:
        raise InputError(f"is not a parity run: its format is {meta.get('format')!r:.60}", where=str(path))
    identity = fields.object("identity")
    identity.object("corpus")
    return identity.values


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
        strict_json.check_text(text)
        # Not the strict reader: a NaN is for the gate to fail.
        value = json.loads(text, object_pairs_hook=strict_json.unique_keys)
    except RequestError as error:
        raise InputError(error.message, where=where) from None
    except ValueError as error:
        raise InputError(f"is not JSON: {error!s:.100}", where=where) from None
    if not isinstance(value, dict):
        raise InputError("is not a JSON object", where=where)
    return value


def _item(record: dict[str, Any], where: str) -> ItemRecord:
    item_id, state = record.get("id"), record.get("state", "other")
    if not isinstance(item_id, str) or not isinstance(state, str):
        raise InputError("id and state must be texts", where=where)
    found = [key for key in ("questions", "refusal", "failure") if key in record]
    if len(found) != 1 or not isinstance(record[found[0]], dict if found == ["questions"] else str):
        raise InputError("holds not exactly one of questions, a refusal and a failure", where=where)
    questions = {key: _question(key, value, where) for key, value in record.get("questions", {}).items()}
    return ItemRecord(item_id, state, questions, record.get("refusal"), record.get("failure"))


def _question(name: str, value: Any, where: str) -> QuestionRecord:
    def refuse(field: str, what: str) -> InputError:
        return InputError(f"questions.{name:.60}.{field} {what}", where=where)

    if not isinstance(value, dict):
        raise refuse("", "must be an object")
    ids, markers, answer = value.get("ids"), value.get("markers"), value.get("answer")
    logits, act_logits = value.get("logits"), value.get("act_logits")
    if not isinstance(ids, list) or not _is_list(ids, int):
        raise refuse("ids", "must be a list of integers")
    if markers is not None and not _is_list(markers, int):
        raise refuse("markers", "must be a list of integers")
    if not isinstance(logits, list) or not _is_list(logits, (int, float)) or not logits:
        raise refuse("logits", "must be a list of numbers")
    if act_logits is not None and (not _is_list(act_logits, (int, float)) or not act_logits):
        raise refuse("act_logits", "must be a list of numbers")
    if answer is not None and not isinstance(answer, dict):
        raise refuse("answer", "must be an object")
    if not isinstance(value.get("type", ""), str):
        raise refuse("type", "must be text")
    numbers = None if act_logits is None else list(map(to_float, act_logits))
    return QuestionRecord(str(value.get("type")), ids, markers, list(map(to_float, logits)), numbers, answer)


def _is_list(value: Any, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, list) and all(isinstance(item, kinds) and not isinstance(item, bool) for item in value)


def to_float(value: int | float) -> float:
    """JSON numbers as floats; an integer beyond them is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
