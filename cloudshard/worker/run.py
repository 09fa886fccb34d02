"""Running a pipeline: plan, elect or join, work, seal. The same call on many machines is one run."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cloudshard.errors import EXIT_DONE, RecipeError
from cloudshard.ledger.records import CommitRecord, RunRecord, RunSettings, SealRecord, WorkItem
from cloudshard.plan.values import StageSpec
from cloudshard.store.port import Store
from cloudshard.worker.events import Event, tell_stderr
from cloudshard.worker.signals import stop_by_exception

if TYPE_CHECKING:
    from cloudshard.plan.logical import Pipeline  # brings pyarrow, and with it threads unless the zygote imports it
    from cloudshard.worker.supervisor import Options

HANG_SECONDS = 600.0
GRACE_SECONDS = 10.0

Processes = int | Literal["auto"] | None


@dataclass(frozen=True)
class RunResult:
    """How it ended for this worker. ``exit_code`` as a command would have it; ``seal``: totals of the last stage when complete;
    ``created``: this call planned the run; ``was_complete``: there was nothing to do."""

    exit_code: int
    run_url: str
    run_id: str
    seal: SealRecord | None
    created: bool = False
    was_complete: bool = False


def default_run_url(pipeline: Pipeline) -> str:
    """Beside the output: ``<output>.run``."""
    from cloudshard.store.registry import normalise

    if pipeline.sink is None:
        raise RecipeError("the pipeline has no sink", mend="End it with write_parquet, write_jsonl, write_csv or write_arrow.")
    output = normalise(pipeline.sink.url)
    if not output.partition("://")[2].strip("/").partition("/")[2] and not output.startswith("file://"):
        raise RecipeError(
            "the output is a whole bucket, so there is no place beside it for the run",
            where=output,
            mend="Give the run a URL of its own (--run).",
        )
    return f"{output}.run"


def run_pipeline(
    pipeline: Pipeline,
    run_url: str | None = None,
    *,
    settings: RunSettings | None = None,
    processes: Processes = "auto",
    memory_per_child: int | None = None,
    max_shards: int | None = None,
    poll_interval: float | None = None,
    hang_seconds: float = HANG_SECONDS,
    grace_seconds: float = GRACE_SECONDS,
    safe: bool = False,
    progress: Callable[[Event], None] | None = None,
    prepare_only: bool = False,
) -> RunResult:
    """Plan the run (or join or resume the one that is there) and work until it is complete.

    ``processes``: children ("auto": usable cores); ``memory_per_child``: bytes (default: an equal share of the machine's or container's);
    ``max_shards``: stop after so many attempts; ``poll_interval``: seconds between looks when nothing is free; ``hang_seconds``: patience
    with one call of user code whose step declares no ``long_call_seconds``; ``grace_seconds``: how long running attempts may go on when
    the worker is asked to stop (it is gone within 25 s in any case); ``safe``: refuse pickled functions; ``progress``: gets events
    (default: notes and what user code prints go to stderr).

    Raises RecipeError, PlanMismatch (another plan owns the prefix), RunFailed (dead items), ErrorBudgetExceeded, StoreError.
    """
    from cloudshard.worker.supervisor import Options
    from cloudshard.worker.zygote import start_zygote

    options = Options(max_shards, poll_interval, hang_seconds, grace_seconds)
    # forked before any thread or client exists; children are forked from it with its imports
    zygote = None if prepare_only else start_zygote(("cloudshard.worker.stage_executor",))
    try:
        with stop_by_exception("planning"):
            run, created, store = _prepare(pipeline, run_url or default_run_url(pipeline), settings, safe)
        if prepare_only or zygote is None:
            return RunResult(EXIT_DONE, store.url, run.run_id, None, created)
        return _work(
            store,
            run,
            zygote,
            created=created,
            processes=processes,
            memory_per_child=memory_per_child,
            options=options,
            progress=progress,
        )
    finally:
        if zygote is not None:
            zygote.close()


def work(
    run_url: str,
    *,
    processes: Processes = "auto",
    memory_per_child: int | None = None,
    max_shards: int | None = None,
    poll_interval: float | None = None,
    hang_seconds: float = HANG_SECONDS,
    grace_seconds: float = GRACE_SECONDS,
    safe: bool = False,
    progress: Callable[[Event], None] | None = None,
) -> RunResult:
    """Work on a run that somebody has prepared. Only its URL is needed, and the packages that its functions import."""
    from cloudshard.ledger.election import load_run
    from cloudshard.store.registry import open_store
    from cloudshard.worker.supervisor import Options
    from cloudshard.worker.zygote import start_zygote

    options = Options(max_shards, poll_interval, hang_seconds, grace_seconds)
    zygote = start_zygote(("cloudshard.worker.stage_executor",))
    try:
        store = open_store(run_url)
        run = load_run(store)
        _refuse_pickles(run, safe)
        return _work(
            store,
            run,
            zygote,
            created=False,
            processes=processes,
            memory_per_child=memory_per_child,
            options=options,
            progress=progress,
        )
    finally:
        zygote.close()


def _prepare(pipeline: Pipeline, run_url: str, settings: RunSettings | None, safe: bool) -> tuple[RunRecord, bool, Any]:
    from cloudshard.ledger.election import elect, find_run
    from cloudshard.plan.build import build, survey
    from cloudshard.store.registry import open_store
    from cloudshard.worker.resources import packages

    store = open_store(run_url)
    surveyed = survey(pipeline)
    found = find_run(store)
    if found is not None and found.fingerprint == surveyed.fingerprint:  # resume: no sampling, no user code
        _refuse_pickles(found, safe)
        return found, False, store
    if found is None:
        planned: Any = build(pipeline, surveyed=surveyed)
        if safe and planned.plan.uses_pickles:
            _refuse()
        replaces = _replaced(pipeline)
    else:
        planned, replaces = surveyed, ()  # another plan is there: the election says what differs
    run, created = elect(store, planned, _settings(pipeline, settings), identity(), replaces=replaces, packages=packages())
    return run, created, store


def _settings(pipeline: Pipeline, settings: RunSettings | None) -> RunSettings:
    import msgspec

    made = settings or RunSettings()
    changes: dict[str, Any] = {}
    if pipeline.error_budget_rows is not None and made.error_budget_rows is None:
        changes["error_budget_rows"] = pipeline.error_budget_rows
    if pipeline.error_budget_fraction is not None and made.error_budget_fraction is None:
        changes["error_budget_fraction"] = pipeline.error_budget_fraction
    return msgspec.structs.replace(made, **changes) if changes else made


def _replaced(pipeline: Pipeline) -> Sequence[str]:
    """What lies in the output's folder: an error, or (mode "overwrite") what the finished run will delete."""
    from cloudshard.store.registry import open_store

    sink = pipeline.sink
    if sink is None:
        return ()
    output = open_store(sink.url, sink.storage_options)
    present = [info.key for page in output.list() for info in page.objects]
    if present and sink.mode != "overwrite":
        raise RecipeError(
            f"the output folder is not empty: {present[0]}" + (f" and {len(present) - 1} more" if len(present) > 1 else ""),
            where=output.url,
            mend="Choose another folder, empty it, or say mode='overwrite' (--overwrite) to replace it once the new data is complete.",
        )
    return present


