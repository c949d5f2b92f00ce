"""What the token budgets dropped, told per sequence: usage, warnings, and the refusals of `truncation: error`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from layactl.errors import RequestError
from layactl.layouts.interface import Question, TokenSequence


@dataclass(frozen=True)
class CutNames:
    """How the cuts of a sequence are told.

    subject: what the sequence is about; instructions, options, state: the params of its parts; state_warning: the
    reason of the warning for a cut state.
    """

    subject: str
    instructions: str
    options: str
    state: str
    state_warning: str


def question_names(question: Question) -> CutNames:
    """The names for a question of a systemone request."""
    path = f"questions.{question.id}"
    return CutNames(f"question {question.id!r}", f"{path}.instructions", f"{path}.criteria", "state", "state_truncated")


def check_cuts(question: Question, sequence: TokenSequence, truncation: str, names: CutNames) -> list[dict[str, Any]]:
    """The warnings for one sequence, in the specification's words.

    Raises RequestError 422 when the cut leaves an option without its marker, and for any cut under "error".
    """
    cuts = sequence.cuts
    if cuts.markers_lost:
        raise RequestError(
            "OPTIONS_TRUNCATED",
            f"{cuts.markers_lost} of {len(question.options)} options do not fit into the sequence",
            param=names.options,
            code=422,
        )
    found = []
    if cuts.instructions_dropped:
        text = f"{cuts.instructions_dropped} instruction tokens dropped"
        found.append(("instructions_truncated", "PROMPT_TOO_LONG", text, names.instructions))
    if cuts.options_cut:
        text = f"{cuts.options_cut} of {len(question.options)} options cut to {cuts.tokens_per_option} tokens"
        found.append(("options_truncated", "OPTIONS_TRUNCATED", text, names.options))
    if cuts.state_dropped:
        text = f"{cuts.state_dropped} of {cuts.state_tokens} state tokens dropped"
        found.append((names.state_warning, "STATE_TRUNCATED", text, names.state))
    if found and truncation == "error":
        _, reason, text, param = found[0]
        raise RequestError(reason, f"{names.subject}: {text}", param=param, code=422)
    return [
        {"reason": reason, "message": f"{names.subject}: {text}", "param": param} for reason, _, text, param in found
    ]


def usage(questions: tuple[Question, ...], sequences: list[TokenSequence]) -> dict[str, Any]:
    """Token counts of a request, and per question what was cut (cli-contract, usage).

    `options` appears as the reference writes it (`common.collapsed_options`): only for questions whose options a cut
    made indistinguishable.
    """
    total = sum(len(sequence.ids) for sequence in sequences)
    collapsed = {}
    per_question = {}
    for question, sequence in zip(questions, sequences, strict=True):
        cuts, count = sequence.cuts, len(question.options)
        per_question[question.id] = {
            "input_tokens": len(sequence.ids),
            "state_tokens": cuts.state_tokens,
            "state_tokens_dropped": cuts.state_dropped,
            "options": count,
            "options_distinct": cuts.options_distinct,
            "tokens_per_option": cuts.tokens_per_option,
        }
        if cuts.options_distinct < count:
            collapsed[question.id] = {
                "total": count,
                "distinct": cuts.options_distinct,
                "tokens_per_option": cuts.option_cap,
            }
    result: dict[str, Any] = {
        "input_tokens": total,
        "output_tokens": 0,
        "evaluated_tokens": total,
        "questions": per_question,
    }
    if collapsed:
        result["options"] = collapsed
    return result
