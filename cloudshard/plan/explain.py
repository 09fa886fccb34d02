"""Explaining a plan before anything runs: stages, what is fused and why each boundary exists, work items, memory, requests and their price.

Figures are projections from the plan alone. What cannot be known yet (a later stage's work items, the size of the output) is said so, and
counted as if rows kept their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from cloudshard.ledger.keys import BLOCK_ITEMS
from cloudshard.ledger.records import InputRange, WorkItem
from cloudshard.plan.build import Planned
from cloudshard.plan.values import StageSpec, StepSpec

#: US dollars per request: Amazon S3 Standard, us-east-1, list prices of November 2026 (https://aws.amazon.com/s3/pricing/): PUT, COPY,
#: POST and LIST 0.005 per thousand, GET and HEAD 0.0004 per thousand, DELETE nothing.
S3_PRICES: Mapping[str, float] = {
    "create": 5e-6,
    "put": 5e-6,
    "list": 5e-6,
    "begin_upload": 5e-6,
    "upload_part": 5e-6,
    "finish_upload": 5e-6,
    "get": 4e-7,
    "head": 4e-7,
}

#: Bytes per GET of input: what a reader asks for at once.
READ_BYTES = 8 << 20
#: Bytes per part of a multipart upload.
UPLOAD_PART_BYTES = 8 << 20

#: Memory of a child that has imported pyarrow, and what DuckDB adds.
_BASE_BYTES = 110 << 20
_DUCKDB_BYTES = 60 << 20
#: Bytes of rows in flight in front of a row step; rows as dicts take about five times their bytes as text.
_BLOCK_BYTES = 8 << 20
_DICT_FACTOR = 5
#: What a columnar writer holds before it writes a row group, and a line writer before it sends a part.
_WRITER_BYTES = {"parquet": 64 << 20, "arrow": 32 << 20, "runs": 32 << 20}
_LINE_WRITER_BYTES = 16 << 20

_SEGMENT_OF = {"map": "rows", "flat_map": "rows", "filter": "rows", "map_batches": "batches", "sql": "sql", "map_async": "async"}


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring steps that run as one loop. ``form``: rows (dicts), batches (Arrow), sql (Arrow in DuckDB) or async."""

    form: str
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ItemSizes:
    """Work items of a stage and their bytes."""

    count: int
    total_bytes: int
    min_bytes: int
    median_bytes: int
    max_bytes: int
    inputs: int


