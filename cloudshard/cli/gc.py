"""`cloudshard gc RUN`: what a run no longer needs."""

from __future__ import annotations

import click

from cloudshard.cli import options, text
from cloudshard.errors import EXIT_DONE

#: Keys named without --json.
SHOWN = 10


@click.command("gc", short_help="Delete what a run no longer needs.")
@click.argument("run", metavar="RUN")
@click.option("--dry-run/--yes", "dry_run", default=True, help="Only show what would be deleted (the default), or delete it.")
@options.as_json
@options.store_options
def command(run: str, dry_run: bool, as_json: bool, store_option: tuple[tuple[str, str], ...]) -> int:
    """Delete what the run at the URL RUN no longer needs.

    That is: data between the stages of a complete run; data, quarantine files and pending uploads of attempts that lost. Never: output
    that a commit record names, ledger records, anything of an item that is not committed, anything of another run.

    \b
    Example: cloudshard gc s3://bucket/runs/clean-2026 --yes
    """
    import msgspec

    from cloudshard.cli.retry import who
    from cloudshard.observe.gc import collect, plan_gc

    store = options.open_run_store(run, store_option)
    plan = plan_gc(store, options.open_output)
    if not dry_run:
        collect(store, options.open_output, plan, by=who())
    if as_json:
        click.echo(msgspec.json.encode({**msgspec.to_builtins(plan), "deleted": not dry_run}))
        return EXIT_DONE
    for kind, (number, size) in plan.by_kind().items():
        click.echo(
            f"{kind}: {text.plural(number, 'object' if 'upload' not in kind else 'upload')}" + (f", {text.size(size)}" if size else "")
        )
    for thing in plan.garbage[:SHOWN] if dry_run else ():
        click.echo(f"    {thing.key}" + (f" (upload {thing.upload_id})" if thing.upload_id else ""))
    if dry_run and len(plan.garbage) > SHOWN:
        click.echo(f"    … and {len(plan.garbage) - SHOWN} more (--json names all)")
    if plan.kept:
        click.echo(f"kept: {text.plural(plan.kept, 'object')} between the stages; the run is not complete")
    if not plan.garbage:
        click.echo("nothing to delete")
    elif dry_run:
        click.echo("nothing was deleted: this was a dry run, delete with --yes")
    else:
        click.echo(f"deleted {text.plural(len(plan.garbage), 'thing')}, {text.size(plan.bytes)}")
    return EXIT_DONE
