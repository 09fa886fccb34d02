"""From what a command line names to a recipe and the run's URL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cloudshard.cli import options
from cloudshard.errors import RecipeError

if TYPE_CHECKING:
    from cloudshard.recipe import Recipe

_PIPELINE = re.compile(r".+\.(ya?ml|py(:[\w.]+)?)|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_][\w.]*")


def is_pipeline(target: str) -> bool:
    """Whether ``target`` is spelt like a recipe, a Python file or module:name, and not like a URL or a folder."""
    return "://" not in target and _PIPELINE.fullmatch(target) is not None


def resolve(target: str, parameters: Sequence[tuple[str, str]], *, overwrite: bool = False) -> Recipe:
    """The recipe that ``target`` names; ``overwrite``: its output replaces what is in the target folder."""
    from cloudshard.recipe import resolve_target

    if "://" in target:
        mend = f"Give a recipe (x.yaml), module:name, or a Python file; to work on a run that exists: cloudshard worker {target}"
        raise RecipeError(f"{target!r} is a URL and names no pipeline", mend=mend)
    recipe = resolve_target(target, options.pairs(parameters, "-p"))
    sink = recipe.pipeline.sink
    if overwrite and sink is not None:
        recipe = replace(recipe, pipeline=replace(recipe.pipeline, sink=replace(sink, mode="overwrite")))
    return recipe


def run_url_of(recipe: Recipe, given: str | None) -> str:
    """Where the run's ledger lies: as given, as the recipe says, or beside the output (``<output>.run``)."""
    from cloudshard.store.registry import normalise
    from cloudshard.worker.run import default_run_url

    url = given or recipe.run_url
    return normalise(url) if url else default_run_url(recipe.pipeline)