@dataclass(frozen=True, slots=True)
class StageExplained:
    """One stage. ``items`` None: known when the stage before is sealed. ``memory_bytes``: projected per child process."""

    index: int
    source: str
    segments: tuple[Segment, ...]
    sink: str
    boundary: str | None
    reason: str
    items: ItemSizes | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """All of it. ``requests``: verb → number; ``cost_dollars``: at the prices given."""

    pipeline: str
    fingerprint: str
    input_objects: int
    input_bytes: int
    stages: tuple[StageExplained, ...]
    requests: dict[str, int]
    cost_dollars: float
    uses_pickles: bool
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, for JSON."""
        return asdict(self)

    def render_text(self) -> str:
        """The explanation as plain text, without colours."""
        return "\n".join(_lines(self)) + "\n"


def explain(planned: Planned, *, prices: Mapping[str, float] = S3_PRICES) -> Explanation:
    """Explain a plan. ``prices``: dollars per request by verb; a verb without price costs nothing."""
    plan, inputs = planned.plan, planned.fields["inputs"]
    requests = _requests(planned)
    first = _sizes(planned.items)
    return Explanation(
        pipeline=plan.name,
        fingerprint=planned.fingerprint,
        input_objects=int(inputs["objects"]),
        input_bytes=int(inputs["bytes"]),
        stages=tuple(_stage(stage, first if stage.index == 0 else None) for stage in plan.stages),
        requests=requests,
        cost_dollars=sum(count * prices.get(verb, 0.0) for verb, count in requests.items()),
        uses_pickles=plan.uses_pickles,
        warnings=plan.warnings,
    )


def _stage(stage: StageSpec, items: ItemSizes | None) -> StageExplained:
    target = stage.sink.url if stage.sink.url is not None else "runs for the next stage"
    return StageExplained(
        index=stage.index,
        source=stage.source.format if stage.index == 0 else f"runs of stage {stage.index - 1}",
        segments=segments(stage.steps),
        sink=f"{stage.sink.format}: {target}" if stage.sink.url is not None else target,
        boundary=stage.boundary,
        reason=stage.reason,
        items=items,
        memory_bytes=projected_memory(stage),
    )


def segments(steps: Sequence[StepSpec]) -> tuple[Segment, ...]:
    """How the steps are fused. Steps that take any form (sample, limit, row_number) stay in the segment before them."""
    found: list[tuple[str, list[str]]] = []
    for step in steps:
        form = _SEGMENT_OF.get(step.kind, found[-1][0] if found else "rows")
        if found and found[-1][0] == form:
            found[-1][1].append(step.name)
        else:
            found.append((form, [step.name]))
    return tuple(Segment(form, tuple(names)) for form, names in found)


def projected_memory(stage: StageSpec) -> int:
    """Bytes of one child process at its highest, without what user code keeps for itself."""
    forms = {segment.form for segment in segments(stage.steps)}
    batches = [int(step.params.get("batch_bytes") or 0) for step in stage.steps if step.kind == "map_batches"]
    total = _BASE_BYTES + 2 * _BLOCK_BYTES
    if forms & {"rows", "async"} or stage.source.format in ("jsonl", "files"):
        total += _DICT_FACTOR * _BLOCK_BYTES
    if "sql" in forms:
        total += _DUCKDB_BYTES
    total += 2 * max(batches, default=0)  # the queue, and the batch that the function returns
    return total + _WRITER_BYTES.get(stage.sink.format, _LINE_WRITER_BYTES)


def _sizes(items: Sequence[WorkItem]) -> ItemSizes:
    weights = [item.weight for item in items] or [0]
    return ItemSizes(
        count=len(items),
        total_bytes=sum(weights),
        min_bytes=min(weights),
        median_bytes=int(median(weights)),
        max_bytes=max(weights),
        inputs=sum(len(item.inputs) for item in items),
    )


def _requests(planned: Planned) -> dict[str, int]:
    """Requests of an uncontended run without failures. A later stage counts as many items as the first, of the same bytes."""
    items, stages = planned.items, len(planned.plan.stages)
    count = len(items)
    blocks = -(-count // BLOCK_ITEMS)
    reads = sum(_reads(piece) for item in items for piece in item.inputs)
    rewrites = sum(-(-max(1, item.weight) // READ_BYTES) for item in items) * (stages - 1)
    parts = sum(-(-max(1, item.weight) // UPLOAD_PART_BYTES) for item in items)
    objects = int(planned.fields["inputs"]["objects"])
    requests = {
        # the lease and the commit record; per stage the list of items and the seal; the run itself and the manifest
        "create": 2 * count * stages + 2 * stages + 2,
        # work items and pickles before the election; the worker's own record, now and then
        "put": 2 + len(planned.pickles),
        "list": -(-objects // 1000) + 1 + (2 * blocks + 2) * stages,
        "begin_upload": count * stages,
        "upload_part": parts * stages,
        "finish_upload": count * stages,
        # data; commit records when the stage is sealed; the records that say what the run is
        "get": reads + rewrites + count * stages + 3,
        "head": sum(len(item.inputs) for item in items) if _asks_when_modified(planned.plan.stages[0]) else 0,
    }
    return {verb: number for verb, number in requests.items() if number}


def _asks_when_modified(stage: StageSpec) -> bool:
    return stage.source.format == "files" and bool(stage.source.options.get("modified", True))


def _reads(piece: InputRange) -> int:
    if piece.unit in ("bytes", "object"):
        return max(1, -(-(piece.end - piece.start) // READ_BYTES)) if piece.size else 0
    return max(1, -(-piece.size // READ_BYTES))


def _lines(found: Explanation) -> list[str]:
    lines = [
        f"pipeline     {found.pipeline}",
        f"fingerprint  {found.fingerprint}",
        f"input        {found.input_objects:,} objects, {size_words(found.input_bytes)}",
    ]
    for stage in found.stages:
        lines += ["", f"stage {stage.index}", f"  read       {stage.source}"]
        for segment in stage.segments:
            lines.append(f"  {segment.form:<9}  {' → '.join(segment.steps)}")
        lines.append(f"  write      {stage.sink}")
        if stage.items is None:
            lines.append(f"  work items follow from stage {stage.index - 1} when it is sealed")
        else:
            lines.append(f"  work items {_item_words(stage.items)}")
        lines.append(f"  memory     about {size_words(stage.memory_bytes)} per process, without what your own code keeps")
        if stage.boundary is not None:
            lines.append(f"  boundary   {stage.boundary}: {stage.reason}")
    asked = ", ".join(f"{count:,} {verb}" for verb, count in sorted(found.requests.items(), key=lambda pair: -pair[1]))
    lines += [
        "",
        f"requests     {asked}",
        f"cost         about ${found.cost_dollars:,.4f} for requests on S3 (list price; the output counted as large as the input)",
    ]
    if found.uses_pickles:
        lines.append("code         some functions travel with the run as pickles: workers need the same Python and packages")
    lines += [f"warning      {warning}" for warning in found.warnings]
    return lines


def _item_words(items: ItemSizes) -> str:
    if not items.count:
        return "none: the input is empty"
    spread = f"{size_words(items.min_bytes)} … {size_words(items.median_bytes)} … {size_words(items.max_bytes)} (min, median, max)"
    return f"{items.count:,} of {spread}, {items.inputs:,} ranges"


def size_words(count: float) -> str:
    """``1.5 MiB``."""
    if count < 1024:
        return f"{count:,.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:,.1f} {unit}"
    return f"{count / 1024:,.1f} TiB"
