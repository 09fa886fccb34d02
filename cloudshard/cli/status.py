"""`cloudshard status RUN`: items by state, rows, workers, live claims, failures by cause."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from cloudshard.cli import options, text
from cloudshard.errors import EXIT_PREEMPTED

if TYPE_CHECKING:
    from cloudshard.observe.status import RunStatus
    from cloudshard.store.port import Store

#: Lines shown without --all.
SHOWN = 10


@click.command("status", short_help="Show what a run is doing.")
@click.argument("run", metavar="RUN")
@options.as_json
@click.option("--all", "everything", is_flag=True, help="Show every work item, worker, claim and cause of failure, not the first 10.")
@click.option("--watch", is_flag=True, help="Draw again every --interval seconds until the run is complete or has failed.")
@click.option("--interval", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds between two looks with --watch.")
@options.store_options
def command(run: str, as_json: bool, everything: bool, watch: bool, interval: float, store_option: tuple[tuple[str, str], ...]) -> int:
    """Show what the run at the URL RUN is doing.

    Ages and leases are by the store's clock. Exit codes: 0 complete, 1 work is left, 2 items are dead (see `retry`).

    \b
    Example: cloudshard status s3://bucket/runs/clean-2026 --watch
    """
    store = options.open_run_store(run, store_option)
    if watch:
        return _watch(store, everything, as_json, interval)
    return _show(store, everything, as_json).exit_code


def _show(store: Store, everything: bool, as_json: bool) -> RunStatus:
    from cloudshard.observe.status import read_status

    status = read_status(store, every_item=everything)
    click.echo(to_json(status) if as_json else "\n".join(render(status, everything)))
    return status


def to_json(status: RunStatus) -> str:
    """One line of JSON."""
    import msgspec

    return msgspec.json.encode(status).decode()


def _watch(store: Store, everything: bool, as_json: bool, interval: float) -> int:
    """On a terminal one picture that changes, elsewhere (or with --json) one report after the other."""
    from cloudshard.observe.status import read_status

    try:
        if as_json or not sys.stdout.isatty():
            while True:
                status = _show(store, everything, as_json)
                sys.stdout.flush()
                if status.state in ("complete", "failed"):
                    return status.exit_code
                time.sleep(interval)
        from rich.live import Live
        from rich.text import Text

        with Live(refresh_per_second=4, vertical_overflow="crop") as live:
            while True:
                status = read_status(store, every_item=everything)
                live.update(Text("\n".join(render(status, everything))), refresh=True)
                if status.state in ("complete", "failed"):
                    return status.exit_code
                time.sleep(interval)
    except KeyboardInterrupt:
        return EXIT_PREEMPTED


# ------------------------------------------------------------ for people


def render(status: RunStatus, everything: bool = False) -> list[str]:
    """The status as lines of text."""
    shown = 10**9 if everything else SHOWN
    lines = [f"{status.pipeline}  {status.state}  {status.run_id}  {status.url}", f"started {text.duration(status.age_seconds)} ago"]
    if status.took_seconds is not None:
        lines[-1] += f", took {text.duration(status.took_seconds)}"
    elif status.bytes_per_second:
        lines[-1] += f", {text.size(status.bytes_per_second)}/s, about {text.duration(status.eta_seconds)} to go"
    lines += ["", *_stages(status)]
    lines += _section("failures by cause", _failures(status, shown), len(status.failures), shown)
    lines += _section("live claims", _claims(status, shown), len(status.claims), shown)
    lines += _section("workers", _workers(status, shown), len(status.workers), shown)
    if everything and status.items is not None:
        lines += _section("items", _items(status), len(status.items), len(status.items))
    hint = _hint(status)
    return lines + (["", hint] if hint else [])


def _stages(status: RunStatus) -> list[str]:
    """Two tables, so that each fits a terminal of 80 columns: work items by state, and rows."""
    items, rows = [], []
    for stage in status.stages:
        number, states = str(stage.stage), stage.items
        state = "sealed" if stage.sealed else "open" if stage.started else "waits"
        count = "?" if stage.item_count is None else text.count(stage.item_count)
        by_state = (states.done, states.running, states.stale, states.pending, states.failed)
        items.append([number, state, count, *map(text.count, by_state)])
        at_least = "" if stage.rows_exact else "≥"
        counts = (stage.rows_in, stage.rows_out, stage.filtered, stage.quarantined + stage.dropped)
        rows.append([number, *(at_least + text.count(value) for value in counts), text.count(stage.parts), text.size(stage.bytes_written)])
    lines = text.align(["stage", "state", "items", "done", "running", "stale", "pending", "failed"], items, [False, False] + [True] * 6)
    if any(stage.commits_counted for stage in status.stages):
        headers = ["stage", "rows in", "rows out", "filtered", "bad", "parts", "written"]
        lines += ["", *text.align(headers, rows, [False] + [True] * 6)]
    return lines


def _failures(status: RunStatus, shown: int) -> list[str]:
    lines = []
    for group in status.failures[:shown]:
        named = ", ".join(f"{group.stage}/{item}" for item in group.items[:5]) + (" …" if group.item_count > 5 else "")
        dead = f", {group.dead} dead" if group.dead else ""
        step = f" in {group.step}" if group.step else ""
        lines.append(
            f"{text.plural(group.attempts, 'attempt')} of {text.plural(group.item_count, 'item')}{dead} ({named}): "
            f"{group.kind}: {group.error_type}{step}: {group.message}"
        )
        if group.example:
            lines.append(f"    at {group.example}")
    return lines


def _claims(status: RunStatus, shown: int) -> list[str]:
    oldest = sorted(status.claims, key=lambda claim: -claim.lease_age_seconds)[:shown]
    rows = [
        [f"{c.stage}/{c.item}", str(c.epoch), c.state, f"{c.lease_age_seconds:.0f} of {c.lease_seconds:g} s", c.worker or "?"]
        for c in oldest
    ]
    return text.align(["item", "epoch", "lease", "age", "worker"], rows, [False, True, False, False, False]) if rows else []


def _workers(status: RunStatus, shown: int) -> list[str]:
    newest = sorted(status.workers, key=lambda worker: worker.seen_seconds_ago)[:shown]
    rows = [
        [
            w.worker,
            w.host,
            str(w.processes),
            w.state,
            f"{text.duration(w.seen_seconds_ago)} ago",
            str(w.items_held),
            str(w.items_committed),
            str(w.items_failed),
        ]
        for w in newest
    ]
    headers = ["worker", "host", "processes", "state", "seen", "holds", "committed", "failed"]
    return text.align(headers, rows, [False, False, True, False, False, True, True, True]) if rows else []


def _items(status: RunStatus) -> list[str]:
    rows = [[f"{i.stage}/{i.item}", i.state, str(i.epoch), str(i.failures)] for i in status.items or ()]
    return text.align(["item", "state", "epoch", "failures"], rows, [False, False, True, True])


def _section(title: str, lines: list[str], total: int, shown: int) -> list[str]:
    if not lines:
        return []
    more = [f"… and {total - shown} more (--all)"] if total > shown else []
    return ["", title, *(f"  {line}" for line in lines + more)]


def _hint(status: RunStatus) -> str:
    dead = sum(stage.items.failed for stage in status.stages)
    if status.state == "complete":
        return ""
    if dead:
        spent = f"{text.plural(dead, 'item')} spent the retry budget"
        return f"{spent}: mend the cause, then `cloudshard retry {status.url} --all-failed` and run again."
    if status.state == "idle":
        return f"Nobody is at work. Go on with `cloudshard worker {status.url}`, or run the same command again."
    return ""
