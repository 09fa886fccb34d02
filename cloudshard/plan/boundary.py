"""From one stage's commit records to the next stage's work items: pure, so that whoever seals a stage derives the same list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from cloudshard.errors import IntegrityError
from cloudshard.ledger.records import CommitRecord, InputRange, PartRecord, WorkItem
from cloudshard.plan.split import DEFAULT_TARGET_BYTES, pack
from cloudshard.plan.values import StageSpec

CHECKPOINT = "checkpoint"
LIMIT = "limit"


def next_items(stage: StageSpec, commits: Iterable[CommitRecord], run_url: str) -> tuple[WorkItem, ...]:
    """Work items of the stage after ``stage``, whose commit records (all of them, any order) are ``commits``.

    ``run_url``: the run's prefix, without final ``/``. A checkpoint's runs become shards, small neighbours packed up to
    ``boundary_params["target_bytes"]``. A limit's runs are taken in item order until ``boundary_params["rows"]`` rows, the last one cut.
    Rows keep their order. No rows give no work items. Raises IntegrityError when a commit record is missing or doubled.
    """
    runs = _runs_in_order(commits)
    target = int(stage.boundary_params.get("target_bytes") or DEFAULT_TARGET_BYTES)
    derive = _RULES.get(stage.boundary or "")
    if derive is None:
        raise IntegrityError(
            f"stage {stage.index} has no next stage, or its boundary {stage.boundary!r} is unknown to this version", where=run_url
        )
    return pack(derive(stage, runs, run_url), target_bytes=target)


def _runs_in_order(commits: Iterable[CommitRecord]) -> list[PartRecord]:
    ordered = sorted(commits, key=lambda commit: commit.item)
    for expected, commit in enumerate(ordered):
        if commit.item != expected:
            what = "is missing" if commit.item > expected else "stands there twice"
            raise IntegrityError(f"the commit record of item {min(commit.item, expected)} {what}: cannot derive the next stage")
    return [part for commit in ordered for part in commit.parts if part.rows]


def _whole(part: PartRecord, run_url: str, rows: int | None = None) -> InputRange:
    """A run as an input range, up to row ``rows``. Without ETag: the attempt's nonce in its name says that it is never written again."""
    end = part.rows if rows is None else rows
    return InputRange(
        url=f"{run_url}/{part.key}",
        size=part.bytes,
        etag="",
        start=0,
        end=end,
        unit="rows",
        checksum=part.checksum if end == part.rows else "",
    )


def _checkpoint(stage: StageSpec, runs: Sequence[PartRecord], run_url: str) -> Iterator[InputRange]:
    for part in runs:
        yield _whole(part, run_url)


def _limit(stage: StageSpec, runs: Sequence[PartRecord], run_url: str) -> Iterator[InputRange]:
    wanted = int(stage.boundary_params["rows"])
    for part in runs:
        if wanted <= 0:
            return
        taken = min(wanted, part.rows)
        yield _whole(part, run_url, taken)
        wanted -= taken


_RULES: dict[str, Callable[[StageSpec, Sequence[PartRecord], str], Iterator[InputRange]]] = {CHECKPOINT: _checkpoint, LIMIT: _limit}
