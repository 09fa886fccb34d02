"""A user's function as data: how it is named, shipped and loaded again in another process or on another machine.

A function or class of an importable module travels by name. What no other process could import — lambdas, closures, ``__main__``,
notebooks, pipeline files — travels by value, as a cloudpickle object under the run's prefix. Arguments that are plain JSON stand in the
plan; others travel inside the pickle.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cloudshard.errors import RecipeError
from cloudshard.functions_digest import digest_of
from cloudshard.ledger import keys
from cloudshard.plan.values import FunctionRef

Function = Callable[..., Any] | type | str

#: What a function captures travels to every process of the run; beyond this it is data and belongs in the bucket.
MAX_PICKLE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """A function or class, ready to be used: :meth:`make` gives the callable.

    ``arguments`` are keyword arguments, bound to the function or given to the class.
    """

    target: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_class(self) -> bool:
        """Whether every process makes one instance, with setup and teardown. A class without ``__call__`` (``dict``) is a function."""
        return isinstance(self.target, type) and any("__call__" in vars(base) for base in self.target.__mro__)

    def make(self) -> Any:
        """The function with its arguments bound, or an instance of the class (its ``setup`` not yet called)."""
        if self.is_class:
            return self.target(**self.arguments)
        return functools.partial(self.target, **self.arguments) if self.arguments else self.target


@dataclass(frozen=True, slots=True)
class _Bound:
    """What is pickled when arguments are no plain JSON."""

    target: Any
    arguments: dict[str, Any]


def describe(function: Function, arguments: Mapping[str, Any] | None = None) -> tuple[FunctionRef, bytes | None]:
    """(reference, pickle or None) of a function, a class or ``"module:qualname"``.

    The reference's ``digest`` is the same in every process and run while the code stays the same: it covers the byte code, constants,
    defaults, closures, and the globals and functions of the same module that it uses; for importable ones the source of the module too.
    Raises RecipeError when the name leads nowhere or the object cannot be pickled.
    """
    given = dict(arguments or {})
    target = find(function) if isinstance(function, str) else function
    if isinstance(target, functools.partial) and not target.args and not isinstance(target.func, type):
        given = {**target.keywords, **given}
        target = target.func
    shown = _shown_name(target)
    if not callable(target):
        raise RecipeError(f"{shown} is a {type(target).__name__}, which cannot be called", where=shown)
    if given and isinstance(target, type) and not _takes_arguments(target):
        raise RecipeError(f"the class takes no arguments, {', '.join(given)} given", where=shown, mend="Give it an __init__ that does.")
    plain = _as_json(given)
    name = function if isinstance(function, str) else import_name(target)
    if name is not None and plain is not None:
        digest = digest_of(target, sources=True)
        return FunctionRef(kind="import", name=name, digest=digest, arguments=plain), None
    if plain is None:
        payload: Any = _Bound(target, given)
        digest = digest_of((target, given))
    else:
        payload = target
        digest = digest_of(target)
    reference = FunctionRef(kind="pickle", name=shown, digest=digest, key=f"{keys.FUNCTIONS}{digest}.pkl", arguments=plain or {})
    return reference, _pickled(payload, shown)


def _takes_arguments(target: type) -> bool:
    """Whether anything below ``object`` in the class's line defines a constructor."""
    return any("__init__" in vars(base) or "__new__" in vars(base) for base in target.__mro__ if base is not object)


def load(reference: FunctionRef, read_pickle: Callable[[str], bytes] | None = None, safe: bool = False) -> Loaded:
    """The function or class that ``reference`` names. ``read_pickle`` gets the bytes of a key under the run's prefix.

    ``safe``: refuse pickles. Raises RecipeError when it is refused, missing or cannot be loaded here.
    """
    if reference.kind == "import":
        return Loaded(find(reference.name), reference.arguments)
    if safe:
        raise RecipeError(
            "the step's function is a pickle, which can run any code when it is loaded; --safe refuses it",
            where=reference.name,
            mend="Put the function into a module that every worker can import, and name it there.",
        )
    if read_pickle is None or reference.key is None:
        raise RecipeError("the step's function is a pickle, and there is nothing to read it from", where=reference.name)
    body = read_pickle(reference.key)
    import pickle

    try:
        made = pickle.loads(body)  # noqa: S301 - the run's author pickled it; who does not trust them works with --safe
    except ModuleNotFoundError as error:
        raise RecipeError(
            f"the step's function needs the module {error.name!r}, which this machine does not have",
            where=reference.name,
            mend="Install the same packages as on the machine that planned the run.",
        ) from error
    except Exception as error:  # unpickling runs code of any library; it becomes one sentence with its cause kept
        raise RecipeError(
            f"the step's function cannot be unpickled: {type(error).__name__}: {error}",
            where=reference.name,
            mend="Use the same Python and package versions as on the machine that planned the run.",
        ) from error
    if isinstance(made, _Bound):
        return Loaded(made.target, made.arguments)
    return Loaded(made, reference.arguments)


