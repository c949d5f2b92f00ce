"""`layactl tokenize`."""

from __future__ import annotations

from typing import Annotated

import typer

from layactl.cli.models import ModelChoice
from layactl.cli.options import CacheDirOption, FolderOuttype, FolderOuttypeOption, MaxLenOption, ModelOption
from layactl.cli.output import record
from layactl.errors import InputError


def tokenize_command(
    model: ModelOption,
    text: Annotated[
        str, typer.Argument(metavar="TEXT|-", help="The text; - reads standard input.", show_default=False)
    ],
    outtype: FolderOuttypeOption = FolderOuttype.f16,
    cache_dir: CacheDirOption = None,
    max_len: MaxLenOption = None,
) -> None:
    """Print the token ids and pieces of a text, as the model reads it (no special tokens added)."""
    from layactl.decide.inputs import standard_input
    from layactl.engine.tokenizer_file import load_tokenizer

    data = standard_input().read() if text == "-" else text.encode("utf-8", "surrogateescape")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"the text is not UTF-8: {error.reason} at byte {error.start}") from None
    tokenizer = load_tokenizer(ModelChoice(model, outtype, cache_dir).resolve().file, max_len)
    ids = tokenizer.encode(text)
    record({"tokens": len(ids), "ids": ids, "pieces": tokenizer.tokens(ids)})
