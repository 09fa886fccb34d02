"""What a run has done, in totals: rows, parts, bytes, time, requests. Read from the seals and the workers' records: few requests."""

from __future__ import annotations

from collections import Counter

import msgspec

from cloudshard.ledger import keys
from cloudshard.ledger.seal import add_counts
from cloudshard.observe.load import OpenRun, open_run, read_commits, read_seal, read_workers
from cloudshard.observe.snapshot import snapshot_stage
from cloudshard.store.port import Store


class RunReport(msgspec.Struct, kw_only=True):
    """Totals of a run.

    ``rows_in``: rows of the first stage's input; ``rows_out``: rows of the last stage's output; ``added``, ``filtered``, ``dropped``,
    ``quarantined`` and ``nulled``: over all stages. ``items``: those known so far, ``committed``: of these. ``seconds``: from the
    creation of run.json to the last seal, or to now, by the store's clock. ``requests``: by verb, as the workers told last.
    """

    url: str
    run_id: str
    pipeline: str
    complete: bool
    output: str | None
    items: int
    committed: int
    rows_in: int = 0
    rows_out: int = 0
    added: int = 0
    filtered: int = 0
    dropped: int = 0
    quarantined: int = 0
    nulled: int = 0
    parts: int = 0
    bytes: int = 0
    seconds: float = 0.0
    workers: int = 0
    requests: dict[str, int] = {}


def read_report(store: Store) -> RunReport:
    """The report of the run at ``store``. Raises RecipeError when there is no run."""
    run = open_run(store)
    last = run.plan.stages[-1]
    report = RunReport(
        url=run.url,
        run_id=run.record.run_id,
        pipeline=run.record.pipeline,
        complete=False,
        output=last.sink.url,
        items=run.record.item_count,
        committed=0,
    )
    ended = 0.0
    for spec in run.plan.stages:
        ended = _add_stage(run, spec.index, report)
    report.complete = ended > 0
    began = store.head(keys.RUN).last_modified
    report.seconds = round(max(0.0, (ended or store.server_time()) - began), 3)
    requests: Counter[str] = Counter()
    for _, worker in read_workers(store):
        report.workers += 1
        requests.update(worker.requests)
    report.requests = dict(sorted(requests.items()))
    return report


def _add_stage(run: OpenRun, stage: int, report: RunReport) -> float:
    """Add the stage's totals; returns the store's time of its seal (0: none). Without seal, its commit records are read."""
    seal = read_seal(run.store, stage)
    last = stage == len(run.plan.stages) - 1
    if seal is not None:
        counts, items, parts, size = seal.counts, seal.item_count, seal.parts, seal.bytes
        ended = run.store.head(keys.sealed(stage)).last_modified
        if stage:
            report.items += items
        if last and seal.empty_part is not None:
            parts, size = parts + 1, size + seal.empty_part.bytes
    else:
        records = list(read_commits(run.store, snapshot_stage(run.store, stage)))
        if not records:
            return 0.0
        counts, ended = records[0].counts, 0.0
        for record in records[1:]:
            counts = add_counts(counts, record.counts)
        items = len(records)
        parts = sum(len(record.parts) for record in records)
        size = sum(part.bytes for record in records for part in record.parts)
    report.committed += items
    if stage == 0:
        report.rows_in = counts.rows_in
    if last:
        report.rows_out, report.parts, report.bytes = counts.rows_out, parts, size
    for name in ("added", "filtered", "dropped", "quarantined", "nulled"):
        setattr(report, name, getattr(report, name) + getattr(counts, name))
    return ended
