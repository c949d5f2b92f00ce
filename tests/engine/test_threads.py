"""Threads: the physical cores a process may use, what is asked for instead, and what the environment says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from layactl.engine import threads
from layactl.errors import UsageError


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*threads._CONFLICTS, "LAYACTL_THREADS"):
        monkeypatch.delenv(name, raising=False)


def test_what_is_asked_beats_the_variable_which_beats_the_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "physical_cores", lambda: 6)
    assert threads.command_threads(None) == (6, [])
    monkeypatch.setenv("LAYACTL_THREADS", "3")
    assert threads.command_threads(None) == (3, [])
    assert threads.command_threads(2) == (2, [])


@pytest.mark.parametrize("text", ["two", "-1", "1.5", "99999999"])
def test_a_variable_that_is_no_number_is_refused(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAYACTL_THREADS", text)
    with pytest.raises(UsageError, match="must be a number of threads"):
        threads.command_threads(None)


@pytest.mark.parametrize("name", threads._CONFLICTS)
def test_another_number_in_the_environment_is_told_and_not_obeyed(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, "1")
    count, notes = threads.command_threads(4)
    assert count == 4
    assert notes == [f"{name}=1 is set in the environment; 4 threads are used (--threads decides)"]
    assert threads.command_threads(1) == (1, [])


# The CPUs that each CPU shares its core with.
TOPOLOGIES = {
    "no hyperthreads": ({0: {0}, 1: {1}, 2: {2}}, 3),
    "two hyperthreads a core": ({0: {0, 2}, 1: {1, 3}, 2: {0, 2}, 3: {1, 3}}, 2),
    "half of each core": ({0: {0, 2}, 1: {1, 3}}, 2),
    "one whole core": ({0: {0, 2}, 2: {0, 2}}, 1),
    "nobody says": ({0: set(), 1: set()}, 2),
}


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_hyperthreads_of_one_core_count_once(name: str, monkeypatch: pytest.MonkeyPatch):
    siblings, cores = TOPOLOGIES[name]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(siblings))
    monkeypatch.setattr(threads, "_siblings", lambda cpu: frozenset(siblings[cpu]))
    monkeypatch.setattr(threads, "_quotas", lambda: iter(()))
    assert threads.physical_cores() == cores
    for quota, expected in ((0.5, 1), (1.9, 1), (64.0, cores)):
        monkeypatch.setattr(threads, "_quotas", lambda quota=quota: iter((quota, 100.0)))
        assert threads.physical_cores() == min(cores, expected)


QUOTAS = {
    "version 2": ({"cpu.max": "150000 100000\n"}, [1.5]),
    "version 2 without a limit": ({"cpu.max": "max 100000\n"}, []),
    "version 1": ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, [2.0]),
    "version 1 without a limit": ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, []),
    "nothing there": ({}, []),
    "nonsense": ({"cpu.max": "many few\n", "cpu/cpu.cfs_quota_us": "\n"}, []),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_quotas_of_control_groups(name: str, tmp_path: Path):
    files, quotas = QUOTAS[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    assert list(threads._quotas(tmp_path))[-1:] == quotas


@pytest.mark.parametrize(
    "variables, expected",
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
    ids=["nothing said", "a count of its own", "a policy of its own"],
)
def test_waiting_threads_give_their_core_back_soon_unless_the_environment_says_otherwise(
    variables: dict[str, str], expected: str | None
):
    script = "import os; from layactl.cli.app import main; main(['presets']); print(os.environ.get('GOMP_SPINCOUNT'))"
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", script], env=kept | variables, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == str(expected)
