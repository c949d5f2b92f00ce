"""The parts of the tokenizer's keys that both dialects write alike."""

from __future__ import annotations

import gguf

from layactl.core.tokenizer import METASPACE, METASPACE_BPE, SpecialIds, TokenizerData
from layactl.gguf_file import names


def vocabulary(tokenizer: TokenizerData) -> tuple[list[str], list[int]]:
    """Texts and types by id, as gguf's converters give them."""
    added = {token.id: token for token in tokenizer.added}
    tokens, types = [], []
    for token_id, piece in enumerate(tokenizer.pieces):
        token = added.get(token_id)
        if piece is None:
            tokens.append(f"[PAD{token_id}]")
            types.append(names.TYPE_UNUSED)
        elif token is None:
            tokens.append(piece)
            types.append(names.TYPE_NORMAL)
        elif token.control:
            tokens.append(piece)
            types.append(names.TYPE_CONTROL)
        else:
            # They spell user-defined pieces with real spaces; the readers turn them back.
            tokens.append(piece.replace(METASPACE, " ") if tokenizer.family == METASPACE_BPE else piece)
            types.append(names.TYPE_USER_DEFINED)
    return tokens, types


def add_special_ids(writer: gguf.GGUFWriter, special: SpecialIds) -> None:
    for key, token_id in (
        (names.BOS_TOKEN_ID, special.cls),
        (names.EOS_TOKEN_ID, special.sep),
        (names.UNK_TOKEN_ID, special.unk),
        (names.SEP_TOKEN_ID, special.sep),
        (names.PAD_TOKEN_ID, special.pad),
        (names.MASK_TOKEN_ID, special.mask),
    ):
        if token_id is not None:
            writer.add_uint32(key, token_id)
