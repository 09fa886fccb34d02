"""An executor with faults at will: rows are the numbers of a range, one line of output each. What goes wrong is in the step's params."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import time
from typing import Any

from cloudshard.ledger.keys import part_name
from cloudshard.ledger.records import PartRecord, RowCounts, ShardStats, StepCounts
from cloudshard.store.registry import open_store
from cloudshard.store.upload import UploadStream
from cloudshard.worker.execution import trouble_of
from cloudshard.worker.messages import Assign, AttemptOutput, Failed, Finished, Setup
from cloudshard.worker.pulse import Pulse


def make(setup: Setup, pulse: Pulse) -> FakeExecutor:
    params = setup.stage.steps[0].params
    if params.get("setup") == "raise":
        raise ImportError("no module named wrong")
    if params.get("setup") == "crash":
        os.kill(os.getpid(), 11)
    if params.get("setup_seconds"):
        time.sleep(params["setup_seconds"])
    if params.get("start_program"):
        subprocess.Popen(["sleep", "1000"])
    return FakeExecutor(setup, pulse, params)


class FakeExecutor:
    def __init__(self, setup: Setup, pulse: Pulse, params: dict[str, Any]) -> None:
        self.setup, self.pulse, self.params = setup, pulse, params
        self.results: list[Finished | Failed] = []
        self.held: list[Finished] = []
        self.hoard: list[bytes] = []

    def run(self, assign: Assign) -> None:
        began = time.monotonic()
        try:
            output = self._attempt(assign)
        except Exception as error:
            self.results.append(Failed(assign.ticket, trouble_of(error)))
            return
        seconds = time.monotonic() - began
        finished = Finished(assign.ticket, AttemptOutput(**output, stats=ShardStats(runtime_seconds=seconds)))
        (self.held if self.params.get("spans") else self.results).append(finished)

    def _attempt(self, assign: Assign) -> dict[str, Any]:
        spec = self.setup.stage
        sink = open_store(spec.sink.url or "")
        skip = {(row.object, row.position): row.reason for row in assign.poison}
        lines, bad, total = [], 0, 0
        for piece in assign.work.inputs:
            for position in range(piece.start, piece.end):
                total += 1
                if (piece.url, position) in skip:
                    bad += 1
                    continue
                if self.setup.careful:
                    self.pulse.at_row(piece.url, position, spec.steps[0].name)
                self.pulse.enter_call(self.params.get("long_call_seconds", 0))
                self._row(position)
                self.pulse.leave_call()
                self.pulse.beat(1, 10)
                lines.append(b"%d\n" % position)
        body = b"".join(lines)
        stream = UploadStream(sink, part_name(assign.work.index, 0, self.setup.run_tag, ".jsonl"))
        stream.write(body)
        made = stream.finish_parts()
        part = PartRecord(
            key=made.upload.key, rows=len(lines), bytes=made.size, checksum=made.checksum, upload=made.upload, upload_parts=made.parts
        )
        counts = {"rows_in": total, "rows_out": len(lines), "quarantined": bad}
        return {
            "parts": (part,),
            "counts": RowCounts(**counts),
            "steps": (StepCounts(step="bad", **counts), StepCounts(step=spec.steps[0].name, rows_in=len(lines), rows_out=len(lines))),
        }

    def _row(self, position: int) -> None:
        params = self.params
        if params.get("row_seconds"):
            time.sleep(params["row_seconds"])
        if params.get("row_program"):
            subprocess.run(["sleep", "0.2"], check=True)
        if position in params.get("crash_at", ()):
            ctypes.string_at(0)
        if position in params.get("exit_at", ()):
            print("about to leave", file=sys.stderr)
            os._exit(7)
        if position in params.get("hang_at", ()):
            time.sleep(3600)
        if position in params.get("raise_at", ()):
            raise ValueError(f"row {position} is wrong")
        if position in params.get("log_at", ()):
            logging.getLogger("user").warning("row %d looks odd", position)
        if position in params.get("hoard_at", ()):
            self.hoard = [os.urandom(1 << 20) for _ in range(params["hoard_mib"])]
            time.sleep(0.6)
            self.hoard = []
        if position in params.get("store_fails_at", ()):
            from cloudshard.errors import Unavailable

            if not os.path.exists(params["once"]):
                open(params["once"], "w").close()
                raise Unavailable("the input's bucket is away")

    def drain(self) -> None:
        self.results += self.held
        self.held = []

    def take_results(self) -> list[Finished | Failed]:
        results, self.results = self.results, []
        return results

    def close(self) -> None:
        if self.params.get("teardown_seconds"):
            time.sleep(self.params["teardown_seconds"])
