"""Cores, memory and scratch space, on made-up machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudshard.worker import resources
from cloudshard.worker.resources import Scratch, Shares, divide

GIB = 1 << 30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "meminfo", "MemTotal:       67108864 kB\nMemFree: 1 kB\n")
    root.mkdir()
    return proc, root


def test_without_cgroups_the_host_counts(machine: tuple[Path, Path]) -> None:
    proc, root = machine
    write(proc / "self/cgroup", "")
    assert resources.memory_limit(proc=proc, root=root) == 64 * GIB
    assert resources.cpu_quota(proc=proc, root=root) is None
    assert resources.oom_kills(proc=proc, root=root) is None


def test_version_2_the_smallest_limit_of_all_ancestors_counts(machine: tuple[Path, Path]) -> None:
    proc, root = machine
    write(proc / "self/cgroup", "0::/pod/container\n")
    write(root / "pod/container/memory.max", "max\n")
    write(root / "pod/container/cpu.max", "max 100000\n")
    write(root / "pod/memory.max", f"{8 * GIB}\n")
    write(root / "pod/cpu.max", "250000 100000\n")
    write(root / "pod/container/memory.events", "low 0\nmax 3\noom 2\noom_kill 4\n")
    assert resources.memory_limit(proc=proc, root=root) == 8 * GIB
    assert resources.cpu_quota(proc=proc, root=root) == 2.5
    assert resources.oom_kills(proc=proc, root=root) == 4


def test_version_2_in_a_container_that_shows_its_own_group_as_the_root(machine: tuple[Path, Path]) -> None:
    proc, root = machine
    write(proc / "self/cgroup", "0::/kubepods/burstable/pod123/abc\n")
    write(root / "memory.max", f"{2 * GIB}\n")
    write(root / "cpu.max", "50000 100000\n")
    assert resources.memory_limit(proc=proc, root=root) == 2 * GIB
    assert resources.cpu_quota(proc=proc, root=root) == 0.5


def test_version_1_hierarchies(machine: tuple[Path, Path]) -> None:
    proc, root = machine
    write(proc / "self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/x\n")
    write(root / "memory/job/memory.limit_in_bytes", f"{3 * GIB}\n")
    write(root / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(root / "memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    write(root / "cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n")
    write(root / "cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
    assert resources.memory_limit(proc=proc, root=root) == 3 * GIB
    assert resources.cpu_quota(proc=proc, root=root) == 3.0
    assert resources.oom_kills(proc=proc, root=root) == 1


def test_auto_takes_the_cores_as_far_as_the_memory_goes() -> None:
    assert divide(cores=8, memory=64 * GIB).processes == 8
    assert divide(cores=64, memory=4 * GIB).processes == 6
    assert divide(cores=8, memory=64 * GIB, memory_per_child=20 * GIB).processes == 2
    assert divide(cores=8, memory=256 << 20).processes == 1


def test_shares_of_children_fit_into_the_budget() -> None:
    shares = divide(4, cores=8, memory=16 * GIB)
    assert shares.processes == 4
    assert shares.child_bytes * 4 <= shares.budget_bytes < 16 * GIB
    assert divide(4, 1 * GIB, memory=16 * GIB).child_bytes == GIB


def test_classes_of_memory() -> None:
    shares = Shares(4, 2 * GIB, 8 * GIB)
    assert [shares.limit(memory_class) for memory_class in range(4)] == [2 * GIB, 4 * GIB, 8 * GIB, 8 * GIB]
    assert Shares(1, 8 * GIB, 8 * GIB).limit(1) == 8 * GIB


def test_libraries_keep_to_one_thread_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    with resources.single_thread_environment():
        assert os.environ["OMP_NUM_THREADS"] == "1"
        assert os.environ["MKL_NUM_THREADS"] == "7"
    assert "OMP_NUM_THREADS" not in os.environ


def test_scratch_of_dead_workers_is_swept_and_that_of_living_ones_is_not(tmp_path: Path) -> None:
    living = Scratch("living", base=str(tmp_path))
    alive = Path(living.open())
    (alive / "file").write_text("in use")
    dead = alive.parent / "dead"
    dead.mkdir()
    (dead / "left over").write_text("x")
    other = Scratch("other", base=str(tmp_path))
    other.open()
    assert (alive / "file").exists()
    assert not dead.exists()
    living.close()
    assert not alive.exists()
    other.close()
