"""Paired runs, A B A B …: cloudshard against the script written by hand, or against a peer.

``python -m benchmarks.pairs w1 --data DATA [--pairs 5] [--peer NAME --peer-python PATH] [--limit-cpu 1.10 --limit-wall 1.10]``

Each run starts in a folder of its own. CPU is user and system time of the command and everything that it waited for. After each run
both outputs are compared by DuckDB: rows and sums. Prints a Markdown table of medians and of the ratio pair by pair; exits with 1 when a
median ratio is above its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
PEERS = {"datatrove": "datatrove.py", "ray_data": "ray_data.py", "daft": "daft_peer.py", "refiner": "refiner.py"}
CHECKS = {"w1": "count(*), sum(n_words), sum(length(text))", "w5": "count(*)"}


@dataclass(frozen=True)
class Measured:
    """One run: seconds, and MiB of the whole process tree (proportional set size) at its peak."""

    wall: float
    cpu: float
    memory: float


class Peak(threading.Thread):
    """Samples the memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.mib = 0.0
        self._process = psutil.Process(pid)
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.25):
            total = 0
            try:
                for process in (self._process, *self._process.children(recursive=True)):
                    info = process.memory_full_info()
                    total += getattr(info, "pss", info.rss)
            except psutil.Error:
                continue
            self.mib = max(self.mib, total / 2**20)

    def end(self) -> float:
        """Stop; the peak."""
        self._ended.set()
        self.join()
        return self.mib


def run(command: Sequence[str]) -> Measured:
    """Run to the end; a failure ends the benchmark with what it said."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said, env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"})
        peak = Peak(process.pid)
        peak.start()
        code = process.wait()
        wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        memory = peak.end()
        if code:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} failed with {code}:\n{said.read()[-2000:].decode(errors='replace')}")
    return Measured(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, memory)


def checked(folder: Path, workload: str) -> tuple[object, ...]:
    """What the output holds."""
    import duckdb

    files = [str(path) for path in folder.rglob("*.parquet") if "/.cloudshard" not in str(path)]
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
        theirs = [asked.peer_python, str(ROOT / "benchmarks" / "peers" / PEERS[asked.peer]), asked.workload, data]
    pairs: list[tuple[Measured, Measured]] = []
    for number in range(asked.pairs + 1):
        scratch = Path(tempfile.mkdtemp(prefix="bench-"))
        a, b = run([*ours, str(scratch / "a")]), run([*theirs, str(scratch / "b")])
        found, expected = checked(scratch / "a", asked.workload), checked(scratch / "b", asked.workload)
        shutil.rmtree(scratch)
        if found != expected:
            raise SystemExit(f"the outputs differ: {found} and {expected}")
        if number:  # the first pair warms the page cache
            pairs.append((a, b))
            if asked.results:
                with open(asked.results, "a") as out:
                    out.write(json.dumps({"workload": asked.workload, "peer": asked.peer, "a": vars(a), "b": vars(b)}) + "\n")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {len(pairs)} pairs\n")
    print(f"| {asked.workload} | cloudshard | {asked.peer or 'by hand'} | ratio: min, median, max |\n|---|---|---|---|")
    exceeded = False
    for name, unit, limit in (("wall", "s", asked.limit_wall), ("cpu", "s", asked.limit_cpu), ("memory", "MiB", None)):
        left, right = [getattr(a, name) for a, _ in pairs], [getattr(b, name) for _, b in pairs]
        ratios = sorted(x / y for x, y in zip(left, right, strict=True) if y)
        middle = statistics.median(ratios)
        exceeded = exceeded or (limit is not None and middle > limit)
        row = f"{statistics.median(left):.2f} {unit} | {statistics.median(right):.2f} {unit}"
        print(f"| {name} | {row} | {ratios[0]:.2f}, {middle:.2f}, {ratios[-1]:.2f} |")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
