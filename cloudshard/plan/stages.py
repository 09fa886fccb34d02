"""Fusing: from a list of steps to stages, each a chain without materialisation. Pure.

Fuse by default, materialise only when forced: an explicit checkpoint, and a limit over several work items (no work item can know how many
rows the others give).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cloudshard.plan.boundary import CHECKPOINT, LIMIT
from cloudshard.plan.logical import Checkpoint, Step
from cloudshard.plan.values import StepSpec


@dataclass(frozen=True, slots=True)
class Chain:
    """The steps of one stage, and how the next stage follows from it (``boundary`` None: the last)."""

    steps: tuple[StepSpec, ...]
    boundary: str | None = None
    rows: int | None = None
    reason: str = ""


def fuse(steps: Sequence[StepSpec | None], *, item_count: int) -> tuple[tuple[Chain, ...], tuple[str, ...]]:
    """(chains, warnings). ``steps``: None stands for a checkpoint; ``item_count``: work items of the first stage.

    There is at least one chain, and the last has no boundary.
    """
    chains: list[Chain] = []
    warnings: list[str] = []
    held: list[StepSpec] = []
    for at, step in enumerate(steps):
        if step is None:
            if at == len(steps) - 1:
                warnings.append("a checkpoint right before the sink is left out: the sink writes the rows down anyway")
            elif held or not chains:
                chains.append(
                    Chain(tuple(held), CHECKPOINT, reason="an explicit checkpoint: what follows does not run again when it fails")
                )
                held = []
            continue
        held.append(step)
        if step.kind != "limit" or (item_count <= 1 and not chains):
            continue  # with one work item its own first rows are the run's first rows
        rows = int(step.params["rows"])
        reason = (
            f"{step.name}: the first {rows:,} rows in input order are known only when all work items have given up to {rows:,} rows each"
        )
        chains.append(Chain(tuple(held), LIMIT, rows, reason))
        held = []
    chains.append(Chain(tuple(held)))
    return tuple(chains), tuple(warnings)


def step_names(steps: Sequence[Step | Checkpoint]) -> list[str]:
    """A unique name for each step: its number among the steps, its kind, and a word of its own (``02-map-clean``)."""
    names = []
    number = 0
    for step in steps:
        if isinstance(step, Checkpoint):
            names.append("checkpoint")
            continue
        number += 1
        word = re.sub(r"[^A-Za-z0-9_]+", "-", step.label or _function_word(step)).strip("-")
        names.append(f"{number:02d}-{step.kind}" + (f"-{word}" if word and word != step.kind else ""))
    return names


def _function_word(step: Step) -> str:
    function = step.function
    if function is None:
        return ""
    if isinstance(function, str):
        return function.rpartition(":")[2].rpartition(".")[2]
    name = (
        getattr(function, "__qualname__", None) or getattr(getattr(function, "func", None), "__qualname__", None) or type(function).__name__
    )
    return str(name).rpartition(".")[2].strip("<>")
