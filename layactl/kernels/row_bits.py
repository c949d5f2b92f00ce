"""Does the number of rows beside it change a row of a product? Asked of the products themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

from layactl.core.arithmetic import Linear


def row_bits(functions: Iterable[tuple[int, Linear]], rows: int, dtype: torch.dtype) -> bytes | None:
    """What one fixed row comes to among `rows` copies of itself, as a hash over all functions; None where that depends
    on its place.

    functions: with the width of what each takes. The order of a product's sums is a matter of its sizes and never of
    the numbers, so where two counts of rows give the same bits here, they do for every row.
    """
    digest = hashlib.sha256()
    with torch.inference_mode():
        for width, function in functions:
            row = torch.randn(width, generator=torch.Generator().manual_seed(0)).to(dtype)
            found = function(row.expand(rows, width).contiguous())
            if not torch.equal(found, found[:1].expand_as(found)):
                return None
            digest.update(found[0].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.digest()
