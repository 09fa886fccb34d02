"""Parameters of a recipe: declared with a default, overridden by environment and command line, put in place of ``${name}``.

The default's type is the parameter's type, and an override must be of it. A string that is nothing but ``${name}`` becomes the typed value;
inside a longer string the value is written out, in SQL as a literal (text in quotes). ``$${`` stands for a plain ``${``.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from cloudshard.recipe.document import Document, Path, suggestion

ENVIRONMENT_PREFIX = "CLOUDSHARD_PARAM_"

#: Where, and under which keys, text is SQL.
SQL_SECTIONS = frozenset({"steps", "summary"})
SQL_KEYS = frozenset({"sql", "query", "filter", "condition", "with_columns"})

TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "list": list}
_DECLARATION_KEYS = ("type", "default", "choices", "help")
_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One declaration. ``default`` None: must be given."""

    name: str
    type: str
    default: Any = None
    choices: tuple[Any, ...] = ()
    help: str = ""


def declared(document: Document) -> dict[str, Parameter]:
    """The recipe's ``parameters:`` block: name → value, or name → {type, default, choices, help}."""
    block = document.value.get("parameters") or {}
    if not isinstance(block, dict):
        raise document.error("must be a mapping of names to defaults", ("parameters",))
    return {name: _declaration(document, name, given) for name, given in block.items()}


def _declaration(document: Document, name: str, given: Any) -> Parameter:
    path: Path = ("parameters", name)
    if not _NAME.match(name):
        raise document.error("a parameter's name is a letter followed by letters, digits and _", path)
    if not isinstance(given, dict):
        if given is None:
            raise document.error("has no default and no type", path, mend=f"Write {name}: {{type: str}} for a parameter that must be given")
        return Parameter(name, _type_of(document, given, path), given)
    for key in given:
        if key not in _DECLARATION_KEYS:
            raise document.error("unknown key", (*path, key), mend=suggestion(key, _DECLARATION_KEYS))
    default = given.get("default")
    kind = given.get("type") or (None if default is None else _type_of(document, default, path))
    if kind not in TYPES:
        raise document.error(f"the type must be one of {', '.join(TYPES)}, not {kind!r}", (*path, "type"))
    choices = given.get("choices") or []
    if not isinstance(choices, list):
        raise document.error("must be a list", (*path, "choices"))
    parameter = Parameter(name, kind, None, tuple(choices), str(given.get("help", "")))
    if default is None:
        return parameter
    value = _coerce(parameter, default, lambda what: document.error(what, (*path, "default")))
    return Parameter(name, kind, value, parameter.choices, parameter.help)


def _type_of(document: Document, value: Any, path: Path) -> str:
    for name in ("bool", "int", "float", "str", "list"):  # bool before int: True is an int
        if isinstance(value, TYPES[name]):
            return name
    raise document.error(f"a parameter cannot be a {type(value).__name__}", path, mend="Put it in quotes to make it text")


def resolve(document: Document, given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Value of each declared parameter: ``given`` before ``environment`` before default.

    ``given`` may hold text (from a command line: parsed by the parameter's type) or values of that type.
    """
    known = declared(document)
    for name in given:
        if name not in known:
            raise document.error(f"unknown parameter {name!r}", ("parameters",), mend=suggestion(name, known) or "The recipe declares none")
    values: dict[str, Any] = {}
    for name, parameter in known.items():
        variable = ENVIRONMENT_PREFIX + name.upper()
        if name in given:
            values[name] = _coerce(parameter, given[name], _complaint(document, name, f"parameter {name}"))
        elif variable in environment:
            values[name] = _coerce(parameter, environment[variable], _complaint(document, name, variable))
        elif parameter.default is not None:
            values[name] = _with_built_ins(document, parameter.default, ("parameters", name))
        else:
            raise document.error("must be given", ("parameters", name), mend=f"Add -p {name}=… or set {variable}")
    return values


def _complaint(document: Document, name: str, source: str) -> Callable[[str], Exception]:
    return lambda what: document.error(f"{source}: {what}", ("parameters", name))


def _coerce(parameter: Parameter, value: Any, complain: Callable[[str], Exception]) -> Any:
    """The value as the parameter's type; text is parsed, and an int will do for a float. Nothing else is converted."""
    kind = parameter.type
    if isinstance(value, str) and kind != "str":
        value = _from_text(kind, value, complain)
    elif kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    elif not isinstance(value, TYPES[kind]) or (kind == "int" and isinstance(value, bool)):
        raise complain(f"must be {kind}, not {value!r}")
    if parameter.choices and value not in parameter.choices:
        raise complain(f"must be one of {', '.join(map(str, parameter.choices))}, not {value!r}")
    return value


def _from_text(kind: str, text: str, complain: Callable[[str], Exception]) -> Any:
    if kind == "bool":
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.strip().lower() not in words:
            raise complain(f"must be true or false, not {text!r}")
        return words[text.strip().lower()]
    if kind == "list":
        import yaml

        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = None
        if not isinstance(value, list):
            raise complain(f"must be a list such as [a, b], not {text!r}")
        return value
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise complain(f"must be {kind}, not {text!r}") from None


def built_in(document: Document) -> dict[str, Callable[[], str]]:
    """Names with a colon that every recipe may use."""
    return {
        "python:stdlib": lambda: sysconfig.get_paths()["stdlib"],
        "recipe:folder": lambda: str(FilePath(document.name).resolve().parent),
    }


def _with_built_ins(document: Document, default: Any, path: Path) -> Any:
    """A default may refer to what is built in, not to other parameters (whose order would matter)."""
    names = built_in(document)

    def look_up(name: str, where: Path) -> Any:
        if name not in names:
            raise document.error(f"a default cannot refer to ${{{name}}}", where, mend=suggestion(name, names))
        return names[name]()

    if isinstance(default, list):
        return [_with_built_ins(document, each, path) for each in default]
    return _replace(document, default, path, look_up) if isinstance(default, str) and "${" in default else default


def substitute(document: Document, values: Mapping[str, Any]) -> None:
    """Replaces ``${…}`` everywhere in the document but in the ``parameters:`` block itself."""
    names = built_in(document)

    def look_up(name: str, path: Path) -> Any:
        if name in values:
            return values[name]
        if name in names:
            return names[name]()
        raise document.error(f"unknown parameter ${{{name}}}", path, mend=suggestion(name, [*values, *names]))

    def walk(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {key: walk(child, (*path, key)) for key, child in value.items()}
        if isinstance(value, list):
            return [walk(child, (*path, at)) for at, child in enumerate(value)]
        return _replace(document, value, path, look_up) if isinstance(value, str) and "${" in value else value

    for key, value in document.value.items():
        if key != "parameters":
            document.value[key] = walk(value, (key,))


def _replace(document: Document, text: str, path: Path, look_up: Callable[[str, Path], Any]) -> Any:
    whole = _REFERENCE.fullmatch(text)
    in_sql = path[0] in SQL_SECTIONS and any(part in SQL_KEYS for part in path)
    if whole is not None and whole.group(1) is not None and not in_sql:
        return look_up(whole.group(1), path)

    def one(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return "${"
        return _written(document, look_up(match.group(1), path), path, in_sql=in_sql)

    return _REFERENCE.sub(one, text)


def _written(document: Document, value: Any, path: Path, *, in_sql: bool) -> str:
    """A value inside a longer text."""
    from cloudshard.plan.steps import literal

    if in_sql:
        return "(" + ", ".join(map(literal, value)) + ")" if isinstance(value, list) else literal(value)
    if isinstance(value, list):
        raise document.error("a list can only stand for a whole value, not inside a text", path)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
