"""Examples -> batches of similar length, in an order that seed and epoch alone decide."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from layactl.train.examples import Example
from layactl.train.network import Batch

# Sequences are sorted by length within so many batches: enough to leave little padding, and batches stay mixed.
_SORTED_BATCHES = 50


def collate(examples: Sequence[Example], pad_id: int) -> Batch:
    """Pad at the end (reference `common.collate_items`)."""
    length = max(len(example.ids) for example in examples)
    count = max(len(example.markers) for example in examples)
    ids = torch.full((len(examples), length), pad_id, dtype=torch.long)
    markers = torch.zeros((len(examples), count), dtype=torch.long)
    targets = torch.zeros((len(examples), count))
    present = torch.zeros((len(examples), length), dtype=torch.bool)
    options = torch.zeros((len(examples), count), dtype=torch.bool)
    for n, example in enumerate(examples):
        ids[n, : len(example.ids)] = torch.from_numpy(example.ids)
        present[n, : len(example.ids)] = True
        markers[n, : len(example.markers)] = torch.from_numpy(example.markers)
        options[n, : len(example.markers)] = True
        targets[n, : len(example.markers)] = torch.from_numpy(example.target)
    type_ids = torch.tensor([example.type_id for example in examples])
    return Batch(ids, present, markers, options, type_ids, targets)


def epoch_batches(lengths: Sequence[int], size: int, seed: int, epoch: int) -> list[list[int]]:
    """Every index once, in batches of `size` (the last may be smaller).

    lengths: of the examples' sequences, in tokens.
    """
    generator = torch.Generator().manual_seed(_mixed(seed, epoch))
    order = torch.randperm(len(lengths), generator=generator).tolist()
    window = size * _SORTED_BATCHES
    batches: list[list[int]] = []
    for start in range(0, len(order), window):
        part = sorted(order[start : start + window], key=lambda index: lengths[index])
        batches += [part[at : at + size] for at in range(0, len(part), size)]
    return [batches[n] for n in torch.randperm(len(batches), generator=generator).tolist()]


def length_batches(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Every index once, shortest sequences first: for evaluation, where order does not matter."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    return [order[at : at + size] for at in range(0, len(order), size)]


def _mixed(seed: int, number: int) -> int:
    """A seed of its own for each (seed, number)."""
    return (seed * 1_000_003 + number) % 2**63


def seed_step(seed: int, step: int) -> None:
    """Make torch's draws of one micro-batch depend on (seed, step) alone, so that a run can go on anywhere."""
    torch.manual_seed(_mixed(seed ^ 0x5EED, step))
