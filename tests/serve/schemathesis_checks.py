"""Checks that schemathesis loads beside its own (SCHEMATHESIS_HOOKS)."""

from __future__ import annotations

import re

import schemathesis

# Rules that JSON Schema cannot say: reason -> the params that may be refused by them.
BEYOND_A_SCHEMA = {
    # Labels that Python holds equal (1 and true) or that share an answer key (1 and "1").
    "UNSUPPORTED_CRITERIA_VALUE": r"questions\..*\.criteria\[\d+\]",
    # The two words differ once their spaces are gone.
    "INVALID_NOUL_CRITERIA": r"questions\..*\.labels",
    # passed <= total.
    "INVALID_CARD": r"candidates\[\d+\]\.card\.checks\[\d+\]",
    "DUPLICATE_CANDIDATE_ID": r"candidates\[\d+\]\.id",
    # Bytes of the whole.
    "BODY_TOO_LARGE": "",
    # Integers of more than 64 bits, and how deep a document may be.
    "UNSUPPORTED_NUMBER": "",
    "MALFORMED_JSON": "",
    # Token budgets.
    "STATE_TRUNCATED": ".*",
    "OPTIONS_TRUNCATED": ".*",
    "PROMPT_TOO_LONG": ".*",
    "CARD_TOO_LONG": ".*",
    "CRITERION_TOO_LONG": ".*",
}


@schemathesis.check
def valid_data_is_refused_only_for_what_a_schema_cannot_say(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """Instead of positive_data_acceptance, which knows of no rule beyond the schema."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code in (200, 429, 501):
        return
    error = response.json()["error"]
    pattern = BEYOND_A_SCHEMA.get(error["reason"])
    assert pattern is not None, f"valid data is refused with {error}"
    assert re.fullmatch(pattern, error.get("param", ""), re.DOTALL), f"valid data is refused with {error}"


@schemathesis.check
def every_refusal_has_the_envelope(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """Also where the document does not list the status."""
    if response.status_code < 400 or case.method == "HEAD":
        return
    error = response.json()["error"]
    assert error["code"] == response.status_code
    assert set(error) - {"param"} == {"code", "type", "reason", "message"}
    assert "Traceback" not in response.text
