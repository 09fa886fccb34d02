"""What to do about a row that failed: raise | null | drop | quarantine, with the place and a counter for each.

Running out of memory is never a row's fault: it fails the item under every policy, so that the worker can try it with more.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from cloudshard.engine.block import Origin
from cloudshard.engine.item import ItemFailed, ItemState, Tally
from cloudshard.errors import InputError, StepError, is_out_of_memory
from cloudshard.plan.values import OnError

#: Told before each call of user code in careful mode: (object, position, step).
BeforeRow = Callable[[str, int, str], None]

_MEND = 'Mend the function or the row, or give the step on_error="quarantine" or "drop".'
_MEND_SQL = "Mend the SQL, or convert the column before."


def user_traceback(error: BaseException) -> str:
    """The traceback without our own frames at its head."""
    frames = traceback.extract_tb(error.__traceback__)
    kept = [frame for frame in frames if "/cloudshard/engine/" not in frame.filename] or frames
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(kept), *traceback.format_exception_only(error)]
    return "".join(lines)


def step_error(error: BaseException, step: str, where: str) -> StepError:
    """The user's exception as a StepError that names step and place."""
    if isinstance(error, StepError):
        return error
    sql = type(error).__module__.lstrip("_").partition(".")[0] == "duckdb"
    made = StepError(
        f"step {step} failed: {error}" if sql else f"step {step} failed: {type(error).__name__}: {error}",
        step=step,
        where=where,
        mend=_MEND_SQL if sql else _MEND,
        traceback=user_traceback(error),
    )
    made.__cause__ = error
    return made


def suppress(
    state: ItemState,
    tally: Tally,
    policy: OnError,
    error: BaseException,
    *,
    step: str,
    origin: Origin,
    position: int,
    row: bytes | Mapping[str, Any] | None,
) -> bool:
    """Apply the policy to one failed row. True: the row stays, with null for the result.

    Raises ItemFailed for "raise", and when the attempt has suppressed more rows than the error budget of the whole run.
    """
    if policy == "raise" or is_out_of_memory(error):
        where = f"{origin.object}, {origin.unit} {position}"
        raise state.fail(error if isinstance(error, InputError) else step_error(error, step, where))
    if policy == "null":
        tally.nulled += 1
    elif policy == "drop":
        tally.dropped += 1
    else:
        tally.quarantined += 1
        state.quarantine.add(row, origin, position, error, step)
    state.suppressed_one_more()
    return policy == "null"


__all__ = ["BeforeRow", "ItemFailed", "is_out_of_memory", "step_error", "suppress", "user_traceback"]
