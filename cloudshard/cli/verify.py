"""`cloudshard verify RUN`: does the bucket hold exactly what the ledger says?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cloudshard.cli import options, text

if TYPE_CHECKING:
    from cloudshard.observe.findings import VerifyReport

#: Problems shown per check.
SHOWN = 10


@click.command("verify", short_help="Prove that the output is what the ledger says.")
@click.argument("run", metavar="RUN")
@click.option("--fast", is_flag=True, help="Read no data: check records, counts, and the parts' presence and size.")
@options.as_json
@options.store_options
def command(run: str, fast: bool, as_json: bool, store_option: tuple[tuple[str, str], ...]) -> int:
    """Check every record, row count and byte of the run at the URL RUN.

    Reads every part again and compares its checksum and rows with its commit record; checks that rows are conserved in every
    item, step and stage and across boundaries, and that nothing else lies under the output.

    Exit codes: 0 all is well, 1 all is well so far but the run is not complete, 2 something is wrong.

    \b
    Example: cloudshard verify s3://bucket/runs/clean-2026
    """
    import msgspec

    from cloudshard.observe.verify import verify_run

    report = verify_run(options.open_run_store(run, store_option), options.open_output, fast=fast)
    if as_json:
        click.echo(msgspec.json.encode({**msgspec.to_builtins(report), "ok": report.ok, "exit_code": report.exit_code}))
    else:
        click.echo("\n".join(render(report)))
    return report.exit_code


def render(report: VerifyReport) -> list[str]:
    """The report as lines of text."""
    lines = []
    for check in report.checks:
        verdict = "ok" if check.ok else f"{text.plural(check.problem_count, 'problem')}"
        lines.append(f"{check.name:<11} {text.count(check.examined):>10} examined  {verdict}")
        lines += [f"    {problem.where}: {problem.what}" for problem in check.problems[:SHOWN]]
        if check.problem_count > SHOWN:
            lines.append(f"    … and {check.problem_count - min(SHOWN, len(check.problems))} more")
    lines.append("")
    how = "records, counts and sizes" if report.fast else f"records, counts and {text.size(report.bytes_read)} of data"
    if not report.ok:
        lines.append(f"WRONG: {report.run_id} is not what its ledger says (checked {how}).")
    elif report.complete:
        lines.append(
            f"ok: {text.plural(report.rows, 'row')} in {text.plural(report.parts, 'part')} ({text.size(report.bytes)}) are what "
            f"the ledger of {report.run_id} says (checked {how})."
        )
    else:
        done = f"{text.count(report.committed)} of {text.plural(report.items, 'item')}"
        lines.append(f"incomplete: {done} are committed, and those are well (checked {how}).")
    return lines
