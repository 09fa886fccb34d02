"""What several verbs share: kinds of parameters, the run's URL, store options, numbers for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cloudshard.errors import RecipeError

if TYPE_CHECKING:
    from cloudshard.plan.values import SinkSpec
    from cloudshard.store.port import Store

F = TypeVar("F", bound=Callable[..., Any])


def size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Callback: bytes of a text such as "64MiB"."""
    if value is None:
        return None
    from cloudshard.recipe.models import parse_size  # brings pydantic: only when a size is given

    try:
        return int(parse_size(value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def processes(_ctx: click.Context, _param: click.Parameter, value: str) -> int | None:
    """Callback: "auto" (None), or a number of child processes."""
    if value == "auto":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is neither 'auto' nor a number of processes from 1")
    return int(value)


def pair(_ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Callback: ``name=value`` pairs."""
    found = []
    for value in values:
        name, equals, content = value.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{value!r} is not of the form name=value")
        found.append((name, content))
    return tuple(found)


def pairs(values: Sequence[tuple[str, str]], option: str) -> dict[str, str]:
    """The pairs as a dictionary. Raises RecipeError when a name is given twice."""
    found: dict[str, str] = {}
    for name, value in values:
        if name in found:
            raise RecipeError(f"{option} {name}=… is given twice")
        found[name] = value
    return found


def store_options(command: F) -> F:
    """``--store-option name=value`` (repeated)."""
    return click.option(
        "--store-option",
        "store_option",
        metavar="NAME=VALUE",
        callback=pair,
        multiple=True,
        help="Option of the store that holds the run, for example endpoint_url=http://localhost:9000. May be repeated.",
    )(command)


def parameters(command: F) -> F:
    """``-p name=value`` (repeated)."""
    return click.option(
        "-p",
        "--parameter",
        "parameters",
        metavar="NAME=VALUE",
        callback=pair,
        multiple=True,
        help="A parameter of the recipe (or set CLOUDSHARD_PARAM_NAME). May be repeated.",
    )(command)


def as_json(command: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object with a stable schema on stdout.")(command)


def store_values(given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """``--store-option`` as a dictionary, with true/false and whole numbers as such."""
    return {name: parse_or_text(value) for name, value in pairs(given, "--store-option").items()}


def register(url: str, given: Sequence[tuple[str, str]]) -> None:
    """Make options given on the command line hold for every URL of the scheme of ``url``, in this process and its children."""
    from cloudshard.store.options import register_options
    from cloudshard.store.registry import normalise

    if given:
        register_options(normalise(url).partition("://")[0] + "://", store_values(given))


def open_run_store(url: str, given: Sequence[tuple[str, str]]) -> Store:
    """The store at a run's URL."""
    from cloudshard.store.registry import open_store

    register(url, given)
    return open_store(url)


def open_output(sink: SinkSpec) -> Store:
    """The store at a sink's URL."""
    from cloudshard.store.registry import open_store

    return open_store(sink.url or "", sink.store_options)


def parse_or_text(text: str) -> Any:
    """true, false and whole numbers as such, anything else as text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def working(command: F) -> F:
    """What everything that works on a run may be told."""
    for option in reversed(_WORKING):
        command = option(command)
    return command


_WORKING = (
    click.option(
        "--processes",
        metavar="auto|N",
        callback=processes,
        default="auto",
        show_default=True,
        help="Child processes; auto: as many as there are usable cores (the recipe may say otherwise).",
    ),
    click.option(
        "--memory-per-child",
        metavar="SIZE",
        callback=size,
        help="Memory limit of a child process, for example 2GiB. Default: its share of the memory.",
    ),
    click.option(
        "--max-shards",
        type=click.IntRange(min=1),
        metavar="N",
        help="Stop after this many attempts. `run` then exits with 1 if work is left, `worker` with 0.",
    ),
    click.option(
        "--poll-interval",
        type=click.FloatRange(min=0.05),
        metavar="SECONDS",
        help="How often to look for work while others hold all of it. Default: as the leases of the others suggest.",
    ),
    click.option(
        "--safe", is_flag=True, help="Refuse runs whose functions travel as pickles: only functions named module:function are called."
    ),
    click.option("--quiet", "-q", is_flag=True, help="No progress and no report: remarks, warnings and errors only."),
)