def _refuse_pickles(run: RunRecord, safe: bool) -> None:
    if not safe:
        return
    import msgspec

    from cloudshard.plan.values import Plan

    if msgspec.json.decode(bytes(run.plan), type=Plan).uses_pickles:
        _refuse()


def _refuse() -> None:
    raise RecipeError(
        "the run carries pickled functions, which can run any code when they are loaded; --safe refuses it",
        mend="Put the functions into a module that every worker can import, and name them module:function.",
    )


def identity() -> Any:
    """Who this worker is: host, process and a random tail, so that no two are ever alike."""
    from cloudshard.ledger.stage import WorkerIdentity

    host = socket.gethostname()
    return WorkerIdentity(f"{host[:40]}-{os.getpid()}-{secrets.token_hex(3)}", host, os.getpid())


def hooks() -> Any:
    """What the ledger needs from planner, stores and formats."""
    from cloudshard.ledger.ledger import Hooks

    return Hooks(next_items=_next_items, open_output=output_of, empty_part=_empty_part)


def _next_items(stage: StageSpec, commits: Iterable[CommitRecord], run_url: str) -> Sequence[WorkItem]:
    from cloudshard.plan.boundary import next_items

    return next_items(stage, list(commits), run_url)


def output_of(stage: StageSpec) -> Store:
    """The store rooted at a stage's sink."""
    from cloudshard.store.registry import open_store

    if stage.sink.url is None:
        raise RecipeError(f"stage {stage.index} has no output folder")
    return open_store(stage.sink.url, stage.sink.store_options)


def _empty_part(stage: StageSpec, tag: str) -> tuple[str, bytes, str] | None:
    """A typed part without rows, where the format can have one."""
    import io

    import xxhash

    from cloudshard.engine.output import StoreOutput
    from cloudshard.ledger import keys
    from cloudshard.store.upload import CHECKSUM

    if stage.sink.schema is None:
        return None
    store = output_of(stage)
    factory = StoreOutput(stage.sink, store, store)
    sink = io.BytesIO()
    writer = factory.format.open_writer(sink, factory.schema, stage.sink.options)
    writer.finish()
    body = sink.getvalue()
    if not body:
        return None
    return keys.part_name(0, 0, tag, factory.suffix), body, f"{CHECKSUM}{xxhash.xxh3_128_hexdigest(body)}"


def _work(
    store: Any,
    run: RunRecord,
    zygote: Any,
    *,
    created: bool,
    processes: Processes,
    memory_per_child: int | None,
    options: Options,
    progress: Callable[[Event], None] | None,
) -> RunResult:
    from cloudshard.ledger.ledger import Ledger
    from cloudshard.store.options import registered_options
    from cloudshard.worker import resources
    from cloudshard.worker.supervisor import Supervisor

    who = identity()
    ledger = Ledger(store, run, who, hooks())
    last = ledger.seal(len(ledger.plan.stages) - 1)
    if last is not None:
        return RunResult(EXIT_DONE, store.url, run.run_id, last, created, was_complete=True)
    scratch = resources.Scratch(who.worker)
    count = processes if isinstance(processes, int) else None
    secret_options: Mapping[str, Mapping[str, Any]] = registered_options()
    supervisor = Supervisor(
        ledger,
        zygote,
        resources.divide(count, memory_per_child),
        options,
        lambda stage: output_of(stage) if stage.sink.url is not None else store,
        observer=progress or tell_stderr,
        store_options=secret_options,
        scratch=scratch,
    )
    try:
        code = supervisor.run()
    finally:
        scratch.close()
    if supervisor.error is not None and code not in (EXIT_DONE, 3):
        raise supervisor.error
    return RunResult(code, store.url, run.run_id, supervisor.seal, created)
