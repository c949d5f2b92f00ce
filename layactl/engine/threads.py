"""CPU threads of the forward pass."""

from __future__ import annotations

from layactl.errors import UsageError


def set_threads(threads: int | None) -> int:
    """Size torch's one thread pool (None: leave it); returns the number in force."""
    import torch

    if threads is not None:
        if not 1 <= threads <= 1024:
            raise UsageError(f"threads must be between 1 and 1024, not {threads}")
        torch.set_num_threads(threads)
    return torch.get_num_threads()
