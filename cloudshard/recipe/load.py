"""From a recipe's text to a logical pipeline: parse, put parameters in, validate, build."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from cloudshard.errors import RecipeError
from cloudshard.ledger.records import RunSettings
from cloudshard.plan.logical import Pipeline
from cloudshard.recipe.document import Document, Path, parse, spell, suggestion
from cloudshard.recipe.parameters import resolve, substitute

if TYPE_CHECKING:
    from pydantic import ValidationError

    from cloudshard.recipe.models import RecipeModel

UNKNOWN_KEY = "unknown key"


@dataclass(frozen=True, slots=True)
class Summary:
    """The table to show at the end: one SELECT over the table ``output``."""

    sql: str
    title: str = "Summary"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A loaded recipe. ``run_url`` None: next to the output. ``processes`` None: as many as there are usable cores."""

    pipeline: Pipeline
    settings: RunSettings = field(default_factory=RunSettings)
    processes: int | None = None
    summary: Summary | None = None
    run_url: str | None = None
    description: str = ""
    text: str = ""


def load_recipe(
    path_or_text: str | os.PathLike[str], parameters: Mapping[str, Any] | None = None, *, environment: Mapping[str, str] | None = None
) -> Recipe:
    """The recipe of a YAML file (or of YAML text: anything with a line break).

    ``parameters``: values from the command line or from Python; ``environment``: where ``CLOUDSHARD_PARAM_<NAME>`` is looked up (the
    process's own when None). Raises RecipeError naming file, line and field.
    """
    text, name = _read(path_or_text)
    document = parse(text, name)
    values = resolve(document, parameters or {}, os.environ if environment is None else environment)
    substitute(document, values)
    model = _validate(document)
    from cloudshard.recipe.compile import build_pipeline

    pipeline = build_pipeline(document, model, values)
    return Recipe(
        pipeline=pipeline,
        settings=_settings(model),
        processes=None if model.settings.processes == "auto" else model.settings.processes,
        summary=None if model.summary is None else Summary(model.summary.sql, model.summary.title),
        run_url=model.run,
        description=model.description,
        text=text,
    )


def _read(path_or_text: str | os.PathLike[str]) -> tuple[str, str]:
    given = os.fspath(path_or_text)
    if not given:
        raise RecipeError("no recipe is given")
    if "\n" in given:
        return given, "recipe"
    try:
        return FilePath(given).read_bytes().decode("utf-8-sig"), given
    except FileNotFoundError:
        raise RecipeError("there is no such recipe", where=given) from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"a recipe is UTF-8 text; byte {error.start} is not", where=given) from None
    except OSError as error:
        raise RecipeError(f"the recipe cannot be read: {error.strerror}", where=given) from None


def _settings(model: RecipeModel) -> RunSettings:
    given = model.settings.model_dump(exclude_none=True, exclude={"processes"})
    settings = RunSettings(**given)
    if settings.lease_margin_seconds >= settings.lease_seconds:
        raise RecipeError(
            "settings: lease_margin_seconds must be shorter than lease_seconds", mend="A lease of 60 s with a margin of 5 s is the default"
        )
    return settings


def _validate(document: Document) -> RecipeModel:
    from pydantic import ValidationError

    from cloudshard.recipe.models import RecipeModel

    try:
        return RecipeModel.model_validate(document.value)
    except ValidationError as error:
        raise _explained(document, error) from None


def _explained(document: Document, error: ValidationError) -> RecipeError:
    """The first problem with its line; the others are named after it."""
    problems = [_problem(document, dict(found)) for found in error.errors(include_url=False)]
    unique = sorted(dict.fromkeys(problems), key=lambda problem: problem[1] != UNKNOWN_KEY)  # a typo is why another key is missing
    (path, what, mend), *others = unique
    if others:
        more = "; ".join(f"line {document.line(p)}: {spell(p)}: {w}" for p, w, _ in others[:5])
        mend = f"{mend}{' ' if mend else ''}Also: {more}"
    return document.error(what, path, mend=mend)


def _problem(document: Document, found: dict[str, Any]) -> tuple[Path, str, str]:
    path = _known_path(document, found["loc"])
    kind = found["type"]
    if kind == "extra_forbidden":
        return path, UNKNOWN_KEY, suggestion(str(path[-1]), _keys_at(path[:-1]))
    if kind == "missing":
        return tuple(found["loc"]), "is missing", ""
    if kind == "value_error":
        return path, str(found["ctx"]["error"]), ""
    if kind in ("model_type", "dict_type"):
        return path, f"must be a mapping, not {_shown(found['input'])}", ""
    message = str(found["msg"]).removeprefix("Input ").replace("valid integer", "whole number").replace("valid string", "text")
    return path, f"{message}, not {_shown(found['input'])}", ""


def _known_path(document: Document, loc: tuple[int | str, ...]) -> Path:
    """The location without what the document does not have: pydantic adds the names of a union's members."""
    path: Path = ()
    for part in loc:
        if (*path, part) in document.lines:
            path = (*path, part)
    return path


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys_at(path: Path) -> list[str]:
    """Keys that the model has at ``path``."""
    from typing import get_args

    from pydantic import BaseModel

    from cloudshard.recipe.models import RecipeModel

    model: type[BaseModel] | None = RecipeModel
    for part in path:
        if isinstance(part, int) or model is None:
            continue
        annotation = next((f.annotation for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        candidates = [annotation, *get_args(annotation), *(inner for outer in get_args(annotation) for inner in get_args(outer))]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return [] if model is None else [f.alias or name for name, f in model.model_fields.items()]
