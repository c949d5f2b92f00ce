"""The committed states and tokens of fixtures/golden/router.jsonl, which its generator makes without layactl."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from layactl.router.score import Router

FIXTURES = Path(__file__).parents[2] / "fixtures"
GOLDEN = FIXTURES / "golden" / "router.jsonl"


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in GOLDEN.read_text(encoding="ascii").splitlines()]


def test_the_file_is_what_its_generator_writes():
    done = subprocess.run(
        [sys.executable, FIXTURES / "make_router_golden.py", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert GOLDEN.stat().st_size < 300_000
    assert len(records()) >= 100


@pytest.mark.parametrize("special_tokens", ["escape-control", "mask-to-space"])
def test_every_state_and_its_tokens(special_tokens: str, family: str, model_with):
    model = model_with(family, special_tokens=special_tokens)
    router = Router(model)
    chosen = [r for r in records() if (r["family"], r["special_tokens"]) == (family, special_tokens)]
    assert len(chosen) >= 20
    for record in chosen:
        request = router.parse(record["body"])
        assert [warning["param"] for warning in request.warnings] == record["unknown"]
        cards = [candidate.card.text for candidate in request.candidates]
        states = router._states.read(cards, request.criterion, request.task)
        assert [
            {
                "state": state.text,
                "tokens": len(state.ids),
                "ids_sha256": hashlib.sha256(json.dumps(state.ids).encode()).hexdigest()[:16],
            }
            for state in states
        ] == record["items"]
