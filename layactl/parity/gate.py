"""Two runs and a tier -> a verdict that says why (specification, Backend parity tiers, Gate)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from layactl.durable import readable_name
from layactl.parity.difference import OPTIONAL_FIELDS, Difference, differ, within
from layactl.parity.fit import mismatches, pick_row
from layactl.parity.run_file import ItemRecord, QuestionRecord, Run
from layactl.parity.tiers import EXACT, Tier, Tiers

GATE_FORMAT = "layactl.parity-gate/1"
_LISTED_PER_RULE = 20


@dataclass(frozen=True)
class Failure:
    """One broken rule. value, limit: where the rule has a number."""

    rule: str
    what: str
    item: str | None = None
    question: str | None = None
    value: float | None = None


@dataclass
class Bound:
    """A statistic and the limit a row sets for it; item, question: where the largest value was seen.

    below: the value must stay below the limit, instead of at most at it.
    margin: value / limit, so 1 is at the limit and 3,000 is no matter of rounding.
    """

    name: str
    limit: float
    value: float = 0.0
    item: str | None = None
    question: str | None = None
    below: bool = False

    @property
    def passed(self) -> bool:
        return self.allows(self.value)

    def allows(self, value: float) -> bool:
        return value < self.limit or value == 0 if self.below else within(value, self.limit)

    @property
    def margin(self) -> float:
        if self.limit:
            return self.value / self.limit
        return 0.0 if self.value == 0 else math.inf

    def see(self, value: float, item: str | None = None, question: str | None = None) -> None:
        # NaN is larger than everything, and stays.
        if not value <= self.value and not math.isnan(self.value):
            self.value, self.item, self.question = value, item, question


@dataclass
class Statistics:
    """What was compared and how far apart it was. diagnostics: numbers no rule looks at."""

    compared: int = 0
    answered: int = 0
    refused_by_both: int = 0
    numbers: int = 0
    flips: list[tuple[float, str, str]] = field(default_factory=list)
    dp_sum: float = 0.0
    dp_count: int = 0
    dlogit_sum: float = 0.0
    acts: int = 0
    diagnostics: dict[str, Bound] = field(default_factory=dict)

    def diagnose(self, name: str, value: float, item: str, question: str) -> None:
        self.diagnostics.setdefault(name, Bound(name, math.inf)).see(value, item, question)


@dataclass
class Report:
    """A gate's verdict: "pass", "fail" or "refused" (refusals say why), and everything it rests on."""

    tier: str
    row: str
    baseline: Run
    candidate: Run
    refusals: list[str]
    mismatches: list[str]
    tiers: Tiers
    known: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)

    @property
    def verdict(self) -> str:
        if self.refusals:
            return "refused"
        return "fail" if self.failures else "pass"

    @property
    def scope(self) -> str:
        """What the verdict is about where it is not the whole corpus."""
        subset = str(self.candidate.identity["corpus"].get("subset"))
        return "" if subset == "all" else f"the subset {subset!r:.60}"

    def failed_rules(self) -> Counter[str]:
        return Counter(failure.rule for failure in self.failures)

    def worst(self) -> dict[str, dict[str, Any]]:
        """Per kind of statistic and per broken rule the question to look at first."""
        found: dict[str, dict[str, Any]] = {}
        for bound in [*self.bounds, *self.statistics.diagnostics.values()]:
            if bound.item is not None:
                found[bound.name] = {"item": bound.item, "question": bound.question, "value": _number(bound.value)}
        for failure in self.failures:
            if failure.item is not None and failure.rule not in found:
                found[failure.rule] = {"item": failure.item, "question": failure.question, "what": failure.what}
        return found

    def to_json(self) -> dict[str, Any]:
        statistics = self.statistics
        listed: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for failure in self.failures:
            if len(listed[failure.rule]) < _LISTED_PER_RULE:
                fields = {key: getattr(failure, key) for key in ("item", "question", "what")}
                value = {} if failure.value is None else {"value": _number(failure.value)}
                listed[failure.rule].append(fields | value)
        return {
            "format": GATE_FORMAT,
            "verdict": self.verdict,
            "tier": self.tier,
            "row": self.row,
            "tiers": {"version": self.tiers.version, "sha256": self.tiers.sha256},
            "refusals": self.refusals,
            "identity_mismatches": self.mismatches,
            "compared": {
                "questions": statistics.compared,
                "answers": statistics.answered,
                "numbers": statistics.numbers,
                "act_heads": statistics.acts,
                "refused_by_both": statistics.refused_by_both,
            },
            "failures": {
                rule: {"count": count, "first": listed[rule]} for rule, count in sorted(self.failed_rules().items())
            },
            "known_differences": dict(sorted(self.known.items())),
            "bounds": [
                {
                    "name": bound.name,
                    "value": _number(bound.value),
                    "limit": bound.limit,
                    "margin": _number(bound.margin),
                    "passed": bound.passed,
                    "item": bound.item,
                    "question": bound.question,
                }
                for bound in self.bounds
            ],
            "flips": {
                "count": len(statistics.flips),
                "fraction": len(statistics.flips) / max(1, statistics.compared),
                "questions": [
                    {"item": item, "question": question, "gap": gap} for gap, item, question in statistics.flips[:100]
                ],
            },
            "diagnostics": {
                **{name: _number(bound.value) for name, bound in sorted(statistics.diagnostics.items())},
                "mean_abs_dlogit": _number(statistics.dlogit_sum / max(1, statistics.compared)),
                "mean_abs_dp": _number(statistics.dp_sum / max(1, statistics.dp_count)),
            },
            "worst": self.worst(),
            "baseline": {"file": readable_name(self.baseline.path.name), "identity": _plain(self.baseline.identity)},
            "candidate": {"file": readable_name(self.candidate.path.name), "identity": _plain(self.candidate.identity)},
        }


