"""Processes as a whole: nobody is left behind, whoever is killed; asked to stop, a worker stops in time and gives its leases back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloudshard.ledger import keys
from cloudshard.ledger.claims import lease_of
from cloudshard.ledger.records import RunSettings
from tests.worker.harness import Run

ROOT = Path(__file__).parents[2]


class Worker:
    """One worker process. ``tree``: the processes that belong to it, as far as they were ever seen."""

    def __init__(self, folder: Path, *, work: dict[str, Any] | None = None, **run: Any) -> None:
        given = json.dumps({"run": run, "work": work or {}})
        self.log = folder / f"worker-{time.monotonic_ns()}.log"
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.worker.one_worker", str(folder), given],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.tree: dict[int, psutil.Process] = {}
        self._programs: dict[int, psutil.Process] = {}

    def look(self) -> list[psutil.Process]:
        """Remember all descendants."""
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        self.tree.update({process.pid: process for process in found})
        return found

    def living(self) -> list[psutil.Process]:
        """Processes of the tree that are still there."""
        return [process for process in self.tree.values() if is_alive(process)]

    def programs(self) -> list[psutil.Process]:
        """Programs that user code has started, as far as they were seen alive."""
        for process in self.tree.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == "sleep":
                    self._programs[process.pid] = process
        return list(self._programs.values())

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def zygote(self) -> psutil.Process:
        return next(process for process in self.tree.values() if process.ppid() == self.process.pid)


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs: one that has ended and waits to be reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(process: psutil.Process) -> None:
    """SIGKILL, if it is still there."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def wait_until(true: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            pytest.fail(f"not within {seconds:g} s: {what}")
        time.sleep(0.03)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def begin(processes: int = 2, **run: Any) -> Worker:
        """A worker whose children are all at work, each with a program that its user code has started."""
        worker = Worker(tmp_path, work={"processes": processes}, **run)
        workers.append(worker)

        wait_until(
            lambda: len(worker.look()) >= 1 + 2 * processes, 20, f"a zygote, {processes} children and their programs: {worker.text()}"
        )
        return worker

    yield begin
    for worker in workers:
        worker.look()
        for process in worker.living():
            kill(process)
        worker.process.kill()
        worker.process.wait()


@pytest.mark.parametrize("first", ["supervisor", *(pytest.param(who, marks=pytest.mark.slow) for who in ("zygote", "children", "all"))])
def test_sigkill_leaves_no_process_behind(start: Callable[..., Worker], first: str) -> None:
    worker = start(items=4, rows=1, hang_at=[0, 1, 2, 3], start_program=True)
    zygote = worker.zygote()
    if first == "zygote":
        zygote.kill()
    elif first == "children":
        for child in zygote.children():
            kill(child)
    elif first == "all":
        for process in worker.living():
            kill(process)
    worker.process.kill()
    worker.process.wait()
    if first in ("zygote", "all"):  # supervisor and zygote at the same moment: nobody is left who could know of the programs
        for program in worker.programs():
            worker.tree.pop(program.pid)
            kill(program)
    wait_until(lambda: not worker.living(), 10, "the whole tree is gone")


def test_sigkill_of_the_supervisor_ends_the_programs_that_user_code_has_started(start: Callable[..., Worker]) -> None:
    worker = start(items=4, rows=1, hang_at=[0, 1, 2, 3], start_program=True)
    wait_until(
        lambda: bool(worker.look()) and len(worker.programs()) == 2, 10, "both programs run"
    )  # a fork bears its parent's name at first
    programs = worker.programs()
    worker.process.kill()
    worker.process.wait()
    wait_until(lambda: not any(is_alive(process) for process in programs), 5, "the programs are gone")


@pytest.mark.slow
def test_the_zygotes_death_is_no_items_fault(start: Callable[..., Worker], tmp_path: Path) -> None:
    worker = start(items=6, rows=4, row_seconds=0.1, start_program=True)
    programs = worker.programs()
    worker.zygote().kill()
    assert worker.process.wait(30) == 0, worker.text()
    assert programs
    wait_until(lambda: not any(is_alive(process) for process in programs), 5, "the programs are gone")
    again = Run(tmp_path, items=6, rows=4, row_seconds=0.1, start_program=True)
    assert again.failures() == []
    assert again.missing() == []


