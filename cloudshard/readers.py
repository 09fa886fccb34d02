"""Where a pipeline begins: one function per format, each of which gives a :class:`~cloudshard.dataset.Dataset`.

Nothing is listed or read before the dataset is used. What cannot be right (an unknown policy, no input) is told at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cloudshard.dataset import Dataset
from cloudshard.errors import RecipeError
from cloudshard.plan.logical import Pipeline, Source
from cloudshard.plan.values import BadRows

if TYPE_CHECKING:
    import pyarrow as pa

Urls = str | Sequence[str]


def _read(
    format_name: str,
    urls: Urls,
    *,
    name: str | None,
    options: Mapping[str, Any],
    schema: pa.Schema | None,
    bad_rows: BadRows,
    storage_options: Mapping[str, Any] | None,
) -> Dataset:
    if bad_rows not in ("raise", "drop", "quarantine"):
        raise RecipeError(f"bad_rows={bad_rows!r}", where=f"read_{format_name}", mend="Choose raise, drop or quarantine.")
    listed = (urls,) if isinstance(urls, str) else tuple(urls)
    if not listed:
        raise RecipeError("no input was named", where=f"read_{format_name}", mend="Give a file, a folder, a glob, or a list of these.")
    given = {key: value for key, value in options.items() if value is not None}
    source = Source(format_name, listed, given, schema, bad_rows, dict(storage_options or {}))
    return Dataset(Pipeline(name=name or "pipeline", source=source))


def read_jsonl(
    urls: Urls,
    *,
    schema: pa.Schema | None = None,
    bad_rows: BadRows = "raise",
    storage_options: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Any,
) -> Dataset:
    """JSON lines, plain or ``.gz``/``.zst``: one row (dict) per line.

    ``urls``: a file, a folder, a glob, or a list of these, on any store. ``bad_rows``: a line that is no JSON object raises with object and
    byte offset, or is dropped, or quarantined; both are counted. ``options``: ``max_row_bytes`` (64 MiB), ``blank_lines``, ``nan``,
    ``duplicate_keys``, ``big_integers``: see docs/formats.md.
    """
    return _read("jsonl", urls, name=name, options=options, schema=schema, bad_rows=bad_rows, storage_options=storage_options)


def read_parquet(
    urls: Urls,
    *,
    columns: Sequence[str] | None = None,
    filter: Any = None,
    schema: pa.Schema | None = None,
    bad_rows: BadRows = "raise",
    storage_options: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Any,
) -> Dataset:
    """Parquet by row groups; only ``columns`` are read. ``filter``: a list of (column, operator, value), pushed down to row groups."""
    options = {**options, "columns": None if columns is None else list(columns), "filter": filter}
    return _read("parquet", urls, name=name, options=options, schema=schema, bad_rows=bad_rows, storage_options=storage_options)


def read_csv(
    urls: Urls,
    *,
    schema: pa.Schema | None = None,
    bad_rows: BadRows = "raise",
    storage_options: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Any,
) -> Dataset:
    """CSV with a header line. ``options``: ``delimiter``, ``quote``, ``columns``, ``splittable``…: see docs/formats.md."""
    return _read("csv", urls, name=name, options=options, schema=schema, bad_rows=bad_rows, storage_options=storage_options)


def read_arrow(
    urls: Urls,
    *,
    schema: pa.Schema | None = None,
    storage_options: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Any,
) -> Dataset:
    """Arrow IPC files (by record batch) or streams (as a whole)."""
    return _read("arrow", urls, name=name, options=options, schema=schema, bad_rows="raise", storage_options=storage_options)


def read_files(
    urls: Urls,
    *,
    content: Literal["text", "bytes"] = "text",
    bad_rows: BadRows = "raise",
    storage_options: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Any,
) -> Dataset:
    """Whole files: one row per object with ``path``, ``content`` (str or bytes), ``size`` and ``modified``."""
    options = {**options, "content": content}
    return _read("files", urls, name=name, options=options, schema=None, bad_rows=bad_rows, storage_options=storage_options)
