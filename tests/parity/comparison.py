"""layactl against what the reference said, one named check after the other."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from layactl import Model
from layactl.core.model_shape import Limits
from layactl.errors import RequestError
from layactl.layouts.interface import StateTokens

from .golden_file import Expected, Golden, Outcome
from .request_kinds import Case

LOGIT_TOLERANCE = 1e-4  # absolute
ACT_TOLERANCE = 2e-4  # relative to the larger of the two, or to 1
ANSWER_STEP = 1e-4  # the reference rounds answers to four digits

# Every check, in the order a difference is found in. "texts" is the tokenizer's alone.
CHECKS = ("texts", "refusal", "ids", "markers", "options", "usage", "logits", "act logits", "answer")


@dataclass(frozen=True)
class Difference:
    check: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.check} of {self.where}: {self.text}"


class Comparison:
    """Differences and largest errors over many requests; `compare` adds one.

    questions: compared one by one; refusals: requests both sides refused.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.questions = self.refusals = 0
        self.logit_error = self.act_error = self.answer_error = 0.0
        self.largest_logit = self.largest_act = 0.0
        self.differences: list[Difference] = []

    def summary(self) -> str:
        return (
            f"{self.questions} questions and {self.refusals} refusals compared, {len(self.differences)} differences; "
            f"max |d logit| {self.logit_error:.2e} of {self.largest_logit:.1f}, "
            f"act {self.act_error:.2e} relative of {self.largest_act:.1f}, answer {self.answer_error:.1e}"
        )

    def failed(self) -> Counter[str]:
        """How often each check failed."""
        return Counter(difference.check for difference in self.differences)

    def compare_all(self, pairs: Iterable[tuple[Case, Outcome]]) -> Comparison:
        for case, outcome in pairs:
            self.compare(case, outcome)
        return self

    def compare_golden(self, golden: Golden) -> Comparison:
        """Every record of a golden file."""
        return self.compare_texts(golden.texts).compare_all(golden.requests)

    def compare_texts(self, texts: dict[str, list[int]]) -> Comparison:
        """The tokenizer alone: text -> the reference's ids."""
        for text, ids in texts.items():
            self._check("texts", repr(text)[:60], self.model.tokenizer.encode(text), ids)
        return self

    def compare(self, case: Case, outcome: Outcome) -> None:
        model = with_limits(self.model, case.limits)
        try:
            response = model.decide(case.state, case.questions, debug=True)
        except RequestError as error:
            if outcome.refusal is None:
                self._differ("refusal", case.kind, f"refused: {error}")
            self.refusals += 1
            return
        if outcome.refusal is not None:
            self._differ("refusal", case.kind, f"answered, the reference refuses: {outcome.refusal}")
            return
        self._check("answer", f"{case.kind}, ids", [*response["answers"]], [*outcome.questions])
        caps = _option_caps(model, case)
        for question_id, expected in outcome.questions.items():
            where = f"{case.kind}, {question_id!r:.40}"
            used = response["usage"]["questions"][question_id]
            self._compare_question(where, response["answers"][question_id], expected)
            found = {key: used[key] for key in ("options", "options_distinct")}
            self._check("options", where, found | {"tokens_per_option": caps[question_id]}, expected.options)
            self._check("usage", where, used["state_tokens"], outcome.state_tokens)
        found = {key: response["usage"][key] for key in outcome.usage.keys() | (response["usage"].keys() & {"options"})}
        self._check("usage", case.kind, found, outcome.usage)
        self.questions += len(outcome.questions)

    def _compare_question(self, where: str, answer: dict[str, Any], expected: Expected) -> None:
        debug = answer["debug"]
        self._check("ids", where, debug["token_ids"], expected.ids)
        self._check("markers", where, debug["markers"], expected.markers)
        if self._check("logits", where, len(debug["logits"]), len(expected.logits)):
            errors = [abs(a - b) for a, b in zip(debug["logits"], expected.logits, strict=True)]
            self.logit_error = max(self.logit_error, *errors)
            self.largest_logit = max(self.largest_logit, *map(abs, expected.logits))
            self._within("logits", where, max(errors), LOGIT_TOLERANCE)
        if self._check("act logits", where, len(debug["act_logits"]), len(expected.act_logits)):
            pairs = zip(debug["act_logits"], expected.act_logits, strict=True)
            errors = [abs(a - b) / max(abs(a), abs(b), 1.0) for a, b in pairs]
            self.act_error = max(self.act_error, *errors)
            self.largest_act = max(self.largest_act, *map(abs, expected.act_logits))
            self._within("act logits", where, max(errors), ACT_TOLERANCE)
        found = {key: value for key, value in answer.items() if key != "debug"}
        self.compare_answer(where, found, expected.answer)

    def compare_answer(self, where: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
        self._check("answer", f"{where}, keys", sorted(found), sorted(expected))
        for key, value in expected.items():
            mine, at = found.get(key), f"{where}, {key}"
            if isinstance(value, float):
                self._compare_number(at, mine, value)
            elif key in ("probabilities", "action") and isinstance(mine, dict):
                if self._check("answer", at, [*mine], [*value]):
                    for name in value:
                        self._compare_number(f"{at}, {name!r:.40}", mine[name], value[name])
            else:
                # As JSON, because 1, 1.0 and True are equal in Python and different answers.
                self._check("answer", at, json.dumps(mine), json.dumps(value))

    def _compare_number(self, where: str, found: Any, expected: float) -> None:
        if not isinstance(found, float):
            return self._differ("answer", where, f"{found!r} is no float")
        error = abs(round(found, 4) - expected)
        self.answer_error = max(self.answer_error, error)
        # One step, and the rounding of the subtraction itself.
        self._within("answer", where, error, ANSWER_STEP * (1 + 1e-9))

    def _check(self, check: str, where: str, found: Any, expected: Any) -> bool:
        if found != expected:
            self._differ(check, where, f"{found!r:.200}, expected {expected!r:.200}")
        return bool(found == expected)

    def _within(self, check: str, where: str, error: float, tolerance: float) -> None:
        # Not `error > tolerance`, which NaN would pass.
        if not error <= tolerance:
            self._differ(check, where, f"off by {error:.2e}, more than {tolerance:.0e}")

    def _differ(self, check: str, where: str, text: str) -> None:
        self.differences.append(Difference(check, where, text))


def with_limits(model: Model, limits: tuple[int, int] | None) -> Model:
    """The model itself, or one over the same weights with other token budgets."""
    if limits is None:
        return model
    limited = copy.copy(model)
    limited.limits = Limits(*limits)
    return limited


def _option_caps(model: Model, case: Case) -> dict[str, int | None]:
    """The cap on each question's options as the reference counts it; `usage` shows it only where options collapse."""
    request = model.parse({"state": case.state, "questions": case.questions})
    state = StateTokens([], from_left=False)
    return {
        question.id: model.layout.render(model.tokenizer, state, question, model.limits).cuts.option_cap
        for question in request.questions
    }
