"""Question + state tokens -> token sequence, budget by budget as the reference cuts (`common.build_sequence`).

[CLS] <type> question: <instructions> [SEP] [MASK] option 0 [MASK] option 1 ... [SEP] state [SEP]
"""

from __future__ import annotations

from layactl.core.model_shape import Limits
from layactl.core.tokenizer import Tokenizer
from layactl.layouts.interface import Cuts, Question, StateTokens, TokenSequence
from layactl.layouts.laya.question import QUESTION_TYPES

OPTION_TOKENS = 48
_MIN_HEAD_TOKENS = 8
_MIN_OPTION_TOKENS = 4
_SPARE_TOKENS = 16


def build_sequence(tokenizer: Tokenizer, state: StateTokens, question: Question, limits: Limits) -> TokenSequence:
    """ids (at most max_len) and the position of each option's marker.

    The mask literal in any text becomes a space, so no text can place a marker. An option keeps 48 tokens; when the
    options leave the head fewer than 16, all are cut to an equal share; the instructions get what is left, and the
    state what is left of max_len.
    """
    special = tokenizer.special
    head = tokenizer.encode(f"{question.type} question: {_unmask(tokenizer, question.instructions)}")
    options = [tokenizer.encode(" " + _unmask(tokenizer, text)) for text in question.options]
    whole = [1 + len(ids) for ids in options]
    spans = [[special.mask, *ids[:OPTION_TOKENS]] for ids in options]

    option_cap = None
    head_budget = limits.head_max_len - sum(map(len, spans))
    if head_budget < _SPARE_TOKENS:
        option_cap = max(_MIN_OPTION_TOKENS, (limits.head_max_len - _SPARE_TOKENS) // max(1, len(spans)))
        spans = [span[:option_cap] for span in spans]
        head_budget = limits.head_max_len - sum(map(len, spans))
    kept_head = head[: max(_MIN_HEAD_TOKENS, head_budget)]

    ids = [special.cls, *kept_head, special.sep]
    markers = []
    for span in spans:
        markers.append(len(ids))
        ids += span
    options_end = len(ids)
    ids.append(special.sep)
    room = max(0, limits.max_len - len(ids) - 1)
    kept_state = state.ids[max(0, len(state.ids) - room) :] if state.from_left else state.ids[:room]
    ids = [*ids, *kept_state, special.sep][: limits.max_len]

    # Where the options alone overrun max_len the end of the sequence is cut once more.
    spans_end = [*markers[1:], options_end]
    visible = [max(0, min(end, limits.max_len) - start) for start, end in zip(markers, spans_end, strict=True)]
    options_cut = sum(seen < full for seen, full in zip(visible, whole, strict=True))
    return TokenSequence(
        ids=ids,
        markers=[marker for marker in markers if marker < limits.max_len],
        type_id=QUESTION_TYPES.index(question.type),
        cuts=Cuts(
            state_tokens=len(state.ids),
            state_dropped=len(state.ids) - len(kept_state),
            instructions_dropped=len(head) - min(len(kept_head), limits.max_len - 1),
            options_cut=options_cut,
            markers_lost=sum(marker >= limits.max_len for marker in markers),
            options_distinct=len({tuple(span) for span in spans}),
            tokens_per_option=None if not options_cut else option_cap or 1 + OPTION_TOKENS,
            option_cap=option_cap,
        ),
    )


def _unmask(tokenizer: Tokenizer, text: str) -> str:
    return text.replace(tokenizer.mask_text, " ")
