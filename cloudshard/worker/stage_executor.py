"""The executor of a child: the engine's driver, fed with assignments.

All of an attempt counts as one long call that begins anew with every block: the flush at an item's end runs user code like the rest, and a
GPU's last batch may take minutes. What is a call too long is the watch's affair (:mod:`cloudshard.worker.watch`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cloudshard.engine.attempt import AttemptContext, AttemptFailure, AttemptResult
from cloudshard.engine.driver import Driver
from cloudshard.engine.output import StoreOutput
from cloudshard.functions import load
from cloudshard.store.registry import open_object, open_store
from cloudshard.worker.execution import trouble_of
from cloudshard.worker.liveness import Liveness, look_every
from cloudshard.worker.messages import Assign, AttemptOutput, Failed, Finished, Setup
from cloudshard.worker.pulse import Pulse


def make_executor(setup: Setup, pulse: Pulse) -> StageExecutor:
    """Compile the stage of ``setup``; user classes are set up here."""
    return StageExecutor(setup, pulse)


class StageExecutor:
    """Runs attempts of one stage through one driver, so that batches and windows span items."""

    def __init__(self, setup: Setup, pulse: Pulse) -> None:
        run_store = open_store(setup.run_url)
        sink = setup.stage.sink
        output_store = open_store(sink.url, sink.store_options) if sink.url is not None else run_store
        source_options = setup.stage.source.store_options
        self._setup = setup
        self._pulse = pulse
        self._allowed = max((step.long_call_seconds or 0.0 for step in setup.stage.steps), default=0.0)
        self._tickets: dict[str, int] = {}
        self._driver = Driver(
            setup.stage,
            open_object=lambda url: open_object(url, source_options),
            load_function=lambda reference: load(reference, run_store.get),
            output=StoreOutput(sink, output_store, run_store),
            careful=setup.careful,
            before_row=pulse.at_row if setup.careful else None,
            progress=pulse.beat,
            call_began=pulse.enter_call,
            call_ended=self._block_ended,
        )
        self._liveness = Liveness(pulse, every=look_every(self._allowed or setup.patience_seconds))
        self._liveness.start()

    def _block_ended(self) -> None:
        self._pulse.leave_row()  # a crash in the reader must not be laid at the door of the row before
        self._pulse.enter_call(self._allowed)

    def _as_call(self, work: Callable[[], None]) -> None:
        self._pulse.enter_call(self._allowed)
        try:
            work()
        finally:
            self._pulse.leave_call()

    def run(self, assign: Assign) -> None:
        """See :class:`cloudshard.worker.execution.Executor`."""
        self._tickets[assign.nonce] = assign.ticket
        places = {(row.object, row.position): row.reason for row in assign.poison}
        attempt = AttemptContext(
            stage=self._setup.stage.index,
            item=assign.work.index,
            epoch=assign.epoch,
            nonce=assign.nonce,
            run_tag=self._setup.run_tag,
            skip=frozenset(places),
            careful=self._setup.careful,
            skip_reasons={place: reason for place, reason in places.items() if reason},
        )
        self._as_call(lambda: self._driver.run_item(assign.work, attempt))

    def drain(self) -> None:
        """See :class:`cloudshard.worker.execution.Executor`."""
        self._as_call(self._driver.drain)

    def take_results(self) -> Sequence[Finished | Failed]:
        """See :class:`cloudshard.worker.execution.Executor`."""
        results: list[Finished | Failed] = []
        while self._driver.finished:
            results.append(self._answer(self._driver.finished.popleft()))
        return results

    def _answer(self, ended: AttemptResult | AttemptFailure) -> Finished | Failed:
        ticket = self._tickets.pop(ended.nonce)
        if isinstance(ended, AttemptFailure):
            return Failed(ticket, trouble_of(ended.error))
        output = AttemptOutput(
            parts=ended.parts,
            counts=ended.counts,
            steps=ended.steps,
            quarantine_key=ended.quarantine,
            schema=ended.schema,
            stats=ended.stats,
        )
        return Finished(ticket, output)

    def close(self) -> None:
        """See :class:`cloudshard.worker.execution.Executor`."""
        self._liveness.end()
        self._driver.close()
