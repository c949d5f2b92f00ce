"""Who answers: a model in this process, or a running server. Both take a request in two steps, so that the next can be
prepared while one is computed.
"""

from __future__ import annotations

from typing import Any, Protocol


class Answering(Protocol):
    """Answers bodies that are JSON objects by the rules of strict JSON."""

    def prepare(self, body: dict[str, Any]) -> Any:
        """All that can be done before a request's turn. Raises RequestError."""
        ...

    def answer(self, prepared: Any) -> dict[str, Any]:
        """The response body. Raises RequestError; NumericError for a model's output that is not finite."""
        ...

    def runtime(self) -> dict[str, Any]:
        """What the answers depend on, beside the model."""
        ...
