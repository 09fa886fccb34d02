"""What to do about a row that failed: raise | null | drop | quarantine, with the place and a counter for each."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from cloudshard.engine.block import Origin
from cloudshard.engine.item import ItemFailed, ItemState, Tally
from cloudshard.errors import InputError, StepError
from cloudshard.plan.values import OnError

#: Told before each call of user code in careful mode: (object, position, step).
BeforeRow = Callable[[str, int, str], None]


def user_traceback(error: BaseException) -> str:
    """The traceback without our own frames at its head."""
    frames = traceback.extract_tb(error.__traceback__)
    kept = [frame for frame in frames if "/cloudshard/engine/" not in frame.filename] or frames
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(kept), *traceback.format_exception_only(error)]
    return "".join(lines)


def step_error(error: BaseException, step: str, origin: Origin, position: int) -> StepError:
    """The user's exception as a StepError that names step, object and position."""
    if isinstance(error, StepError):
        return error
    what = f"step {step} failed: {type(error).__name__}: {error}"
    made = StepError(
        what,
        step=step,
        where=f"{origin.object}, {origin.unit} {position}",
        mend="Mend the function or the row, or give the step on_error='quarantine' | 'drop' | 'null'.",
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
    """Apply the policy to one failed row. True: the row stays, with null for the result. Raises ItemFailed for "raise"."""
    if policy == "raise":
        raise state.fail(error if isinstance(error, InputError) else step_error(error, step, origin, position))
    if policy == "null":
        tally.nulled += 1
        return True
    if policy == "drop":
        tally.dropped += 1
        return False
    tally.quarantined += 1
    state.quarantine.add(row, origin, position, error, step)
    return False


__all__ = ["BeforeRow", "ItemFailed", "step_error", "suppress", "user_traceback"]
