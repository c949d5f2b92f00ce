"""CPU threads of the forward pass."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from layactl.errors import UsageError

# Libraries read these once, when they are loaded; a number for torch in one of them is a wish we may not fulfil.
_CONFLICTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_VARIABLE = "LAYACTL_THREADS"
_MOST = 1024


def set_threads(threads: int | None) -> int:
    """Size torch's one thread pool (None: leave it); returns the number in force."""
    import torch

    if threads is not None:
        if not 1 <= threads <= _MOST:
            raise UsageError(f"threads must be between 1 and {_MOST}, not {threads}")
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def command_threads(asked: int | None) -> tuple[int, list[str]]:
    """Threads of a command: what was asked, else LAYACTL_THREADS, else the physical cores this process may use; and
    what the environment says otherwise. Raises UsageError for a variable that is no number.
    """
    threads = asked
    if threads is None and (text := os.environ.get(_VARIABLE)):
        if not text.isdecimal() or not 1 <= len(text) <= 4:
            raise UsageError(f"must be a number of threads, not {text!r:.40}", where=_VARIABLE)
        threads = int(text)
    chosen = physical_cores() if threads is None else threads
    notes = [
        f"{name}={os.environ[name]} is set in the environment; {chosen} threads are used (--threads decides)"
        for name in _CONFLICTS
        if os.environ.get(name, str(chosen)) != str(chosen)
    ]
    return chosen, notes


def physical_cores() -> int:
    """Physical cores this process may use: its affinity, siblings counted once, and no more than its cgroup's quota.

    A second hyperthread of a core has no product units of its own.
    """
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
        cores = {_siblings(cpu) or frozenset([cpu]) for cpu in allowed}
        count = len(cores)
    else:
        count = os.cpu_count() or 1
    quota = min(_quotas(), default=None)
    return max(1, count if quota is None else min(count, int(quota)))


def _siblings(cpu: int) -> frozenset[int]:
    """The CPUs that share a core with this one, itself included; empty where nobody says."""
    text = _read(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else []:
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            return frozenset()
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _quotas(root: Path = Path("/sys/fs/cgroup")) -> Iterator[float]:
    """CPUs that each cgroup of this process grants, version 2 and version 1."""
    groups = [line.partition("::")[2] for line in _read(Path("/proc/self/cgroup")).splitlines() if "::" in line]
    for group in [*groups, "/"]:
        quota, _, period = _read(root / group.strip("/") / "cpu.max").strip().partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            yield int(quota) / int(period)
    quota = _read(root / "cpu/cpu.cfs_quota_us").strip()
    period = _read(root / "cpu/cpu.cfs_period_us").strip()
    if quota.isdecimal() and period.isdecimal() and int(period):
        yield int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
