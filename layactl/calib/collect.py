"""Labelled data -> raw logits, a record a line: in order, continued where a run stopped, refusals said and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.calib.scorer import Scorer
from layactl.core import strict_json
from layactl.durable import readable_name
from layactl.engine.request import internal_error
from layactl.errors import NumericError, OutputError, RequestError, UsageError
from layactl.labelled.decisions import LabelledDecision
from layactl.labelled.gold import option_keys
from layactl.labelled.labelled_file import Labelled
from layactl.labelled.outcomes import RouterOutcomes
from layactl.labelled.split import Member
from layactl.layouts.laya import LAYA
from layactl.reporting.record_stream import record_stream, refuse_inputs

LOGITS_FORMAT = "layactl.calib-logits/1"

Record = dict[str, Any]


@dataclass
class Collected:
    """Records in the output, those of an earlier run included. before: how many were there before this run."""

    written: int = 0
    refused: int = 0
    before: int = 0


def collect(
    data: Labelled,
    scorer: Scorer,
    out: Path,
    *,
    truncation: str = "allow",
    resume: bool = False,
    tick: Callable[[Collected], None] = lambda count: None,
    log: Callable[[str], None] = lambda message: None,
) -> Collected:
    """Score every record into OUT.jsonl and say in OUT.meta.json what ran.

    log: told of every refused record. Raises OutputError, UsageError (--resume of another run).
    """
    meta = {
        "format": LOGITS_FORMAT,
        "data": {"path": readable_name(data.path), "sha256": data.sha256, "kind": data.kind},
        "options": {"truncation": truncation},
        "engine": scorer.engine,
        "identity": scorer.identity,
    }
    count, ids = Collected(), []
    # As a line spells it.
    engine = strict_json.loads_strict(strict_json.dumps(scorer.engine))

    def earlier(record: Record) -> None:
        ids.append(record.get("id"))
        if "refused" not in record and record.get("engine") != engine:
            raise OutputError(f"the record {record.get('id')!r:.60} is of another engine than this run", where=str(out))
        count.refused += "refused" in record

    with record_stream(out, meta, resume=resume, earlier=earlier) as write:
        if ids != [record.member.id for record in data.records[: len(ids)]]:
            raise OutputError("its records are not those of the data", where=str(out))
        count.written = count.before = len(ids)
        for record in data.records[count.before :]:
            line = _scored(record, scorer, truncation)
            if refused := line.get("refused"):
                count.refused += 1
                log(f"{record.member.where}: {refused['reason']}: {refused['message']}")
            write(strict_json.dumps(line).encode("utf-8") + b"\n")
            count.written += 1
            tick(count)
    return count


def check_logits_target(out: Path, inputs: Mapping[str, Path | None]) -> None:
    """The file is called NAME.jsonl, so that no two share a NAME.meta.json, and replaces nothing that is read.

    inputs: as `refuse_inputs` takes them. Raises UsageError.
    """
    if out.suffix != ".jsonl":
        raise UsageError("the name must end in .jsonl", where=str(out))
    refuse_inputs(out, inputs)


def _scored(record: LabelledDecision | RouterOutcomes, scorer: Scorer, truncation: str) -> Record:
    header = _header(record.member)
    try:
        if isinstance(record, RouterOutcomes):
            return header | _router_fields(record, scorer, truncation) | {"engine": scorer.engine}
        return header | _decision_fields(record, scorer, truncation) | {"engine": scorer.engine}
    except RequestError as error:
        problem = error
    except NumericError as error:
        problem = internal_error()
        problem.message = error.message
    return header | {"refused": problem.to_json()}


def _header(member: Member) -> Record:
    optional = {"group": member.group, "split": member.stated}
    return {"id": member.id} | {key: value for key, value in optional.items() if value is not None}


def _decision_fields(record: LabelledDecision, scorer: Scorer, truncation: str) -> Record:
    if record.refusal is not None:
        raise record.refusal
    found = scorer.decide(record.state, record.questions, truncation)
    answers = {}
    for question_id, gold in record.gold.items():
        question = LAYA.parse_question(question_id, record.questions[question_id])
        answers[question_id] = {
            "type": question.type,
            "options": list(option_keys(question)),
            "logits": found[question_id].logits,
            "temperature": found[question_id].temperature,
            "gold": gold.to_json(),
        }
    # Tells a state that is in both splits without keeping anybody's text.
    state = hashlib.sha256(strict_json.dumps(record.state).encode("utf-8")).hexdigest()
    return {**record.tags, "state_sha256": state, "answers": answers}


def _router_fields(record: RouterOutcomes, scorer: Scorer, truncation: str) -> Record:
    logits = scorer.route(record.body(), truncation)
    candidates = [
        {"id": c.candidate, "card": c.card, "outcome": c.outcome, "logit": logits[c.candidate]}
        for c in record.candidates
    ]
    return {"task": record.task, "criterion": record.criterion, "candidates": candidates}
