"""What a child runs: the executor of a stage, and how exceptions become data."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Protocol

from cloudshard.errors import CloudshardError, DiskFull, LeaseLost, PermissionDenied, StepError, Transient, is_out_of_memory
from cloudshard.worker.messages import Assign, Failed, Finished, Trouble

#: The store's or the machine's fault: the claim is released and nothing is charged to the item.
INFRASTRUCTURE = (Transient, PermissionDenied, DiskFull, LeaseLost)
MAX_TEXT = 20_000


class Executor(Protocol):
    """Runs the attempts of one stage. Results may come late, when batches span items, but every attempt gets exactly one."""

    def run(self, assign: Assign) -> None:
        """Read the item's rows and push them through the steps. Failures become results, not exceptions."""
        ...

    def drain(self) -> None:
        """Flush every queue, so that all attempts begun so far get their results."""
        ...

    def take_results(self) -> Sequence[Finished | Failed]:
        """Results since the last call."""
        ...

    def close(self) -> None:
        """Tear the steps down."""
        ...


def trouble_of(error: BaseException) -> Trouble:
    """An exception as data: type, message, place, step, traceback, and whose fault it is."""
    cause = error.__cause__ if isinstance(error, StepError) and error.__cause__ is not None else error
    told = error.traceback if isinstance(error, StepError) and error.traceback else "".join(traceback.format_exception(error))
    return Trouble(
        error_type=type(cause).__name__,
        message=(error.what if isinstance(error, CloudshardError) else str(error))[:MAX_TEXT] or type(error).__name__,
        where=error.where if isinstance(error, CloudshardError) else "",
        step=error.step if isinstance(error, StepError) else "",
        traceback=told[-MAX_TEXT:],
        kind="oom" if is_out_of_memory(cause) else "error",
        infrastructure=isinstance(error, INFRASTRUCTURE),
        denied=isinstance(error, PermissionDenied),
    )
