"""Who answers: a model in this process, or a running server. Both take requests in steps, so that the next can be
prepared while one is computed, and several computed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

# More tokens than are ever computed together.
WHOLE = 1 << 20


class Answering(Protocol):
    """Answers bodies that are JSON objects by the rules of strict JSON."""

    def prepare(self, body: dict[str, Any]) -> Any:
        """All that can be done before a request's turn. Raises RequestError."""
        ...

    def tokens(self, prepared: Any) -> int:
        """How much there is to compute; WHOLE where nothing is gained by computing it together with others."""
        ...

    def compute(self, prepared: Sequence[Any]) -> list[Any]:
        """What several requests can do in common, each as if it were alone."""
        ...

    def answer(self, computed: Any) -> dict[str, Any]:
        """The response body. Raises RequestError; NumericError for a model's output that is not finite."""
        ...

    def runtime(self) -> dict[str, Any]:
        """What the answers depend on, beside the model."""
        ...
