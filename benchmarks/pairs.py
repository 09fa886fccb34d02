"""Paired runs, A B A B …: cloudshard against the script written by hand, or against a peer.

``python -m benchmarks.pairs w1 --data DATA [--pairs 5] [--peer NAME --peer-python PATH] [--limit-cpu 1.10 --limit-wall 1.10]``

Each run starts in a folder of its own. CPU is user and system time of the whole process tree: this process adopts orphans (Linux), and
what a sampler saw counts where a parent never waited for its child, as with Ray. After each run both outputs are compared by DuckDB: rows
and sums. Prints the machine, versions, the load and a Markdown table of medians and of the ratio pair by pair; exits with 1 when a median
ratio is above its limit. A peer whose Python is missing is named and skipped (0). Measure on an idle machine: W5 is mostly system time,
and its ratio grows with other people's load.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
PEERS = {"datatrove": "datatrove.py", "ray_data": "ray_data.py", "daft": "daft_peer.py", "refiner": "refiner.py"}
CHECKS = {"w1": "count(*), sum(n_words), sum(length(text))", "w5": "count(*), sum(x)"}
PR_SET_CHILD_SUBREAPER = 36
ORPHAN_SECONDS = 3.0  # how long daemons of a finished command may take to end


@dataclass(frozen=True)
class Measured:
    """One run: seconds; MiB at the peak, of the whole process tree (proportional set size) and of the largest process (resident)."""

    wall: float
    cpu: float
    memory: float
    largest: float


class Peak(threading.Thread):
    """Samples memory and CPU of this process's descendants. A process that ends between two looks is missed; the others are not."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mib = self.largest = 0.0
        self._seconds: dict[tuple[int, float], float] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.25):
            total = 0.0
            for process in descendants():
                try:
                    info, times = process.memory_full_info(), process.cpu_times()
                    self._seconds[process.pid, process.create_time()] = times.user + times.system
                except psutil.Error:
                    continue  # it has ended meanwhile
                total += getattr(info, "pss", info.rss)
                self.largest = max(self.largest, info.rss / 2**20)
            self.mib = max(self.mib, total / 2**20)

    def end(self) -> float:
        """Stop; CPU seconds seen."""
        self._ended.set()
        self.join()
        return sum(self._seconds.values())


def descendants() -> list[psutil.Process]:
    """All processes below this one."""
    return psutil.Process().children(recursive=True)


def adopt_orphans() -> None:
    """Make this process the parent of orphans below it, so that their CPU time is counted and none outlives its run. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Wait for what a finished command left running; after ``ORPHAN_SECONDS`` end it."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if time.monotonic() > deadline:
                for process in descendants():
                    process.send_signal(signal.SIGKILL)
            time.sleep(0.02)


def run(command: Sequence[str]) -> Measured:
    """Run to the end; a failure ends the benchmark with what it said."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said, env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"})
        peak = Peak()
        peak.start()
        code = process.wait()
        wall = time.monotonic() - begun
        reap_orphans()
        seen, after = peak.end(), resource.getrusage(resource.RUSAGE_CHILDREN)
        if code:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} failed with {code}:\n{said.read()[-2000:].decode(errors='replace')}")
    waited = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(wall, max(waited, seen), peak.mib, peak.largest)


def checked(folder: Path, workload: str) -> tuple[object, ...]:
    """What the output holds."""
    import duckdb

    # hidden folders are a peer's own logs and state
    files = [str(path) for path in folder.rglob("*.parquet") if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not files:
        raise SystemExit(f"no Parquet file in {folder}")
    query = f"SELECT {CHECKS[workload]} FROM read_parquet(?)"
    return tuple(duckdb.execute(query, [files]).fetchall()[0])


def main() -> int:
    """0 when the limits hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=sorted(CHECKS))
    parser.add_argument("--data", default="data")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--peer", choices=sorted(PEERS))
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--limit-cpu", type=float)
    parser.add_argument("--limit-wall", type=float)
    parser.add_argument("--results", help="append one JSON line per pair to this file")
    asked = parser.parse_args()
    data = str(Path(asked.data).resolve())
    ours = [sys.executable, "-m", "benchmarks.jobs", asked.workload, data]
    theirs = [sys.executable, "-m", "benchmarks.handwritten", asked.workload, data]
    if asked.peer:
        if shutil.which(asked.peer_python) is None:
            print(f"{asked.peer}: skipped, there is no Python at {asked.peer_python} (see benchmarks/peers/README.md)")
            return 0
        theirs = [asked.peer_python, str(ROOT / "benchmarks" / "peers" / PEERS[asked.peer]), asked.workload, data]
    adopt_orphans()
    load = os.getloadavg()[0]
    versions = {name: version(name) for name in ("cloudshard", "pyarrow", "orjson", "duckdb")}
    pairs: list[tuple[Measured, Measured]] = []
    for number in range(asked.pairs + 1):
        scratch = Path(tempfile.mkdtemp(prefix="bench-"))
        a, b = run([*ours, str(scratch / "a")]), run([*theirs, str(scratch / "b")])
        found, expected = checked(scratch / "a" / "parts", asked.workload), checked(scratch / "b", asked.workload)
        shutil.rmtree(scratch)
        if found != expected:
            raise SystemExit(f"the outputs differ: {found} and {expected}")
        if number:  # the first pair warms the page cache
            pairs.append((a, b))
            if asked.results:
                with open(asked.results, "a") as out:
                    out.write(
                        json.dumps(
                            {"workload": asked.workload, "peer": asked.peer, "versions": versions, "load": load, "a": vars(a), "b": vars(b)}
                        )
                        + "\n"
                    )
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {len(pairs)} pairs, load {load:.2f} at start")
    print(", ".join(f"{name} {number}" for name, number in versions.items()) + "\n")
    print(f"| {asked.workload} | cloudshard | {asked.peer or 'by hand'} | ratio: min, median, max |\n|---|---|---|---|")
    exceeded = False
    for name, unit, limit in (
        ("wall", "s", asked.limit_wall),
        ("cpu", "s", asked.limit_cpu),
        ("memory", "MiB", None),
        ("largest", "MiB", None),
    ):
        left, right = [getattr(a, name) for a, _ in pairs], [getattr(b, name) for _, b in pairs]
        ratios = sorted(x / y for x, y in zip(left, right, strict=True) if y)
        middle = statistics.median(ratios)
        exceeded = exceeded or (limit is not None and middle > limit)
        row = f"{statistics.median(left):.2f} {unit} | {statistics.median(right):.2f} {unit}"
        print(f"| {name} | {row} | {ratios[0]:.2f}, {middle:.2f}, {ratios[-1]:.2f} |")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
