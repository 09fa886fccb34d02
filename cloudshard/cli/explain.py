"""`cloudshard explain TARGET`: the plan, before anything runs, or of a run that exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cloudshard.cli import options
from cloudshard.errors import EXIT_DONE

if TYPE_CHECKING:
    from cloudshard.plan.build import Planned


@click.command("explain", short_help="Show the plan.")
@click.argument("target", metavar="TARGET")
@options.parameters
@options.as_json
@options.store_options
def command(target: str, parameters: tuple[tuple[str, str], ...], as_json: bool, store_option: tuple[tuple[str, str], ...]) -> int:
    """Show the plan of TARGET: a recipe (x.yaml), module:pipeline, a Python file, or the URL of a run.

    Stages and what is fused in them, why each boundary exists, work items, projected memory, the number of store requests and what
    they cost. Lists the input and may sample it; writes nothing.

    \b
    Example: cloudshard explain configs/quickstart.yaml -p min_lines=50
    """
    from cloudshard.plan.explain import explain

    explanation = explain(_planned(target, parameters, store_option))
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(explanation.to_dict()))
    else:
        click.echo(explanation.render_text(), nl=False)
    return EXIT_DONE


def _planned(target: str, parameters: tuple[tuple[str, str], ...], store_option: tuple[tuple[str, str], ...]) -> Planned:
    from cloudshard.cli.target import is_pipeline, resolve

    if not is_pipeline(target):
        return planned_of_run(target, store_option)
    from cloudshard.plan.build import build

    return build(resolve(target, parameters).pipeline)


def planned_of_run(url: str, store_option: tuple[tuple[str, str], ...]) -> Planned:
    """What the planner of an existing run had made."""
    from cloudshard.ledger.items import decode_items
    from cloudshard.observe.load import open_run
    from cloudshard.plan.build import Planned

    run = open_run(options.open_run_store(url, store_option))
    items = decode_items(run.store.get(run.record.items_key), run.record.items_key)
    functions = [step.function for stage in run.plan.stages for step in stage.steps if step.function is not None]
    return Planned(
        plan=run.plan,
        items=tuple(items),
        pickles={function.key: b"" for function in functions if function.key is not None},
        fingerprint=run.record.fingerprint,
        fields=run.record.fingerprint_fields,
    )