def test_sigterm_finishes_what_runs_releases_the_rest_and_exits_3(start: Callable[..., Worker], tmp_path: Path) -> None:
    parameters = {"items": 40, "rows": 5, "row_seconds": 0.1}
    worker = start(**parameters, start_program=True)
    wait_until(lambda: len(Run(tmp_path, **parameters, start_program=True).keys("stages/00/commits/")) >= 2, 20, "two commits")
    began = time.monotonic()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(25) == 3, worker.text()
    assert time.monotonic() - began < 8
    run = Run(tmp_path, **parameters, start_program=True)
    claimed = {keys.parse_entry(key).item for key in run.keys("stages/00/claims/")}
    committed = {keys.parse_entry(key).item for key in run.keys("stages/00/commits/")}
    for item in claimed - committed:
        newest = max(run.keys(keys.item_prefix(0, "claims", item)))
        assert lease_of(run.store.head(newest)).released, f"item {item} is neither committed nor released"
    assert run.failures() == []
    assert b'"exit_code":3' in run.store.get("workers/w-test.json")
    assert not worker.living()


@pytest.mark.slow
def test_sigterm_cuts_short_what_does_not_end_and_charges_nobody(tmp_path: Path) -> None:
    run = {"items": 4, "rows": 1, "hang_at": [0, 1, 2, 3]}
    worker = Worker(tmp_path, work={"processes": 2, "grace_seconds": 0.5}, **run)
    wait_until(lambda: len(worker.look()) >= 3, 20, "children")
    wait_until(lambda: len(Run(tmp_path, **run).keys("stages/00/claims/")) >= 2, 20, "claims")
    time.sleep(0.3)
    worker.process.send_signal(signal.SIGUSR1)
    assert worker.process.wait(10) == 3, worker.text()
    after = Run(tmp_path, **run)
    assert after.failures() == []
    assert all(lease_of(after.store.head(key)).released for key in after.keys("stages/00/claims/"))
    worker.look()
    assert not worker.living()


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    worker = Worker(tmp_path, work={"processes": 1}, items=2, rows=1, hang_at=[0, 1])
    wait_until(lambda: len(worker.look()) >= 2, 20, "a child")
    wait_until(lambda: len(Run(tmp_path, items=2, rows=1, hang_at=[0, 1]).keys("stages/00/claims/")) >= 1, 20, "a claim")
    worker.process.send_signal(signal.SIGINT)
    wait_until(lambda: "Ctrl-C again" in worker.text(), 5, "the first one is answered")
    began = time.monotonic()
    worker.process.send_signal(signal.SIGINT)
    assert worker.process.wait(5) == 3
    assert time.monotonic() - began < 1.5
    wait_until(lambda: not worker.living(), 3, "nobody is left")


@pytest.mark.slow
def test_stop_signals_to_every_process_of_the_job_are_no_failures(start: Callable[..., Worker], tmp_path: Path) -> None:
    parameters = {"items": 20, "rows": 5, "row_program": True}
    worker = start(**parameters, start_program=True)
    wait_until(lambda: len(Run(tmp_path, **parameters, start_program=True).keys("stages/00/claims/")) >= 2, 20, "claims")
    worker.look()
    for process in [*worker.living(), psutil.Process(worker.process.pid)]:
        process.send_signal(signal.SIGTERM)
    assert worker.process.wait(25) == 3, worker.text()
    assert Run(tmp_path, **parameters, start_program=True).failures() == []


@pytest.mark.slow
def test_invariant_6_a_worker_that_wakes_up_after_its_lease_commits_nothing_and_takes_up_work_again(tmp_path: Path) -> None:
    settings = RunSettings(lease_seconds=1.5, lease_margin_seconds=0.3)
    parameters = {"items": 6, "rows": 4, "row_seconds": 0.1}
    Run(tmp_path, settings=settings, **parameters)
    worker = Worker(tmp_path, work={"processes": 2}, **parameters)
    wait_until(lambda: len(Run(tmp_path, **parameters).keys("stages/00/claims/")) >= 2, 20, "claims")
    os.kill(worker.process.pid, signal.SIGSTOP)
    other = Run(tmp_path, **parameters)
    assert other.work(poll_interval=0.1) == 0
    os.kill(worker.process.pid, signal.SIGCONT)
    assert worker.process.wait(20) == 0, worker.text()
    assert other.missing() == []
    assert other.failures() == []


@pytest.mark.slow
def test_children_are_forked_from_a_clean_process_and_cost_little(tmp_path: Path) -> None:
    script = (
        "import resource, sys, pathlib\n"
        "from tests.worker.harness import Run\n"
        "run = Run(pathlib.Path(sys.argv[1]), items=8, rows=2)\n"
        "assert run.work() == 0\n"
        "import os\n"
        "mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(theirs.ru_utime + theirs.ru_stime, type(run.last.crew._zygote._process).__name__)\n"
    )
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seconds, process = done.stdout.split()
    assert process == "NoneType", "a process without threads is forked, not started anew"
    assert float(seconds) < 0.3
