"""The logical pipeline: what the user wrote, before anything is listed, sampled or planned.

These values may hold live Python objects (functions, Arrow schemas, credentials in ``storage_options``). They never reach the
bucket: :mod:`cloudshard.plan.build` turns them into :mod:`cloudshard.plan.values`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from cloudshard.plan.values import BadRows, OnError, StepKind

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Source:
    """An input. ``urls``: files, folders (ending in ``/`` or existing as one), globs; a path without scheme is local."""

    format: str
    urls: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    schema: pa.Schema | None = None
    bad_rows: BadRows = "raise"
    storage_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One step. ``function``: a callable, a class (instantiated once per process) or ``"module:qualname"``."""

    kind: StepKind
    function: Callable[..., Any] | type | str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    on_error: OnError = "raise"
    long_call_seconds: float | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """The output: a folder URL and a format."""

    format: str
    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    schema: pa.Schema | None = None
    new_columns: Literal["error", "quarantine", "drop", "collect"] = "error"
    mode: Literal["error", "overwrite"] = "error"
    target_part_bytes: int | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An explicit boundary between steps."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A source, steps in order (a :class:`Checkpoint` forces a boundary), and a sink (None: local use only)."""

    name: str
    source: Source
    steps: tuple[Step | Checkpoint, ...] = ()
    sink: Sink | None = None
    num_shards: int | None = None
    target_shard_bytes: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    error_budget_rows: int | None = None
    error_budget_fraction: float | None = None
