"""`cloudshard retry RUN`: dead work items get another chance."""

from __future__ import annotations

import getpass
import socket

import click

from cloudshard.cli import options, text
from cloudshard.errors import EXIT_DONE, RecipeError


@click.command("retry", short_help="Give dead work items another chance.")
@click.argument("run", metavar="RUN")
@click.option("--all-failed", is_flag=True, help="Revive every dead item.")
@click.option("--item", "items", multiple=True, metavar="STAGE/INDEX", help="Revive this item, for example 0/17. May be repeated.")
@options.as_json
@options.store_options
def command(run: str, all_failed: bool, items: tuple[str, ...], as_json: bool, store_option: tuple[tuple[str, str], ...]) -> int:
    """Let dead work items of the run at the URL RUN be tried again, with a fresh retry budget.

    Only adds records: what failed, when and why stays in the ledger. Refuses, and changes nothing, while one of the items is being
    worked on. Nothing is executed here: run the same command again, or start a worker.

    \b
    Example: cloudshard retry s3://bucket/runs/clean-2026 --all-failed
    """
    import msgspec

    from cloudshard.observe.retry import parse_item, revive

    if all_failed == bool(items):
        raise RecipeError("give either --all-failed or --item", mend="`cloudshard status` shows the items that failed.")
    wanted = None if all_failed else [parse_item(item) for item in items]
    report = revive(options.open_run_store(run, store_option), wanted, by=who())
    if as_json:
        click.echo(msgspec.json.encode(report))
        return EXIT_DONE
    for item in report.revived:
        click.echo(
            f"revived {item.stage}/{item.item}: {text.plural(item.failures, 'failed attempt')} up to epoch {item.epoch} no longer count"
        )
    for name in report.untouched:
        click.echo(f"left alone {name}: nothing counts against it")
    if report.revived:
        revived = text.plural(len(report.revived), "item")
        click.echo(f"{revived} revived. Go on with `cloudshard worker {report.url}`, or run the same command again.")
    else:
        click.echo("nothing to retry: no work item is dead")
    return EXIT_DONE


def who() -> str:
    """user@host, for the record."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
