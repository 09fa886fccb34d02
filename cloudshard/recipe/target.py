"""What a command line names: a YAML recipe, ``module:pipeline`` or a Python file, resolved to a :class:`Recipe`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path as FilePath
from types import ModuleType
from typing import Any

from cloudshard.errors import CloudshardError, RecipeError
from cloudshard.plan.logical import Pipeline
from cloudshard.recipe.document import suggestion
from cloudshard.recipe.load import Recipe, load_recipe

#: Modules of pipeline files are named so: a worker elsewhere cannot import them, hence their functions travel by value.
FILE_MODULE_PREFIX = "__cloudshard_file_"

_DEFAULT_NAMES = ("pipeline", "dataset")


def resolve_target(target: str, parameters: Mapping[str, Any] | None = None, *, environment: Mapping[str, str] | None = None) -> Recipe:
    """The recipe that ``target`` names.

    ``x.yaml``/``x.yml``: a recipe. ``package.module:name``: an object of an importable module. ``file.py`` or ``file.py:name``: an
    object of a file (``pipeline`` or ``dataset``, or the only one there is). The object is a pipeline, a dataset with a sink, or a
    function that returns one; only a function takes ``parameters`` (as keyword arguments, text converted by its annotations).
    Raises RecipeError for everything that cannot be found, loaded or used; an exception in the user's module keeps its own cause.
    """
    given = dict(parameters or {})
    path, _, name = target.partition(":") if re.search(r"\.py(:|$)", target) else (target, "", "")
    if target.endswith((".yaml", ".yml")):
        return load_recipe(target, given, environment=environment)
    if path.endswith(".py"):
        module = load_file(path)
    else:
        module_name, _, name = target.partition(":")
        if not name or not all(part.isidentifier() for part in module_name.split(".")):
            mend = "Give a recipe (x.yaml), module:name, or a Python file (x.py or x.py:name)"
            raise RecipeError(f"{target!r} names no pipeline", mend=mend)
        module = _import(module_name)
    found = _attribute(module, name, target) if name else _only_pipeline(module, target)
    return Recipe(pipeline=_pipeline_of(found, given, target))


def load_file(path: str) -> ModuleType:
    """The module of a Python file, under a name that depends on its path alone. Its folder is importable, as for ``python file.py``."""
    full = FilePath(path).resolve()
    if not full.is_file():
        raise RecipeError("there is no such file", where=path)
    name = f"{FILE_MODULE_PREFIX}{full.stem}_{hashlib.sha256(os.fsencode(full)).hexdigest()[:8]}"
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise RecipeError("the file cannot be loaded as a module", where=path)
    module = importlib.util.module_from_spec(spec)
    folder = str(full.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except CloudshardError:
        del sys.modules[name]
        raise
    except Exception as error:  # the user's module may raise anything; it becomes one sentence with its cause kept
        del sys.modules[name]
        raise RecipeError(f"the file raised {type(error).__name__}: {error}", where=_where_raised(error, full, path)) from error
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)
    return module


def _where_raised(error: BaseException, full: FilePath, path: str) -> str:
    """``path, line n``: the innermost line of the user's own file."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{path}, line {error.lineno}"
    line, traceback = None, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(full):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return path if line is None else f"{path}, line {line}"


def _import(name: str) -> ModuleType:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # a console script's path lacks the working folder, which `python -m` has
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise RecipeError(f"there is no module {error.name!r}", where=name, mend="Run from its folder, or install its package") from error
    except CloudshardError:
        raise
    except Exception as error:  # the user's module may raise anything; it becomes one sentence with its cause kept
        raise RecipeError(f"importing the module raised {type(error).__name__}: {error}", where=name) from error


def _attribute(module: ModuleType, name: str, target: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise RecipeError(
                f"there is no {name!r} in it", where=target, mend=suggestion(part, [n for n in vars(module) if not n.startswith("_")])
            )
        found = getattr(found, part)
    return found


def _only_pipeline(module: ModuleType, target: str) -> Any:
    for name in _DEFAULT_NAMES:
        if hasattr(module, name):
            return getattr(module, name)
    found = {name: value for name, value in vars(module).items() if not name.startswith("_") and _as_pipeline(value) is not None}
    if len(found) == 1:
        return next(iter(found.values()))
    what = f"it has {len(found)} pipelines: {', '.join(sorted(found))}" if found else "there is no pipeline in it"
    raise RecipeError(what, where=target, mend=f"Name one: {target}:name" if found else "Assign it to a variable named pipeline")


def _as_pipeline(value: Any) -> Pipeline | None:
    """A pipeline, or what carries one (a dataset)."""
    if isinstance(value, Pipeline):
        return value
    carried = None if isinstance(value, type) else getattr(value, "pipeline", None)
    return carried if isinstance(carried, Pipeline) else None


def _pipeline_of(found: Any, parameters: dict[str, Any], target: str) -> Pipeline:
    pipeline = _as_pipeline(found)
    if pipeline is None and callable(found) and not isinstance(found, type):
        pipeline = _as_pipeline(_call(found, parameters, target))
    elif pipeline is not None and parameters:
        mend = "Make it a function that takes them and returns the pipeline"
        raise RecipeError(f"it takes no parameters ({', '.join(parameters)} given)", where=target, mend=mend)
    if pipeline is None:
        raise RecipeError(f"it is neither a pipeline nor a function that returns one, but a {type(found).__name__}", where=target)
    if pipeline.sink is None:
        raise RecipeError("the pipeline has no sink", where=target, mend="End it with write_parquet, write_jsonl, write_csv or write_arrow")
    return pipeline


def _call(function: Any, parameters: dict[str, Any], target: str) -> Any:
    signature = inspect.signature(function, eval_str=False)
    known = [name for name, p in signature.parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name in parameters:
        if name not in known and not takes_any:
            raise RecipeError(f"unknown parameter {name!r}", where=target, mend=suggestion(name, known) or "It takes none")
    arguments = {name: _converted(signature.parameters.get(name), name, value, target) for name, value in parameters.items()}
    missing = [name for name in known if name not in arguments and signature.parameters[name].default is inspect.Parameter.empty]
    if missing:
        raise RecipeError(f"the parameter {missing[0]} must be given", where=target, mend=f"Add -p {missing[0]}=…")
    return function(**arguments)


def _converted(parameter: inspect.Parameter | None, name: str, value: Any, target: str) -> Any:
    """Text from the command line as what the annotation, or else the default's type, wants."""
    if parameter is None or not isinstance(value, str):
        return value
    wanted = parameter.annotation if parameter.annotation is not inspect.Parameter.empty else type(parameter.default)
    wanted = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", "str")
    if wanted == "bool":
        if value.lower() not in ("true", "false", "yes", "no", "1", "0"):
            raise RecipeError(f"the parameter {name} must be true or false, not {value!r}", where=target)
        return value.lower() in ("true", "yes", "1")
    if wanted in ("int", "float"):
        try:
            return int(value) if wanted == "int" else float(value)
        except ValueError:
            raise RecipeError(f"the parameter {name} must be {wanted}, not {value!r}", where=target) from None
    return value
