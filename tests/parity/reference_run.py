"""The reference (package laya, PyTorch) asked the requests of the tests."""

from __future__ import annotations

import json
from pathlib import Path

from layactl.reference.reference_model import ReferenceModel, versions

from .golden_file import Expected, Outcome
from .request_kinds import Case, Measure

__all__ = ["Reference", "versions"]


class Reference:
    """A reference model with what the tests make and keep of it."""

    def __init__(self, checkpoint: Path, scratch: Path) -> None:
        self.model = ReferenceModel(checkpoint, scratch)
        self.agent, self.encode = self.model.agent, self.model.encode
        tokenizer = json.loads((checkpoint / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))
        self.measure = Measure(
            encode=self.encode,
            mask=self.agent.tok.mask_token,
            specials=tuple(token["content"] for token in tokenizer["added_tokens"]),
            max_len=self.agent.cfg["max_len"],
            head_max_len=self.agent.cfg["head_max_len"],
        )

    def ask(self, case: Case) -> Outcome:
        from laya.common import serialize_state

        response = self.model.ask(case.state, case.questions, limits=case.limits)
        if response.refusal is not None:
            return Outcome(refusal=response.refusal)
        return Outcome(
            questions={question_id: Expected(**vars(item)) for question_id, item in response.questions.items()},
            usage=response.usage,
            state_tokens=len(self.encode(serialize_state(case.state).replace(self.measure.mask, " "))),
        )
