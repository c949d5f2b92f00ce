"""Labelled files -> training examples: the very sequences the engine would read, each with its target distribution."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from layactl.checkpoint.folder import Checkpoint
from layactl.core import strict_json
from layactl.core.tokenizer import Tokenizer
from layactl.engine.decider import render
from layactl.engine.request import parse_request
from layactl.engine.spec_source import default_spec
from layactl.engine.text_side import TextSide
from layactl.errors import CheckpointError, InputError, RequestError, UsageError
from layactl.labelled.decisions import LabelledDecision
from layactl.labelled.gold import Gold
from layactl.labelled.labelled_file import Labelled, read_labelled
from layactl.labelled.outcomes import RouterOutcomes
from layactl.labelled.split import EVAL, Member
from layactl.layouts.interface import TokenSequence
from layactl.layouts.laya import LAYA
from layactl.router.render import RouterReader


@dataclass(frozen=True)
class Example:
    """One question of one record.

    ids, markers: int32; target: (K,) float32, sums to 1; label: the right option; member: the record's; text: digest of
    what the record is about (its state, or its task), the same for all its questions.
    """

    member: Member
    question: str
    ids: npt.NDArray[np.int32]
    markers: npt.NDArray[np.int32]
    type_id: int
    target: npt.NDArray[np.float32]
    label: int
    text: bytes

    @property
    def name(self) -> str:
        return f"{self.member.id}/{self.question}"


@dataclass(frozen=True)
class Split:
    """The examples of one purpose ("train", "dev"), of one file or several, in their order. cut: how many were cut."""

    purpose: str
    files: Sequence[Labelled]
    examples: Sequence[Example]
    cut: int

    @property
    def tokens(self) -> int:
        return sum(len(example.ids) for example in self.examples)

    @property
    def stated_eval(self) -> int:
        """Records that state the split that calibrations are judged by."""
        return sum(record.member.stated == EVAL for file in self.files for record in file.records)


def text_side(checkpoint: Checkpoint) -> TextSide:
    """What reads requests for a checkpoint that is no GGUF yet. Raises CheckpointError."""
    try:
        tokenizer = Tokenizer(checkpoint.tokenizer)
    except ValueError as error:
        raise CheckpointError(f"the tokenizer cannot be built: {error}", where=str(checkpoint.root)) from None
    name = checkpoint.root.name
    spec = default_spec(LAYA, name, str(checkpoint.root))
    return TextSide(name, LAYA, tokenizer, checkpoint.shape.limits, spec, ())


def read_split(purpose: str, files: Sequence[Path], text: TextSide, truncation: str) -> Split:
    """Every labelled question of every file: labelled decisions, and router outcomes as the router asks about them.

    truncation: "error" refuses an example that does not fit, "allow" cuts it as the engine does.
    Raises InputError naming the line: a question the engine would refuse, an example that does not fit, an id that
    stands in two files, no labelled question at all.
    """
    if len({path.resolve() for path in files}) < len(files):
        raise UsageError("names one file twice", where=f"the {purpose} data")
    reader = _Reader(text, truncation)
    labelled = [read_labelled(path) for path in files]
    where: dict[str, str] = {}
    examples: list[Example] = []
    for file in labelled:
        for record in file.records:
            other = where.setdefault(record.member.id, record.member.where)
            if other != record.member.where:
                raise InputError(f"id {record.member.id!r:.60} is used at {other} too", where=record.member.where)
            examples += reader.read(record)
    if not examples:
        raise InputError("holds no question with a gold answer", where=", ".join(map(str, files)))
    return Split(purpose, labelled, examples, reader.cut)


class _Reader:
    def __init__(self, text: TextSide, truncation: str) -> None:
        self._text = text
        self._router = RouterReader(text)
        self._truncation = truncation
        self.cut = 0

    def read(self, record: LabelledDecision | RouterOutcomes) -> Iterator[Example]:
        try:
            if isinstance(record, RouterOutcomes):
                yield from self._outcomes(record)
            else:
                yield from self._decision(record)
        except RequestError as error:
            may_be_cut = error.code == 422 and self._truncation == "error"
            hint = "--truncation allow cuts it as the engine would" if may_be_cut else None
            what = f"{error.message} ({error.param})" if error.param else error.message
            raise InputError(what, where=record.member.where, hint=hint) from None

    def _decision(self, record: LabelledDecision) -> Iterator[Example]:
        if record.refusal is not None:
            raise record.refusal
        text = self._text
        body = {"state": record.state, "questions": record.questions, "truncation": self._truncation}
        request = parse_request(body, LAYA, text.spec)
        digest = _digest(strict_json.dumps(record.state))
        for question, sequence in zip(request.questions, render(text, request).sequences, strict=True):
            if (gold := record.gold.get(question.id)) is not None:
                yield self._example(record.member, question.id, sequence, gold, digest)

    def _outcomes(self, record: RouterOutcomes) -> Iterator[Example]:
        request = self._router.parse(record.body() | {"truncation": self._truncation})
        digest = _digest(strict_json.dumps([record.task, record.criterion]))
        for outcome, sequence in zip(record.candidates, self._router.read(request).sequences, strict=True):
            gold = Gold(outcome.outcome, (1.0 - outcome.outcome, float(outcome.outcome)))
            yield self._example(record.member, outcome.candidate, sequence, gold, digest)

    def _example(self, member: Member, question: str, sequence: TokenSequence, gold: Gold, digest: bytes) -> Example:
        cuts = sequence.cuts
        self.cut += bool(cuts.state_dropped or cuts.instructions_dropped or cuts.options_cut)
        return Example(
            member,
            question,
            np.array(sequence.ids, dtype=np.int32),
            np.array(sequence.markers, dtype=np.int32),
            sequence.type_id,
            np.array(gold.probabilities, dtype=np.float32),
            gold.label,
            digest,
        )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()[:16]


def refuse_overlap(splits: Sequence[Split]) -> None:
    """No two splits may share a record's id, a group, a state (a task) or a token sequence: what the model is judged by
    must be new to it. Raises InputError naming both lines.
    """
    seen: dict[tuple[str, object], tuple[Split, Example]] = {}
    for split in splits:
        for example in split.examples:
            for kind, key in _marks(example):
                first, other = seen.setdefault((kind, key), (split, example))
                if first is not split:
                    raise InputError(
                        f"shares its {kind} with the {first.purpose} data ({other.member.where})",
                        where=f"{split.purpose} data, {example.member.where}",
                    )


def _marks(example: Example) -> Iterator[tuple[str, object]]:
    yield "id", example.member.id
    if example.member.group is not None:
        yield "group", example.member.group
    yield "state", example.text
    yield "token sequence", example.ids.tobytes()
