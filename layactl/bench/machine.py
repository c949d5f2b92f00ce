"""The machine a number was measured on, and what else it was doing meanwhile."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layactl.engine.threads import physical_cores
from layactl.reporting.identity import host

_CGROUP = Path("/sys/fs/cgroup")


def machine_record() -> dict[str, Any]:
    """CPU, instruction sets, cores, memory, frequency governor, cgroup limits, load; None where nobody says."""
    return {
        **host(),
        "physical_cores": physical_cores(),
        "logical_cpus": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "cgroup": {"cpu_max": _text(_CGROUP / "cpu.max"), "memory_max": _text(_CGROUP / "memory.max")},
        "load_average": load_average(),
        "python": sys.version.split()[0],
    }


def load_average() -> float | None:
    """Of the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def memory(pid: int | None = None) -> dict[str, int | None]:
    """Of a process (None: this one), in bytes: resident now, the most so far, and anonymous (in no file) now."""
    fields = dict(_fields(_text(f"/proc/{pid or 'self'}/status") or ""))
    found: dict[str, int | None] = {
        name: int(fields[key].split()[0]) * 1024 if key in fields else None
        for name, key in (("rss", "VmRSS"), ("peak", "VmHWM"), ("anonymous", "RssAnon"))
    }
    if pid is None and found["peak"] is None and sys.platform == "darwin":
        import resource

        found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found


@dataclass(frozen=True)
class Watch:
    """What all CPUs did up to one moment. busy: seconds of work of every process, None where nobody says."""

    at: float
    busy: float | None

    def foreign_cores(self, own_seconds: float) -> float | None:
        """Cores that others used since, on average. own_seconds: of CPU that is ours."""
        now = watch()
        if self.busy is None or now.busy is None:
            return None
        return max(0.0, (now.busy - self.busy - own_seconds) / max(1e-9, now.at - self.at))


def watch() -> Watch:
    """Linux counts every CPU's time, and what a hypervisor took from it, in /proc/stat."""
    line = (_text("/proc/stat") or "").partition("\n")[0].split()
    if len(line) < 9 or line[0] != "cpu":
        return Watch(time.monotonic(), None)
    user, nice, system, _, _, irq, soft, steal = map(int, line[1:9])
    return Watch(time.monotonic(), (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK"))


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        yield key, value.strip()
