"""What ``verify`` found, as values: checks, their problems, the report and its exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from cloudshard.errors import EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE, IntegrityError

#: Problems told per check; all are counted.
PROBLEMS_TOLD = 50


class Problem(msgspec.Struct, frozen=True):
    """Something that is not as the ledger says. ``where``: the object's URL."""

    what: str
    where: str


class Check(msgspec.Struct):
    """One kind of check. ``examined``: how many things were looked at; ``problems``: at most 50 of ``problem_count``."""

    name: str
    examined: int = 0
    problem_count: int = 0
    problems: list[Problem] = msgspec.field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problem_count

    def add(self, what: str, where: str) -> None:
        """Record a problem."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_TOLD:
            self.problems.append(Problem(what, where))

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Take an IntegrityError as a problem of this check instead of stopping."""
        try:
            yield
        except IntegrityError as error:
            self.add(error.what, error.where)


class VerifyReport(msgspec.Struct, kw_only=True):
    """What ``verify`` found. ``complete``: every stage is sealed; ``bytes_read``: of parts and quarantine files."""

    url: str
    run_id: str
    complete: bool
    fast: bool
    items: int
    committed: int
    parts: int
    rows: int
    bytes: int
    bytes_read: int
    checks: list[Check]

    @property
    def ok(self) -> bool:
        """Whether every check passed (also when the run is not complete yet)."""
        return all(check.ok for check in self.checks)

    @property
    def exit_code(self) -> int:
        """2 when something is wrong; 1 when the run is not complete; else 0."""
        return EXIT_FAILED if not self.ok else EXIT_DONE if self.complete else EXIT_INCOMPLETE
