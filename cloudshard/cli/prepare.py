"""`cloudshard prepare TARGET`: plan a run without working on it."""

from __future__ import annotations

import click

from cloudshard.cli import options
from cloudshard.cli.run import settings_of, settings_options


@click.command("prepare", short_help="Plan a run without working on it.")
@click.argument("target", metavar="TARGET")
@settings_options
@options.as_json
@options.store_options
def command(
    target: str,
    parameters: tuple[tuple[str, str], ...],
    run_url: str | None,
    overwrite: bool,
    lease_seconds: float | None,
    max_retries: int | None,
    as_json: bool,
    store_option: tuple[tuple[str, str], ...],
) -> int:
    """Plan the pipeline TARGET (a recipe, module:pipeline, or a Python file) and create its run; `cloudshard worker` does the work.

    Again with the same pipeline, parameters and input it changes nothing; with others it is refused, and told what differs.

    Exit codes: 0 the run is there, 2 wrong recipe, parameters or input.

    \b
    Example: cloudshard prepare jobs/clean.yaml --run s3://bucket/runs/clean-2026
    """
    from cloudshard.cli.target import resolve, run_url_of
    from cloudshard.worker.run import run_pipeline

    recipe = resolve(target, parameters, overwrite=overwrite)
    url = run_url_of(recipe, run_url)
    store = options.open_run_store(url, store_option)
    result = run_pipeline(recipe.pipeline, url, settings=settings_of(recipe.settings, lease_seconds, max_retries), prepare_only=True)
    if as_json:
        import msgspec

        from cloudshard.ledger.election import load_run
        from cloudshard.plan.values import Plan

        run = load_run(store)
        stages = len(msgspec.json.decode(bytes(run.plan), type=Plan).stages)
        told = {"url": result.run_url, "run_id": result.run_id, "created": result.created, "items": run.item_count, "stages": stages}
        click.echo(msgspec.json.encode(told).decode())
    else:
        click.echo(result.run_url)
        click.echo("planned" if result.created else "it was planned before, with the same pipeline and input", err=True)
    return result.exit_code
