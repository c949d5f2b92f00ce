"""Which sequences go through the linear layers together; attention is within each of them anyway.

A short pass waits for the weights to be read, and reading them once for several halves its time. Plan packed groups
whatever it is given. Plan sequential promises that no question influences another, bitwise, so it groups only short
sequences, and only where the kernels show that a row of their products has the same bits in the group as on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from layactl.layouts.interface import TokenSequence

# Longer sequences gained nothing (docs/kernels.md); larger groups mean more counts of rows to ask about.
LONGEST, GROUP_TOKENS = 96, 512
# A group is filled up to a multiple of this, so that few counts of rows have to be asked about.
_STEP = 32

# What a row comes to among so many, None where it depends on its place (`core.arithmetic.Kernels.row_bits`).
RowBits = Callable[[int], "bytes | None"]


@dataclass(frozen=True)
class Group:
    """Sequences for one pass, by index. fill: tokens of a last sequence that nobody asked for."""

    indices: tuple[int, ...]
    fill: int = 0

    def sequences(self, of: Sequence[TokenSequence]) -> list[TokenSequence]:
        """Those of the group, and after them the one that fills it up."""
        chosen = [of[n] for n in self.indices]
        if self.fill:
            first = chosen[0]
            chosen.append(replace(first, ids=first.ids[:1] * self.fill, markers=[0]))
        return chosen


def alone_or_shared(sequences: Sequence[TokenSequence], row_bits: RowBits) -> Iterator[Group]:
    """Every sequence in one group: short ones together where that changes nothing, all others alone."""
    group: Group | None = None
    for n, sequence in enumerate(sequences):
        if len(sequence.ids) > LONGEST:
            yield Group((n,))
        elif group is None:
            group = Group((n,))
        else:
            larger = _filled(sequences, (*group.indices, n))
            if _changes_nothing(larger.sequences(sequences), row_bits):
                group = larger
            else:
                yield group
                group = Group((n,))
    if group is not None:
        yield group


def packed(sequences: Sequence[TokenSequence], limit: int) -> Iterator[Group]:
    """Neighbours together while they hold at most `limit` tokens; a longer one is alone."""
    group: list[int] = []
    tokens = 0
    for n, sequence in enumerate(sequences):
        if group and tokens + len(sequence.ids) > limit:
            yield Group(tuple(group))
            group, tokens = [], 0
        group.append(n)
        tokens += len(sequence.ids)
    if group:
        yield Group(tuple(group))


def _filled(sequences: Sequence[TokenSequence], indices: tuple[int, ...]) -> Group:
    return Group(indices, -sum(len(sequences[n].ids) for n in indices) % _STEP)


def _changes_nothing(chosen: Sequence[TokenSequence], row_bits: RowBits) -> bool:
    tokens = [len(sequence.ids) for sequence in chosen]
    # Rows of the last layer: position 0 and the markers.
    read = [1 + len(sequence.markers) for sequence in chosen]
    return sum(tokens) <= GROUP_TOKENS and all(
        (together := row_bits(sum(counts))) is not None and all(row_bits(count) == together for count in counts)
        for counts in (tokens, read)
    )
