"""What this machine lets the worker use: cores, memory, scratch space, and an environment in which libraries keep to one thread.

Containers limit by cgroups what the host seems to offer. Both hierarchies are read: version 2 (``cpu.max``, ``memory.max``) and
version 1 (``cpu.cfs_quota_us``, ``memory.limit_in_bytes``), from the process's own group up to the root; the smallest counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Of the memory, what children may use: the rest is for page cache, the kernel and estimates that are off.
USABLE_MEMORY_FRACTION = 0.9
#: Measured: supervisor and zygote use 60 to 90 MiB together.
RESERVED_MEMORY_BYTES = 256 << 20
#: "auto" makes no more children than this much memory each allows: Arrow, the engine and one block of rows need about half of it.
MIN_CHILD_MEMORY_BYTES = 512 << 20
_NO_LIMIT = 1 << 60

#: One process per core: libraries that start a thread per core on their own would make cores² threads.
SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@contextlib.contextmanager
def single_thread_environment(*, keep: bool = False) -> Iterator[None]:
    """Set the variables of :data:`SINGLE_THREADED` that the user has not set; undo it at the end unless ``keep``."""
    added = {name: value for name, value in SINGLE_THREADED.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        if not keep:
            for name in added:
                os.environ.pop(name, None)


# ---------------------------------------------------------------- cgroups


def _groups(controller: str, *, proc: Path, root: Path) -> Iterator[Path]:
    """Folders of this process's groups for a controller, innermost first; version 2's single hierarchy included."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if not names:
            base = root / "unified" if (root / "unified").is_dir() else root
        elif controller in names.split(","):
            base = root / names if (root / names).is_dir() else root / controller
        else:
            continue
        folder = base / path.lstrip("/")
        # in a container the path may be that of the host, while the mount shows the container's own group as the root
        while folder != base and base in folder.parents:
            if folder.is_dir():
                yield folder
            folder = folder.parent
        if base.is_dir():
            yield base


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().split()[0]
    except (OSError, IndexError):
        return None
    try:
        return int(text)
    except ValueError:
        return None  # "max"


def cpu_quota(*, proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores' worth of time that the cgroups allow; None: no limit."""
    quotas: list[float] = []
    for folder in _groups("cpu", proc=proc, root=root):
        try:
            quota, period = (folder / "cpu.max").read_text().split()[:2]
            if quota != "max":
                quotas.append(int(quota) / int(period))
        except (OSError, ValueError):
            old, of = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
            if old is not None and old > 0 and of:
                quotas.append(old / of)
    return min(quotas, default=None)


def usable_cores() -> int:
    """Cores that this process may keep busy: its affinity, bounded by the cgroups' quota (rounded, at least 1)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, round(quota)))


def memory_limit(*, proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this process's machine or container has."""
    limits = [_host_memory(proc)]
    for folder in _groups("memory", proc=proc, root=root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(folder / name)
            if limit is not None and 0 < limit < _NO_LIMIT:
                limits.append(limit)
    return min(limits)


def _host_memory(proc: Path) -> int:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    import psutil

    return int(psutil.virtual_memory().total)


def oom_kills(*, proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """How many processes of this container the kernel has killed for lack of memory so far; None where nothing tells."""
    for folder in _groups("memory", proc=proc, root=root):
        for name in ("memory.events", "memory.oom_control"):
            try:
                lines = (folder / name).read_text().splitlines()
            except OSError:
                continue
            for line in lines:
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    return None


# ---------------------------------------------------------------- the share of a child


@dataclass(frozen=True, slots=True)
class Shares:
    """How the machine is divided. ``child_bytes``: one child's memory; ``budget_bytes``: of all children, or of one that is alone."""

    processes: int
    child_bytes: int
    budget_bytes: int

    def limit(self, memory_class: int) -> int:
        """Memory of a child that runs an item of that class: 0 its share, 1 twice the share, 2 everything."""
        if memory_class >= 2:
            return max(self.budget_bytes, self.child_bytes)
        return min(self.child_bytes * (1 + memory_class), max(self.budget_bytes, self.child_bytes))


def divide(
    processes: int | None = None, memory_per_child: int | None = None, *, cores: int | None = None, memory: int | None = None
) -> Shares:
    """``processes`` None: "auto", one per usable core as far as the memory goes. ``memory_per_child`` None: an equal share."""
    total = memory_limit() if memory is None else memory
    budget = max(int(total * USABLE_MEMORY_FRACTION) - RESERVED_MEMORY_BYTES, total // 2)
    if processes is None:
        room = budget // (memory_per_child or MIN_CHILD_MEMORY_BYTES)
        processes = max(1, min(usable_cores() if cores is None else cores, room))
    return Shares(processes, memory_per_child or budget // processes, budget)


# ---------------------------------------------------------------- scratch


class Scratch:
    """A folder for this worker's temporary files, deleted at its end; what killed workers have left is deleted by the next one.

    Under ``CLOUDSHARD_SCRATCH``, or the system's folder for temporary files. A lock on the folder says that its worker lives.
    """

    def __init__(self, worker: str, *, base: str | None = None) -> None:
        self._base = base or os.environ.get("CLOUDSHARD_SCRATCH") or tempfile.gettempdir()
        self._root = os.path.join(self._base, f"cloudshard-{os.getuid()}")
        self.path = os.path.join(self._root, worker)
        self._lock: int | None = None

    def open(self) -> str:
        """Make the folder (once); its path."""
        while self._lock is None:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(handle, fcntl.LOCK_SH)
            if os.fstat(handle).st_nlink:
                self._lock = handle
                self._sweep()
            else:  # swept away between making and locking it
                os.close(handle)
        return self.path

    def _sweep(self) -> None:
        for entry in _folders(self._root):
            if entry == self.path:
                continue
            with contextlib.suppress(OSError):  # somebody else sweeps, or its worker lives
                handle = os.open(entry, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(entry, ignore_errors=True)
                finally:
                    os.close(handle)

    def close(self) -> None:
        """Delete the folder."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _folders(root: str) -> Sequence[str]:
    try:
        return [entry.path for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def packages() -> dict[str, str]:
    """Versions of Python and of what reads and writes the data, for the run's and the worker's record."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("cloudshard", "pyarrow", "duckdb", "numpy"):
        module = sys.modules.get(name)
        version = getattr(module, "__version__", None) if module is not None else None
        if version is None and name == "cloudshard":
            from importlib.metadata import version as installed

            version = installed(name)
        if version is not None:
            found[name] = str(version)
    return found
