"""The reference (package laya, PyTorch) asked the same requests; nothing here imports layactl."""

from __future__ import annotations

import json
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .golden_file import Expected, Outcome
from .request_kinds import Case, Measure

PACKAGES = ("laya", "torch", "transformers", "tokenizers", "numpy")


class Reference:
    """A laya Agent on the CPU in float32, over a private copy of a checkpoint (it rewrites tokenizer_config.json)."""

    def __init__(self, checkpoint: Path, scratch: Path) -> None:
        # Read when transformers is imported: no TensorFlow, and no question to a hub.
        os.environ.update(USE_TF="0", HF_HUB_OFFLINE="1")
        from laya.agent import Agent

        copy = scratch / checkpoint.name
        shutil.copytree(checkpoint, copy, copy_function=_copy_but_link_weights)
        self.agent = Agent(str(copy), device="cpu")
        tokenizer = json.loads((copy / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))
        self.measure = Measure(
            encode=self.encode,
            mask=self.agent.tok.mask_token,
            specials=tuple(token["content"] for token in tokenizer["added_tokens"]),
            max_len=self.agent.cfg["max_len"],
            head_max_len=self.agent.cfg["head_max_len"],
        )

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.agent.tok(text, add_special_tokens=False)["input_ids"]
        return ids

    def ask(self, case: Case) -> Outcome:
        """Answers as its users get them (all questions in one padded batch), raw outputs of each question alone."""
        from laya.common import serialize_state

        limits = {} if case.limits is None else dict(zip(("max_len", "head_max_len"), case.limits, strict=True))
        try:
            result = self.agent.system_one(case.state, case.questions, **limits)
        except (ValueError, TypeError) as error:
            return Outcome(refusal=f"{type(error).__name__}: {error}")
        ids = list(case.questions)
        internal = {question_id: self.agent._to_internal(case.questions[question_id]) for question_id in ids}
        items = self.agent._encode_state(case.state, ids, internal, **limits)
        # As JSON shows it: labels that are no strings become the keys that a client sees.
        answers = json.loads(json.dumps(result["answers"]))
        return Outcome(
            questions={
                question_id: Expected(
                    ids=item["ids"],
                    markers=item["markers"],
                    options=item["options"],
                    **self._raw_outputs(item),
                    answer=answers[question_id],
                )
                for question_id, item in zip(ids, items, strict=True)
            },
            usage=result["usage"],
            state_tokens=len(self.encode(serialize_state(case.state).replace(self.measure.mask, " "))),
        )

    def _raw_outputs(self, item: dict[str, Any]) -> dict[str, list[float]]:
        import torch
        from laya.common import collate_items

        batch = collate_items([[item]], self.agent.tok.pad_token_id)
        inputs = ("input_ids", "attention_mask", "marker_pos", "marker_mask", "qtype")
        with torch.inference_mode():
            logits, act_logits = self.agent.model(*(batch[name] for name in inputs))
        return {"logits": logits[0].tolist(), "act_logits": act_logits[0].tolist()}


def versions() -> dict[str, str]:
    """What the reference's numbers depend on."""
    return {name: version(name) for name in PACKAGES}


def _copy_but_link_weights(source: str, target: str) -> str:
    if source.endswith(".safetensors"):
        Path(target).symlink_to(Path(source).resolve())
        return target
    return shutil.copy2(source, target)
