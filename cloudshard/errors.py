"""Every error that cloudshard raises, in one tree.

CloudshardError                 anything that cloudshard says went wrong; carries one sentence, a place and a mend
├─ RecipeError                  the pipeline, its parameters or the command line are wrong          exit 2
│  └─ PlanMismatch              another plan already owns this run's prefix                         exit 2
├─ InputError                   the input cannot be read as declared                                exit 2
│  ├─ RowError                  one row: object, position, reason
│  ├─ SchemaError               columns that cannot be widened to one type, or unknown late columns
│  └─ InputChanged              an object no longer has the ETag or size that was planned
├─ StepError                    user code raised; carries the step and the row's place              task failure
├─ ChildCrashed                 a child process died, hung or outgrew its memory                    task failure
├─ RunFailed                    work items are dead: their retry budget is spent                    exit 2
│  └─ ErrorBudgetExceeded       more rows were suppressed than the run allows                       exit 2
├─ IntegrityError               counts or checksums disagree with the ledger                        exit 2
├─ LeaseLost                    this worker may no longer work on the item                          infrastructure
├─ Preempted                    asked to stop; may be run again                                     exit 3
├─ DiskFull                     a local path has no room left                                       infrastructure
└─ StoreError                   the bucket: named after what happened, not after HTTP codes         infrastructure
   ├─ AlreadyExists             create() of a key that is there
   ├─ NotFound                  no such key (or upload: UploadGone)
   │  └─ UploadGone             the multipart upload was finished or aborted before
   ├─ PreconditionFailed        the object is not the one that was asked for (ETag)
   ├─ PermissionDenied          refused, or the credentials are missing or expired
   ├─ Unsupported               this store cannot do that
   └─ Transient                 may succeed when tried again; the outcome of a write is UNKNOWN
      ├─ Throttled              503 SlowDown and its kin: slow down
      ├─ Conflict               409 ConditionalRequestConflict: a write of the same key is in flight
      └─ Unavailable            time-outs, resets, 5xx
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_INCOMPLETE = 1
EXIT_FAILED = 2
EXIT_PREEMPTED = 3


#: What running out of memory is called, by name: the types belong to libraries that need not be imported.
_OUT_OF_MEMORY = frozenset({"MemoryError", "ArrowMemoryError", "OutOfMemoryException", "OutOfMemoryError", "_ArrayMemoryError"})


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that there is no more memory (of any library)."""
    return type(error).__name__ in _OUT_OF_MEMORY


class CloudshardError(Exception):
    """One clear sentence: what happened, ``where`` (run, item, object, row), and the ``mend`` (what to do)."""

    exit_code = EXIT_FAILED

    def __init__(self, what: str, *, where: str = "", mend: str = "") -> None:
        super().__init__(what, where, mend)
        self.what = what
        self.where = where
        self.mend = mend

    def __str__(self) -> str:
        text = self.what if not self.where else f"{self.what} ({self.where})"
        return text if not self.mend else f"{text}. {self.mend}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[CloudshardError], args: tuple[str, ...], state: dict[str, object]) -> CloudshardError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class RecipeError(CloudshardError):
    """The pipeline, its parameters or the command line are wrong."""


class PlanMismatch(RecipeError):
    """Another plan owns this run's prefix; ``differences`` holds (field, planned, given)."""

    def __init__(self, what: str, *, where: str = "", mend: str = "", differences: tuple[tuple[str, str, str], ...] = ()) -> None:
        super().__init__(what, where=where, mend=mend)
        self.differences = differences


class InputError(CloudshardError):
    """The input cannot be read as declared."""


class RowError(InputError):
    """One row cannot be read: ``object`` (URL), ``position`` (byte offset, or row index for columnar files), ``reason``."""

    def __init__(self, reason: str, *, object: str, position: int, unit: str = "byte", mend: str = "") -> None:
        super().__init__(reason, where=f"{object}, {unit} {position}", mend=mend)
        self.reason = reason
        self.object = object
        self.position = position


class SchemaError(InputError):
    """Columns that cannot be widened to one type, or columns that the schema does not know."""


class InputChanged(InputError):
    """An input object is no longer the one that was planned."""


class StepError(CloudshardError):
    """User code raised. ``step`` is its name; the place of the row is in ``where``."""

    def __init__(self, what: str, *, step: str, where: str = "", mend: str = "", traceback: str = "") -> None:
        super().__init__(what, where=where, mend=mend)
        self.step = step
        self.traceback = traceback


class ChildCrashed(CloudshardError):
    """A child process died (``kind``: crash | oom | hang)."""

    def __init__(self, what: str, *, kind: str, where: str = "", mend: str = "") -> None:
        super().__init__(what, where=where, mend=mend)
        self.kind = kind


class RunFailed(CloudshardError):
    """Work items are dead: their retry budget is spent."""


class ErrorBudgetExceeded(RunFailed):
    """More rows were suppressed (quarantined, dropped or nulled after an error) than the run allows."""


class IntegrityError(CloudshardError):
    """Counts or checksums disagree with the ledger."""


class LeaseLost(CloudshardError):
    """This worker may no longer work on the item: its lease ran out or a successor took over."""


class Preempted(CloudshardError):
    """The worker was asked to stop; the run may be continued by running the same command again."""

    exit_code = EXIT_PREEMPTED


class DiskFull(CloudshardError):
    """A local path has no room left (the path is in ``where``)."""


class StoreError(CloudshardError):
    """The object store refused or failed."""


class AlreadyExists(StoreError):
    """create() of a key that is there."""


class NotFound(StoreError):
    """No such key."""


class UploadGone(NotFound):
    """The multipart upload was finished or aborted before."""


class PreconditionFailed(StoreError):
    """The object's ETag is not the expected one."""


class PermissionDenied(StoreError):
    """Refused, or the credentials are missing or expired."""


class Unsupported(StoreError):
    """This store cannot do that."""


class Transient(StoreError):
    """May succeed when tried again. The outcome of a write that raised this is unknown."""


class Throttled(Transient):
    """The store asks for fewer requests."""


class Conflict(Transient):
    """A conditional write of the same key is in flight."""


class Unavailable(Transient):
    """Time-out, reset connection or server error."""
