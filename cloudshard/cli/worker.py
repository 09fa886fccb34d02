"""`cloudshard worker RUN`: join a run that exists."""

from __future__ import annotations

import click

from cloudshard.cli import options


@click.command("worker", short_help="Join a run that exists.")
@click.argument("run", metavar="RUN")
@options.working
@options.as_json
@options.store_options
def command(
    run: str,
    processes: int | None,
    memory_per_child: int | None,
    max_shards: int | None,
    poll_interval: float | None,
    safe: bool,
    quiet: bool,
    as_json: bool,
    store_option: tuple[tuple[str, str], ...],
) -> int:
    """Work on the run at the URL RUN until it is complete. Any number of workers may join and leave at any time.

    Needs no recipe: plan and functions come from the bucket. The packages that the functions use must be installed.

    Exit codes: 0 the run is complete or --max-shards is reached, 1 the store failed for too long, 2 work items failed for good,
    3 asked to stop (SIGTERM, SIGINT, SIGUSR1: flushes, releases its leases and ends in less than 25 s).

    \b
    Example: cloudshard worker s3://bucket/runs/clean-2026 --processes 8
    """
    from cloudshard.cli.ending import tell_end
    from cloudshard.cli.progress import display
    from cloudshard.worker.run import work

    options.register(run, store_option)  # nothing is opened yet: the worker forks its children from a process without connections
    with display(quiet=quiet) as progress:
        result = work(
            run,
            processes=processes,
            memory_per_child=memory_per_child,
            max_shards=max_shards,
            poll_interval=poll_interval,
            safe=safe,
            progress=progress,
        )
    return tell_end(run, result.exit_code, was_complete=result.was_complete, as_json=as_json, quiet=quiet)
