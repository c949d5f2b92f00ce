"""A file of raw logits read back, checked record by record: nothing of it is believed before it has its shape."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from layactl.core import strict_json
from layactl.core.json_fields import JsonObject
from layactl.errors import InputError, UsageError
from layactl.labelled import decisions, outcomes
from layactl.labelled.decisions import TAGS
from layactl.labelled.gold import Gold, read_gold
from layactl.labelled.outcomes import parse_outcomes
from layactl.labelled.split import HELDOUT_FRACTION, Member, assign_splits, read_member
from layactl.layouts.laya import LAYA
from layactl.reporting.json_lines import read_records
from layactl.reporting.record_stream import file_sha256


@dataclass(frozen=True)
class LabelledAnswer:
    """One labelled question with its raw logits.

    options: what its options are called, in logit order; temperature: what the engine divided the logits by, None
    where the file does not say; split: "fit" or "eval"; state: a hash of what was asked about, "" where unknown.
    """

    member: Member
    question: str
    type: str
    options: tuple[str, ...]
    logits: tuple[float, ...]
    temperature: float | None
    gold: Gold
    tags: Mapping[str, str]
    state: str
    split: str = ""


@dataclass(frozen=True)
class LabelledScore:
    """One candidate of one task. logit: raw, None where the file has none; outcome: 1 where it met the criterion;
    split: "fit" or "eval"; state: a hash of the task and its criterion.
    """

    member: Member
    candidate: str
    card: dict[str, Any]
    outcome: int
    logit: float | None
    split: str = ""
    state: str = ""


@dataclass(frozen=True)
class LogitsFile:
    """answers of a file of decisions, scores of a file of router outcomes: the other is empty.

    records, refused: how many lines, and how many of them only say that the request was refused;
    engines: the distinct engine blocks of the records, None for records without one;
    heldout, stated_splits: how the splits were told apart, as `read_logits` takes them; one_option: answers that were
    left out because there was nothing to choose from.
    """

    path: Path
    sha256: str
    kind: str
    answers: list[LabelledAnswer]
    scores: list[LabelledScore]
    records: int
    refused: int
    engines: list[dict[str, Any] | None]
    heldout: float = HELDOUT_FRACTION
    stated_splits: bool = True
    one_option: int = 0

    def one_engine(self) -> dict[str, Any] | None:
        """The engine all logits come from, None where the file names none. Raises InputError for more than one."""
        if len(self.engines) > 1:
            raise InputError(
                f"holds logits of {len(self.engines)} engine identities, which differ in {_difference(self.engines)}",
                where=str(self.path),
                hint="a calibration holds for the one model, spec, plan and kernels that its logits come from",
            )
        return self.engines[0] if self.engines else None

    def require_logits(self) -> None:
        """Raises InputError for router outcomes that nothing has scored yet."""
        if missing := next((score for score in self.scores if score.logit is None), None):
            raise InputError(
                "the candidates have no logits", where=missing.member.where, hint="layactl calib collect adds them"
            )

    @property
    def counts(self) -> dict[str, Any]:
        """Which file it is, and what was left out of it."""
        left_out = {"refused": self.refused, "one_option": self.one_option}
        return {"sha256": self.sha256, "records": self.records, **left_out}

    def soft(self) -> int:
        """How many answers have a distribution as gold, of which shares and certificates use the label alone."""
        return sum(answer.gold.soft for answer in self.answers)

    def odd_labels(self) -> int:
        """How many of them are labelled with another option than their most probable one."""
        golds = (answer.gold for answer in self.answers)
        return sum(gold.probabilities[gold.label] < max(gold.probabilities) for gold in golds)

    def shared_states(self) -> int:
        """How many states (of a router: tasks with their criteria) stand in both splits under different groups, which
        lets a fit see what it is judged by.
        """
        items: list[LabelledAnswer | LabelledScore] = [*self.answers, *self.scores]
        sides = [{item.state for item in items if item.split == split and item.state} for split in ("fit", "eval")]
        return len(sides[0] & sides[1])


@dataclass
class _Lines:
    answers: list[LabelledAnswer] = field(default_factory=list)
    scores: list[LabelledScore] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    engines: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    records: int = 0
    refused: int = 0
    one_option: int = 0


def read_logits(path: Path, *, heldout: float = HELDOUT_FRACTION, stated_splits: bool = True) -> LogitsFile:
    """LOGITS.jsonl as `calib collect` writes it, or router outcomes with logits from elsewhere.

    heldout: fraction of the records without a stated split that are held out; stated_splits: False hashes all of them.
    Raises InputError naming the line and the field.
    """
    seen: dict[str, str] = {}
    lines = _Lines()
    for fields in read_records(path):
        lines.records += 1
        if "refused" in fields.values:
            read_member(fields, seen)
            lines.refused += 1
        elif "candidates" in fields.values:
            _read_scores(fields, seen, lines)
        else:
            _read_answers(fields, seen, lines)
        if lines.answers and lines.scores:
            raise InputError("is a record of another kind than those before it", where=fields.where)
    if not lines.answers and not lines.scores:
        idle = f" but to {lines.one_option} questions of one option" if lines.one_option else ""
        raise InputError(f"holds no labelled answers{idle}", where=str(path))
    kind = outcomes.KIND if lines.scores else decisions.KIND
    splits = assign_splits(kind, lines.members, heldout, stated=stated_splits)
    split_of = {member.id: split for member, split in zip(lines.members, splits, strict=True)}
    return LogitsFile(
        path,
        file_sha256(path),
        kind,
        [replace(answer, split=split_of[answer.member.id]) for answer in lines.answers],
        [replace(score, split=split_of[score.member.id]) for score in lines.scores],
        lines.records,
        lines.refused,
        list(lines.engines.values()),
        heldout,
        stated_splits,
        lines.one_option,
    )


def check_heldout(fraction: float) -> float:
    """Raises UsageError."""
    if not 0.0 <= fraction <= 1.0:
        raise UsageError(f"must be between 0 and 1, not {fraction:g}", where="--heldout-frac")
    return fraction


def _engine(fields: JsonObject, lines: _Lines) -> None:
    block = None if fields.get("engine") is None else fields.object("engine").values
    lines.engines.setdefault(strict_json.dumps(block), block)


def _read_scores(fields: JsonObject, seen: dict[str, str], lines: _Lines) -> None:
    record = parse_outcomes(fields, seen)
    lines.members.append(record.member)
    if record.candidates[0].logit is not None:
        _engine(fields, lines)
    state = hashlib.sha256(strict_json.dumps([record.task, record.criterion]).encode("utf-8")).hexdigest()
    lines.scores += [
        LabelledScore(record.member, c.candidate, c.card, c.outcome, c.logit, state=state) for c in record.candidates
    ]


def _read_answers(fields: JsonObject, seen: dict[str, str], lines: _Lines) -> None:
    if fields.get("answers") is None and fields.get("questions") is not None:
        raise InputError("is labelled data without logits", where=fields.where, hint="layactl calib collect adds them")
    member = read_member(fields, seen)
    lines.members.append(member)
    tags = {key: fields.text(key) for key in TAGS if fields.get(key) is not None}
    state = fields.text("state_sha256", "")
    answers = fields.object("answers")
    _engine(fields, lines)
    for question_id in answers.values:
        answer = _answer(answers.object(question_id), member, question_id, tags, state)
        if len(answer.options) > 1:
            lines.answers.append(answer)
        else:
            # Right with confidence 1 whatever the model: it would flatter every number.
            lines.one_option += 1


def _answer(
    fields: JsonObject, member: Member, question_id: str, tags: Mapping[str, str], state: str
) -> LabelledAnswer:
    question_type = fields.text("type")
    if question_type not in LAYA.question_types:
        raise fields.error("type", f"is {question_type!r:.40}; one of: {', '.join(LAYA.question_types)}")
    options = fields.items("options")
    if not options or not all(isinstance(option, str) for option in options) or len(set(options)) < len(options):
        raise fields.error("options", "must be distinct texts, at least one")
    if question_type == "noul" and len(options) != 2:
        raise fields.error("options", f"of a noul must be two, not {len(options)}")
    logits = [fields.as_number("logits", value) for value in fields.items("logits")]
    if len(logits) != len(options):
        raise fields.error("logits", f"holds {len(logits)} numbers for {len(options)} options")
    temperature = None if fields.get("temperature") is None else fields.number("temperature")
    if temperature is not None and temperature <= 0:
        raise fields.error("temperature", f"must be positive, not {temperature:g}")
    gold = read_gold(fields.object("gold"), len(options))
    return LabelledAnswer(
        member, question_id, question_type, tuple(options), tuple(logits), temperature, gold, tags, state
    )


def _difference(engines: list[dict[str, Any] | None]) -> str:
    """The fields that are not the same in all of them."""
    blocks = [engine or {} for engine in engines]
    if not all(engines):
        return "whether they name one"
    names = dict.fromkeys(name for block in blocks for name in block)
    return ", ".join(name for name in names if len({strict_json.dumps(block.get(name)) for block in blocks}) > 1)[:200]
