"""A recipe's summary: one SELECT over the table `output`, all parts of a complete run's output.

Parquet and Arrow parts are read through the store, and of them only the columns that the statement needs. JSON lines and CSV are read where
they lie in a folder of this machine; elsewhere they are fetched first, up to a bound.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudshard.errors import RecipeError
from cloudshard.observe.fetch import get_many
from cloudshard.observe.load import OpenOutput, open_run, read_commits, read_seal
from cloudshard.observe.objects import ObjectReader
from cloudshard.observe.query import whole_numbers
from cloudshard.observe.snapshot import snapshot_stage

if TYPE_CHECKING:
    import pyarrow as pa

    from cloudshard.ledger.records import PartRecord
    from cloudshard.store.port import Store

#: What is fetched at most for a summary over JSONL or CSV parts in a bucket.
FETCH_BYTES = 512 << 20
_READERS = {
    "jsonl": "read_json_auto({files}, format='newline_delimited', union_by_name=true)",
    "csv": "read_csv_auto({files}, union_by_name=true)",
}


def summarise(store: Store, open_output: OpenOutput, sql: str) -> pa.Table | None:
    """The answer of ``sql`` over the output of the run at ``store``; None when the output has no parts.

    Raises RecipeError when DuckDB refuses the statement, or when the parts are too large to be fetched.
    """
    import duckdb

    run = open_run(store)
    spec = run.plan.stages[-1]
    parts = [part for record in read_commits(store, snapshot_stage(store, spec.index)) for part in record.parts]
    seal = read_seal(store, spec.index)
    if seal is not None and seal.empty_part is not None:
        parts.append(seal.empty_part)
    if not parts or not spec.sink.url:
        return None
    output = open_output(spec.sink)
    with tempfile.TemporaryDirectory(prefix="cloudshard-summary-") as scratch, duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone='UTC'")
        connection.execute(f"SET temp_directory={_text(scratch)}")
        if spec.sink.format in _READERS:
            files = _local_files(output, parts, Path(scratch))
            listed = "[" + ", ".join(_text(str(file)) for file in files) + "]"
            # no injection: our own file names, quoted
            connection.execute(f"CREATE VIEW output AS SELECT * FROM {_READERS[spec.sink.format].format(files=listed)}")  # noqa: S608
        else:
            connection.register("output", _dataset(output, parts, spec.sink.format))
        try:
            return whole_numbers(connection.sql(sql).to_arrow_table())
        except duckdb.Error as error:
            words = " ".join(str(error).split("\n\nLINE ")[0].split())
            raise RecipeError(f"the recipe's summary failed: {words}", mend="The output itself is complete.") from error


def _dataset(output: Store, parts: Sequence[PartRecord], form: str) -> Any:
    """The parts as one Arrow dataset, opened through the store when they are scanned."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    kind = ds.ParquetFileFormat() if form == "parquet" else ds.IpcFileFormat()
    files: list[Any] = [pa.PythonFile(ObjectReader(output, part.key, part.bytes), mode="r") for part in parts]
    fragments = [kind.make_fragment(file) for file in files]
    return ds.FileSystemDataset(fragments, fragments[0].physical_schema, kind)


def _local_files(output: Store, parts: Sequence[PartRecord], scratch: Path) -> list[Path]:
    """Paths of the parts: where they are, or fetched into ``scratch``."""
    if output.url.startswith("file://"):
        return [Path(output.url.removeprefix("file://")) / part.key for part in parts]
    total = sum(part.bytes for part in parts)
    if total > FETCH_BYTES:
        raise RecipeError(
            f"the recipe's summary would fetch {total:,} bytes; {FETCH_BYTES:,} are the bound for this format",
            where=output.url,
            mend="The output itself is complete. Parquet parts have no such bound.",
        )
    files = []
    for key, body in get_many(output, [part.key for part in parts]):
        files.append(scratch / key.replace("/", "_"))
        files[-1].write_bytes(body)
    return files


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