def judge(
    baseline: Run, candidate: Run, tier: Tier, tiers: Tiers, *, weights: str | None = None, allow_mismatch: bool = False
) -> Report:
    """Hold a candidate to a tier.

    weights: the row's weight type, instead of the one the candidate records; allow_mismatch: judge runs whose
    identities do not fit, and list what does not. An unregistered tier refuses every run.
    """
    row, problems = pick_row(tier, candidate.identity, weights)
    problems = [*mismatches(tier, baseline.identity, candidate.identity), *problems]
    refusals = [] if allow_mismatch else problems
    if not tier.registered:
        refusals = [f"the tier {tier.name} is not registered: nothing passes it", *problems]
    report = Report(tier.name, row.name if row else "", baseline, candidate, refusals, problems, tiers)
    if report.refusals or row is None:
        return report
    _Gate(report, tier, dict(row.bounds)).compare()
    return report


class _Gate:
    """Goes through two runs once and fills a report."""

    def __init__(self, report: Report, tier: Tier, bounds: dict[str, float]) -> None:
        self._report = report
        self._exact = tier.rule == EXACT
        self._allowed = set(tier.known_differences)
        # A flip passes only below its gap (specification, Gate).
        self._bounds = {name: Bound(name, limit, below=name == "flip_max_gap") for name, limit in bounds.items()}
        report.bounds = list(self._bounds.values())
        self._statistics = report.statistics
        self._act_head_expected = True
        self._ignored: frozenset[str] = frozenset()

    def compare(self) -> None:
        baseline, candidate = self._report.baseline.items, self._report.candidate.items
        without = [_without_act_head(run.values()) for run in (baseline, candidate)]
        self._act_head_expected = not any(without)
        if any(without):
            self._know("server_no_act_head", "a whole run has no act logits")
        b, c = (_fields_given(run.values()) for run in (baseline, candidate))
        self._ignored = OPTIONAL_FIELDS & (b ^ c)
        for name in sorted(self._ignored):
            self._know("server_answer_shape", f"one of the runs never gives {name}")
        for side, run in (("baseline", self._report.baseline), ("candidate", self._report.candidate)):
            if len(run.items) != (asked := run.identity["corpus"].get("items")):
                self._fail("incomplete_run", f"the {side} holds {len(run.items)} records of {asked} items")
        for item_id in baseline:
            if item_id not in candidate:
                self._fail("missing_item", "the candidate has no record of it", item_id)
            else:
                self._item(baseline[item_id], candidate[item_id])
        for item_id in candidate:
            if item_id not in baseline:
                self._fail("extra_item", "the baseline has no record of it", item_id)
        self._whole_run()

    def _item(self, b: ItemRecord, c: ItemRecord) -> None:
        for side, record in (("baseline", b), ("candidate", c)):
            if record.failure is not None:
                self._fail("no_output", f"the {side} failed: {record.failure}", b.id)
        if b.failure is not None or c.failure is not None:
            return
        if (b.refusal is None) != (c.refusal is None):
            what = f"only the {'candidate' if b.refusal is None else 'baseline'} refuses it: {b.refusal or c.refusal}"
            # The other way round, or for another reason, it is a difference like any.
            if b.state == "null" and b.refusal is None and "state" in (c.refusal or ""):
                self._know("null_state_refused", what, b.id)
            else:
                self._fail("refusal_differs", what, b.id)
            return
        if b.refusal is not None:
            self._statistics.refused_by_both += 1
            return
        for question_id in [*b.questions, *(key for key in c.questions if key not in b.questions)]:
            if question_id not in b.questions or question_id not in c.questions:
                side = "candidate" if question_id in b.questions else "baseline"
                self._fail("missing_question", f"the {side} has no record of it", b.id, question_id)
            else:
                self._question(b, b.questions[question_id], c.questions[question_id], question_id)

    def _question(self, item: ItemRecord, b: QuestionRecord, c: QuestionRecord, question: str) -> None:
        if b.ids != c.ids:
            what = f"{len(b.ids)} and {len(c.ids)} ids, the first difference at {_first_difference(b.ids, c.ids)}"
            if item.state == "list" and _same_but_for_the_state(b, c):
                self._know("list_state_truncation", what, item.id, question)
            else:
                self._fail("ids_differ", what, item.id, question)
            return
        if b.markers is not None and c.markers is not None and b.markers != c.markers:
            self._fail("markers_differ", f"{b.markers} and {c.markers}"[:200], item.id, question)
            return
        self._statistics.compared += 1
        self._numbers(differ(b, c, self._ignored), item.id, question)

    def _numbers(self, d: Difference, item: str, question: str) -> None:
        statistics = self._statistics
        for name in d.not_finite:
            self._fail("not_finite", f"{name} is not finite", item, question)
        for name in d.missing:
            self._fail("fields_differ", f"{name}: only one side has it, or of another length", item, question)
        for name in d.categories:
            self._category(name, d, item, question)
        if d.act_missing and self._act_head_expected:
            self._fail("act_missing", "act logits are missing", item, question)
        if d.answered:
            statistics.answered += 1
            statistics.numbers += len(d.numbers)
        else:
            self._fail("missing_answer", "one side gave no answer, or one without a number", item, question)
        if not math.isnan(d.dlogit):
            statistics.dlogit_sum += d.dlogit
            statistics.diagnose("max_abs_dlogit", d.dlogit, item, question)
            statistics.diagnose("max_tvd", d.tvd, item, question)
        if d.flipped:
            statistics.flips.append((d.gap, item, question))
        for number in d.numbers:
            kind = number.name.partition(".")[0]
            statistics.diagnose(f"max_abs_{kind}_error", number.error, item, question)
            if kind == "score":
                statistics.diagnose("max_abs_score_error_raw", number.raw, item, question)
        statistics.dp_sum += sum(d.dp)
        statistics.dp_count += len(d.dp)
        if d.act is not None:
            statistics.acts += 1
            self._see("act_max_rel_dlogit", "act", d.act, item, question)
        if self._exact:
            if d.flipped:
                self._fail("flip", f"another option has the largest logit (gap {d.gap:.3g})", item, question, d.gap)
            for number in d.numbers:
                self._see("max_abs_error", "number", number.error, item, question, number.name)
        else:
            if d.flipped:
                self._see("flip_max_gap", "flip_gap", d.gap, item, question)
            for dp in d.dp:
                self._see("max_abs_dp", "max_dp", dp, item, question)

    def _category(self, name: str, d: Difference, item: str, question: str) -> None:
        # A choice goes with its flip, and whether a flip passes is a question of its gap.
        if name == "choice" and d.flipped and d.own_choice and not self._exact:
            return
        self._fail("category_differs", f"{name} differs", item, question)

    def _see(self, bound: str, rule: str, value: float, item: str, question: str, what: str = "") -> None:
        limit = self._bounds[bound]
        limit.see(value, item, question)
        if not limit.allows(value):
            self._fail(rule, f"{what or bound}: {value:.3g}, limit {limit.limit:g}", item, question, value)

    def _whole_run(self) -> None:
        statistics = self._statistics
        if not statistics.compared:
            self._fail("nothing_compared", "no question has the same ids and markers on both sides")
        elif not statistics.answered or not statistics.numbers:
            self._fail("nothing_answered", "no public answer was compared")
        if self._exact:
            return
        for bound, rule, value in (
            ("max_flip_fraction", "flip_fraction", len(statistics.flips) / max(1, statistics.compared)),
            ("mean_abs_dp", "mean_dp", statistics.dp_sum / max(1, statistics.dp_count)),
        ):
            self._bounds[bound].see(value)
            if not self._bounds[bound].passed:
                limit = self._bounds[bound].limit
                self._fail(rule, f"{bound}: {value:.3g}, limit {limit:g}", value=value)

    def _know(self, name: str, what: str, item: str | None = None, question: str | None = None) -> None:
        self._report.known[name] += 1
        if name not in self._allowed:
            self._fail(name, what, item, question)

    def _fail(
        self, rule: str, what: str, item: str | None = None, question: str | None = None, value: float | None = None
    ) -> None:
        self._report.failures.append(Failure(rule, what, item, question, value))


def _without_act_head(items: Iterable[ItemRecord]) -> bool:
    """Whether a run has questions, and act logits on none of them."""
    heads = {question.act_logits is not None for item in items for question in item.questions.values()}
    return heads == {False}


def _fields_given(items: Iterable[ItemRecord]) -> frozenset[str]:
    """The fields that any answer of a run has."""
    answers = (question.answer or {} for item in items for question in item.questions.values())
    return frozenset(field for answer in answers for field in answer)


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _same_but_for_the_state(b: QuestionRecord, c: QuestionRecord) -> bool:
    """Sequences of one length that part only after the last option's marker, where the state follows."""
    return (
        len(b.ids) == len(c.ids) and b.markers == c.markers and _first_difference(b.ids, c.ids) > max(b.markers or [0])
    )


def _plain(value: Any) -> Any:
    """A value read from a file, as JSON has it."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _number(value) if isinstance(value, float) else value


def _number(value: float) -> float | str:
    """A number as JSON has it; what JSON has no number for, as text."""
    return value if math.isfinite(value) else str(value)
