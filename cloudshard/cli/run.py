"""`cloudshard run TARGET`: plan, work, seal, report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cloudshard.cli import options
from cloudshard.errors import EXIT_DONE, EXIT_INCOMPLETE

if TYPE_CHECKING:
    from cloudshard.ledger.records import RunSettings


def settings_options(command: Any) -> Any:
    """What a run is told when it is planned."""
    for option in (
        click.option(
            "--max-retries", type=click.IntRange(min=0), metavar="N", help="Failed attempts of a work item after the first. Default 3."
        ),
        click.option(
            "--lease-seconds",
            type=click.FloatRange(min=0.5),
            metavar="SECONDS",
            help="After this long without a sign of life others take over. Default 60.",
        ),
        click.option("--overwrite", is_flag=True, help="The output replaces what lies in its folder, all at once when it is complete."),
        click.option(
            "--run", "run_url", metavar="URL", help="Where the run's ledger lies. Default: as the recipe says, else <output>.run."
        ),
        options.parameters,
    ):
        command = option(command)
    return command


def settings_of(settings: RunSettings, lease_seconds: float | None, max_retries: int | None) -> RunSettings:
    """The recipe's settings with what the command line says."""
    import msgspec

    changes: dict[str, Any] = {}
    if lease_seconds is not None:
        # the margin must leave most of the lease for work
        changes = {"lease_seconds": lease_seconds, "lease_margin_seconds": min(settings.lease_margin_seconds, lease_seconds / 4)}
    if max_retries is not None:
        changes["max_retries"] = max_retries
    return msgspec.structs.replace(settings, **changes)


@click.command("run", short_help="Run a pipeline.")
@click.argument("target", metavar="TARGET")
@settings_options
@options.working
@options.as_json
@options.store_options
def command(
    target: str,
    parameters: tuple[tuple[str, str], ...],
    run_url: str | None,
    overwrite: bool,
    lease_seconds: float | None,
    max_retries: int | None,
    processes: int | None,
    memory_per_child: int | None,
    max_shards: int | None,
    poll_interval: float | None,
    safe: bool,
    quiet: bool,
    as_json: bool,
    store_option: tuple[tuple[str, str], ...],
) -> int:
    """Run the pipeline TARGET: a recipe (x.yaml), module:pipeline, or a Python file (x.py or x.py:name).

    The first to start plans the run; the same command on other machines joins it; the same command again resumes it. With another
    pipeline, other parameters or other input it is refused, and told what differs.

    Progress goes to stderr, the report to stdout. Exit codes: 0 the run is complete, 1 work is left (--max-shards, or others are at
    it), 2 wrong recipe or input, or work items that failed for good, 3 asked to stop: run the same command again.

    \b
    Examples:
      cloudshard run configs/quickstart.yaml
      cloudshard run configs/quickstart.yaml -p min_lines=50 -p output=out/longer --processes 4
      cloudshard run my_jobs.clean:pipeline --run s3://bucket/runs/clean-2026
    """
    from cloudshard.cli.ending import tell_end
    from cloudshard.cli.progress import display
    from cloudshard.cli.target import resolve, run_url_of
    from cloudshard.worker.run import run_pipeline

    recipe = resolve(target, parameters, overwrite=overwrite)
    url = run_url_of(recipe, run_url)
    options.register(url, store_option)  # nothing is opened yet: the worker forks its children from a process without connections
    with display(quiet=quiet) as progress:
        result = run_pipeline(
            recipe.pipeline,
            url,
            settings=settings_of(recipe.settings, lease_seconds, max_retries),
            processes=processes or recipe.processes,
            memory_per_child=memory_per_child,
            max_shards=max_shards,
            poll_interval=poll_interval,
            safe=safe,
            progress=progress,
        )
    # a run that --max-shards has ended early is incomplete, though this process has done what it was asked to
    code = EXIT_INCOMPLETE if result.exit_code == EXIT_DONE and result.seal is None else result.exit_code
    return tell_end(url, code, was_complete=result.was_complete, as_json=as_json, quiet=quiet, summary=recipe.summary)
