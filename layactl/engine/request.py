"""A request body -> a checked Request (specification, POST /v1/systemone)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layactl.core import strict_json
from layactl.errors import RequestError

if TYPE_CHECKING:
    # Types only: a client of a server reads requests too, and needs no tokenizer.
    from layactl.core.decision_spec import DecisionSpec
    from layactl.layouts.interface import Layout, Question

MAX_BODY_BYTES = 2**20
TRUNCATIONS = ("allow", "error")


@dataclass(frozen=True)
class Request:
    """state_text: what the tokenizer reads; from_left: a cut drops the oldest turns of a list state."""

    state_text: str
    from_left: bool
    questions: tuple[Question, ...]
    truncation: str


def body_too_large() -> RequestError:
    return RequestError("BODY_TOO_LARGE", f"request over {MAX_BODY_BYTES} bytes", code=413)


def internal_error() -> RequestError:
    """What a caller is told of an error that is ours; its detail goes to the log only."""
    return RequestError("INTERNAL", "internal error while processing the request", code=500)


def check_body_size(body: dict[str, Any]) -> None:
    """Hold a request that never was one body to the size limit of one. Raises RequestError BODY_TOO_LARGE."""
    if len(strict_json.dumps(body).encode("utf-8", "surrogatepass")) > MAX_BODY_BYTES:
        raise body_too_large()


def parse_body(data: bytes) -> dict[str, Any]:
    """Bytes -> JSON object.

    Raises RequestError: BODY_TOO_LARGE, MALFORMED_JSON, UNSUPPORTED_NUMBER, BODY_NOT_OBJECT.
    """
    if len(data) > MAX_BODY_BYTES:
        raise body_too_large()
    body = strict_json.loads_strict(data)
    if not isinstance(body, dict):
        raise RequestError("BODY_NOT_OBJECT", "the body must be a JSON object")
    return body


def parse_request(
    body: dict[str, Any], layout: Layout, spec: DecisionSpec, max_questions: int | None = None
) -> Request:
    """Check a systemone body; its values already meet the rules of strict JSON.

    max_questions: a server's limit.
    Raises RequestError with the specification's reason and the JSON path of the bad field.
    """
    questions = body.get("questions")
    if questions is None:
        raise RequestError("INVALID_REQUEST", "questions is missing", param="questions")
    if not isinstance(questions, dict):
        raise RequestError("INVALID_REQUEST", "questions must be an object of id: definition", param="questions")
    if unnamed := [key for key in questions if not isinstance(key, str)]:
        raise RequestError("INVALID_REQUEST", f"a question id must be text, not {unnamed[0]!r:.40}", param="questions")
    if max_questions is not None and len(questions) > max_questions:
        raise RequestError(
            "TOO_MANY_QUESTIONS", f"{len(questions)} questions; at most {max_questions}", param="questions"
        )
    state = body.get("state")
    if state is None:
        raise RequestError("INVALID_REQUEST", "state is missing or null", param="state")
    truncation = parse_truncation(body)
    return Request(
        state_text=state if isinstance(state, str) else strict_json.dumps(state),
        from_left=isinstance(state, list),
        questions=tuple(
            layout.parse_question(question_id, item, spec.max_options) for question_id, item in questions.items()
        ),
        truncation=truncation,
    )


def parse_truncation(body: dict[str, Any]) -> str:
    """What happens to input that does not fit, "allow" where the body does not say. Raises RequestError."""
    truncation = body.get("truncation", "allow")
    if not isinstance(truncation, str) or truncation not in TRUNCATIONS:
        raise RequestError("INVALID_REQUEST", 'truncation must be "allow" or "error"', param="truncation")
    return truncation