def find(name: str) -> Any:
    """The object that ``module:qualname`` names. Raises RecipeError saying which half is wrong."""
    module_name, colon, path = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise RecipeError(f"{name!r} names no function", mend='Write "module:function"')
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            mend = "Install its package, or run from the folder that holds it (or set PYTHONPATH)."
            raise RecipeError(f"there is no module {error.name!r}", where=name, mend=mend) from error
        raise RecipeError(f"the module needs {error.name!r}, which is not installed", where=name, mend=f"Install {error.name}.") from error
    except Exception as error:  # importing runs code of any module; it becomes one sentence with its cause kept
        raise RecipeError(f"importing the module raised {type(error).__name__}: {error}", where=name) from error
    for part in path.split("."):
        if not hasattr(found, part):
            import difflib

            close = difflib.get_close_matches(part, [known for known in dir(found) if not known.startswith("__")], n=1)
            mend = f"Did you mean {close[0]!r}?" if close else ""
            raise RecipeError(f"there is no {part!r} in {getattr(found, '__name__', module_name)}", where=name, mend=mend)
        found = getattr(found, part)
    if not callable(found):
        raise RecipeError(f"it is a {type(found).__name__}, which cannot be called", where=name)
    return found


def import_name(target: Any) -> str | None:
    """``module:qualname`` when another process can import exactly this object, else None."""
    module_name, path = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(path, str) or module_name == "__main__" or "<" in path:
        return None
    module = sys.modules.get(module_name)
    if module is None or _travels_by_value(module_name):
        return None
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    if found is not target:
        return None
    try:
        importable = getattr(module, "__spec__", None) is not None and importlib.util.find_spec(module_name) is not None
    except (ImportError, ValueError):
        return None
    return f"{module_name}:{path}" if importable else None


def _travels_by_value(module_name: str) -> bool:
    """Whether the module, or a package around it, was registered with cloudpickle for pickling by value."""
    cloudpickle = sys.modules.get("cloudpickle.cloudpickle")
    if cloudpickle is None:
        return False
    registered = cloudpickle.list_registry_pickle_by_value()
    return any(module_name == name or module_name.startswith(name + ".") for name in registered)


def _pickled(payload: Any, shown: str) -> bytes:
    import cloudpickle

    try:
        body: bytes = cloudpickle.dumps(payload)
    except Exception as error:  # pickling calls code of any object; it becomes one sentence with its cause kept
        raise RecipeError(
            f"the function cannot be shipped to other processes: {type(error).__name__}: {error}",
            where=shown,
            mend="It captures something of this process (a connection, a file, a lock). Make it a class and open that in setup().",
        ) from error
    if len(body) > MAX_PICKLE_BYTES:
        raise RecipeError(
            f"the function captures {len(body):,} bytes, which every process of the run would have to load",
            where=shown,
            mend="Put the data into the bucket, and read it in the setup() of a class.",
        )
    return body


def _as_json(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments when JSON gives back exactly what went in, else None."""
    try:
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(arguments))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return plain if _same(plain, arguments) else None


def _same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down (1 is not True, a tuple is no list)."""
    if isinstance(left, dict) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def _shown_name(target: Any) -> str:
    """How messages name the object."""
    named = target if hasattr(target, "__qualname__") else getattr(target, "func", None) or type(target)
    module = getattr(named, "__module__", None) or "?"
    return f"{module}:{getattr(named, '__qualname__', type(target).__qualname__)}"
