"""`cloudshard query SQL --run URL`: the ledger in SQL."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from cloudshard.cli import options, text
from cloudshard.errors import EXIT_DONE, RecipeError

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows shown in the table; --json, --csv and --parquet write all.
SHOWN = 200


@click.command("query", short_help="Ask the ledger of one or many runs in SQL.")
@click.argument("sql", metavar="SQL")
@click.option("--run", "runs", multiple=True, required=True, metavar="URL", help="A run, or a folder of runs. May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row, one row a line.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV with a header line.")
@click.option("--parquet", type=click.Path(dir_okay=False), help="Write the answer to this Parquet file.")
@options.store_options
def command(
    sql: str, runs: tuple[str, ...], as_json: bool, as_csv: bool, parquet: str | None, store_option: tuple[tuple[str, str], ...]
) -> int:
    """Answer SQL (DuckDB's dialect) over the views runs, stages, items, claims, attempts, commits, failures, workers, outputs and requests.

    SQL may be "-": it is then read from standard input. Only reading statements are allowed, and they see nothing but the views.
    docs/ledger-sql.md lists the columns.

    \b
    Example: cloudshard query "select worker, count(*) from commits group by worker" --run s3://bucket/runs/clean-2026
    """
    from cloudshard.observe.query import query_ledger
    from cloudshard.store.registry import open_store

    if as_json + as_csv + (parquet is not None) > 1:
        raise RecipeError("--json, --csv and --parquet exclude each other")
    for url in runs:
        options.open_run_store(url, store_option)
    answer = query_ledger(sys.stdin.read() if sql == "-" else sql, runs, open_store=open_store)
    if parquet is not None:
        _write_parquet(answer, parquet)
    elif as_json:
        for line in json_lines(answer):
            click.echo(line)
    elif as_csv:
        import pyarrow.csv

        pyarrow.csv.write_csv(_flat(answer), sys.stdout.buffer)
    else:
        rows = answer.slice(0, SHOWN).to_pylist()
        text.print_table(answer.column_names, [[_cell(value) for value in row.values()] for row in rows])
        if answer.num_rows > SHOWN:
            click.echo(f"… {SHOWN} of {text.count(answer.num_rows)} rows; --json, --csv or --parquet give all", err=True)
    return EXIT_DONE


def json_lines(answer: pa.Table) -> list[str]:
    """One JSON object a row."""
    import orjson

    return [orjson.dumps(row, default=_json_value, option=orjson.OPT_NON_STR_KEYS).decode() for row in answer.to_pylist()]


def _json_value(value: Any) -> Any:
    """What JSON has no word for: decimals as numbers, the rest (intervals, blobs) as text."""
    from decimal import Decimal

    return float(value) if isinstance(value, Decimal) else str(value)


def _write_parquet(answer: pa.Table, path: str) -> None:
    import pyarrow.parquet

    try:
        pyarrow.parquet.write_table(answer, path, compression="zstd")
    except OSError as error:
        raise RecipeError(f"cannot write the answer: {error}", where=path) from error
    click.echo(f"{text.plural(answer.num_rows, 'row')} written to {path}", err=True)


def _flat(answer: pa.Table) -> pa.Table:
    """Nested columns as JSON text: CSV knows none."""
    import orjson
    import pyarrow as pa

    for at, column in enumerate(answer.schema):
        if pa.types.is_nested(column.type):
            values = [None if value is None else orjson.dumps(value, default=str).decode() for value in answer.column(at).to_pylist()]
            answer = answer.set_column(at, column.name, pa.array(values, pa.string()))
    return answer


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    return value
