"""What `run` and `worker` say at the end: totals, what is missing, the recipe's summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cloudshard.cli import options, text
from cloudshard.errors import EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE, EXIT_PREEMPTED, CloudshardError

if TYPE_CHECKING:
    from cloudshard.observe.report import RunReport
    from cloudshard.recipe import Summary
    from cloudshard.store.port import Store


def tell_end(url: str, exit_code: int, *, was_complete: bool, as_json: bool, quiet: bool, summary: Summary | None = None) -> int:
    """Report on stdout (one JSON object with ``as_json``), remarks on stderr; returns the exit code."""
    from cloudshard.observe.report import read_report
    from cloudshard.store.registry import open_store

    store = open_store(url)
    report = read_report(store)
    if was_complete and exit_code == EXIT_DONE:
        click.echo("nothing to do: the run was complete already", err=True)
    if as_json:
        click.echo(json_of(report, exit_code, was_complete))
    elif not quiet:
        click.echo("\n".join(render(report)))
    for remark in remarks(report, exit_code):
        click.echo(remark, err=True)
    if summary is not None and exit_code == EXIT_DONE and not as_json and not quiet and report.rows_out:
        _print_summary(store, summary)
    return exit_code


def json_of(report: RunReport, exit_code: int, was_complete: bool) -> str:
    """The machine's summary: the report's fields, ``exit_code``, and ``nothing_to_do`` (the run was complete before)."""
    import msgspec

    values: dict[str, Any] = {**msgspec.to_builtins(report), "exit_code": exit_code, "nothing_to_do": was_complete}
    return msgspec.json.encode(values).decode()


def render(report: RunReport) -> list[str]:
    """The report as aligned lines."""
    lost = [
        f"{text.count(number)} {what}"
        for number, what in (
            (report.filtered, "filtered"),
            (report.quarantined, "quarantined"),
            (report.dropped, "dropped"),
            (report.nulled, "nulled"),
        )
        if number
    ]
    added = f" + {text.count(report.added)} made" if report.added else ""
    rows = f"{text.count(report.rows_in)} in{added} → {text.count(report.rows_out)} out" + (f" ({', '.join(lost)})" if lost else "")
    state = "complete" if report.complete else f"{text.count(report.committed)} of {text.count(report.items)} items committed"
    lines = [
        f"run       {report.run_id} ({state})",
        f"ledger    {report.url}",
        f"rows      {rows}",
        f"output    {text.plural(report.parts, 'part')}, {text.size(report.bytes)}" + (f", {report.output}" if report.output else ""),
        f"time      {text.duration(report.seconds)}, {text.plural(report.workers, 'worker')}",
    ]
    if report.requests:
        told = ", ".join(f"{text.count(number)} {verb}" for verb, number in sorted(report.requests.items(), key=lambda pair: -pair[1]))
        lines.append(f"requests  {told}")
    return lines


def remarks(report: RunReport, exit_code: int) -> list[str]:
    """What somebody should not overlook."""
    found = []
    if report.complete and not report.rows_out:
        where = (
            "the input has no rows"
            if not report.rows_in
            else f"all {text.plural(report.rows_in, 'row')} were filtered, dropped or quarantined"
        )
        found.append(f"WARNING: the run is complete and its output has NO ROWS: {where}")
    if report.quarantined:
        found.append(f"{text.plural(report.quarantined, 'row')} went to quarantine, with the reason: {report.url}/quarantine/")
    left = report.items - report.committed
    if exit_code == EXIT_INCOMPLETE:
        found.append(
            f"incomplete: {text.plural(left, 'work item')} left; run the same command again, or start `cloudshard worker {report.url}`"
        )
    if exit_code == EXIT_PREEMPTED:
        found.append("stopped as asked, nothing is lost: run the same command again to go on")
    if exit_code == EXIT_FAILED:
        found.append(
            f"failed: see `cloudshard status {report.url}`, mend the cause, then `cloudshard retry {report.url} --all-failed` and run again"
        )
    return found


def _print_summary(store: Store, summary: Summary) -> None:
    """The recipe's own table; a summary that fails is said and does not make a complete run a failed one."""
    from cloudshard.observe.summary import summarise

    try:
        answer = summarise(store, options.open_output, summary.sql)
    except CloudshardError as error:
        click.echo(f"warning: {error}", err=True)
        return
    if answer is not None:
        click.echo("")
        text.print_table(answer.column_names, [list(row.values()) for row in answer.to_pylist()], title=summary.title)
