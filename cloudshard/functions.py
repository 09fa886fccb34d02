"""Users' functions: how a pipeline refers to them, what identifies their code, how another machine gets them.

A function in an importable module is referred to by name (``module:qualname``). A lambda, a closure, a function of ``__main__``, of a
notebook or of a script travels with the run as a cloudpickle object. The digest covers the code that a function depends on, as far as
that can be seen: bytecode, constants, defaults, closures, simple globals, and functions and classes of the same module.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from cloudshard.errors import RecipeError
from cloudshard.plan.values import FunctionRef

FUNCTIONS = "plan/functions/"

#: Modules that exist on this machine only, though Python can name them.
_LOCAL_MODULES = ("__main__", "__mp_main__", "builtins.__main__")


def describe(function: Callable[..., Any] | type | str, arguments: Mapping[str, Any] | None = None) -> tuple[FunctionRef, bytes | None]:
    """How to refer to ``function``: (reference, pickle bytes or None). Raises RecipeError when it cannot travel.

    ``arguments``: bound to a function, or given to a class. They must be JSON values for an import reference.
    """
    bound = dict(arguments or {})
    if isinstance(function, str):
        target = import_target(function)
        return FunctionRef(kind="import", name=function, digest=digest_of(target, bound), arguments=bound), None
    if not callable(function):
        raise RecipeError(f"a step needs a function, a class or 'module:function', not {type(function).__name__}")
    name = importable_name(function)
    if name is not None and _is_json(bound):
        return FunctionRef(kind="import", name=name, digest=digest_of(function, bound), arguments=bound), None
    pickled = _pickle(function, bound)
    digest = digest_of(function, bound)
    shown = f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__name__)}"
    return FunctionRef(kind="pickle", name=shown, digest=digest, key=f"{FUNCTIONS}{digest}.pkl"), pickled


def load(ref: FunctionRef, read_pickle: Callable[[str], bytes] | None = None, *, safe: bool = False) -> Callable[..., Any]:
    """The callable that a reference stands for; a class becomes an instance. Raises RecipeError.

    ``read_pickle``: key under the run's prefix → bytes. ``safe``: refuse pickles, which can run any code when they are loaded.
    """
    if ref.kind == "import":
        return _instantiate(import_target(ref.name), ref.arguments, ref.name)
    if safe:
        raise RecipeError(
            f"the run carries the pickled function {ref.name}, and --safe refuses pickles",
            mend="Put the function into an installed module and refer to it as 'module:function'.",
        )
    if read_pickle is None or ref.key is None:
        raise RecipeError(f"the pickled function {ref.name} is not at hand here")
    import cloudpickle

    try:
        function, arguments = cloudpickle.loads(read_pickle(ref.key))
    except (ImportError, AttributeError, TypeError, EOFError, ValueError, IndexError, KeyError) as error:
        raise RecipeError(
            f"the pickled function {ref.name} cannot be loaded: {type(error).__name__}: {error}",
            mend="Install the same packages (and Python version) here as where the run was started.",
        ) from error
    return _instantiate(function, arguments, ref.name)


def _instantiate(target: Any, arguments: Mapping[str, Any], name: str) -> Callable[..., Any]:
    if inspect.isclass(target):
        try:
            made: Callable[..., Any] = target(**arguments)
        except TypeError as error:
            raise RecipeError(f"{name} cannot be made with the arguments {sorted(arguments)}: {error}") from error
        if not callable(made):
            raise RecipeError(f"{name} is a class without __call__", mend="Give it `def __call__(self, row)`.")
        return made
    return functools.partial(target, **arguments) if arguments else target


def import_target(name: str) -> Any:
    """The object that ``module:qualname`` names."""
    module_name, separator, qualname = name.partition(":")
    if not separator or not module_name or not qualname:
        raise RecipeError(f"{name!r} names no function", mend='Write "module:function".')
    try:
        target: Any = importlib.import_module(module_name)
    except ImportError as error:
        missing = f" (it needs {error.name})" if error.name and error.name != module_name else ""
        raise RecipeError(
            f"the module {module_name!r} cannot be imported{missing}: {error}", mend="Is it installed here, or on PYTHONPATH?"
        ) from error
    for part in qualname.split("."):
        try:
            target = getattr(target, part)
        except AttributeError as error:
            raise RecipeError(f"the module {module_name!r} has no {qualname!r}", mend="Check the spelling.") from error
    if not callable(target):
        raise RecipeError(f"{name} is no function or class but {type(target).__name__}")
    return target


def importable_name(function: Any) -> str | None:
    """``module:qualname`` if another process can import exactly this object by it."""
    module_name, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(qualname, str) or "<" in qualname:
        return None
    module = sys.modules.get(module_name)
    if module is None or module_name in _LOCAL_MODULES or getattr(module, "__cloudshard_script__", False):
        return None
    target: Any = module
    for part in qualname.split("."):
        target = getattr(target, part, None)
    if target is not function:
        return None
    return f"{module_name}:{qualname}" if _is_installed(module) else None


def _is_installed(module: ModuleType) -> bool:
    """Whether the module can be found by name (a script that was loaded from a path cannot)."""
    try:
        return importlib.util.find_spec(module.__name__) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _is_json(arguments: Mapping[str, Any]) -> bool:
    import msgspec

    try:
        return bool(msgspec.json.decode(msgspec.json.encode(arguments)) == dict(arguments))
    except (TypeError, ValueError, msgspec.MsgspecError):
        return False


def _pickle(function: Any, arguments: Mapping[str, Any]) -> bytes:
    import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", None) or "")
    by_value = module is not None and module.__name__ not in _LOCAL_MODULES and getattr(module, "__cloudshard_script__", False)
    try:
        if by_value and module is not None:
            cloudpickle.register_pickle_by_value(module)
        pickled: bytes = cloudpickle.dumps((function, dict(arguments)))
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        name = getattr(function, "__qualname__", repr(function))
        raise RecipeError(
            f"the function {name} cannot be sent to workers: {error}",
            mend="It holds something that cannot be pickled (a connection, a lock, an open file): make it in a class's setup().",
        ) from error
    finally:
        if by_value and module is not None:
            cloudpickle.unregister_pickle_by_value(module)
    return pickled


# ---------------------------------------------------------------- identity of code


def digest_of(function: Any, arguments: Mapping[str, Any] | None = None) -> str:
    """32 hex digits that change when the code (or an argument) changes, and are equal in every process for the same code."""
    seen: set[int] = set()
    parts: list[str] = []
    _collect(function, parts, seen, depth=0)
    if arguments:
        parts.append(_stable(dict(arguments), seen))
    return hashlib.blake2b("\n".join(parts).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def _collect(target: Any, parts: list[str], seen: set[int], depth: int) -> None:
    if id(target) in seen or depth > 8:
        return
    seen.add(id(target))
    if isinstance(target, functools.partial):
        parts.append(_stable((target.args, target.keywords), seen))
        _collect(target.func, parts, seen, depth + 1)
        return
    if inspect.isclass(target):
        parts.append(f"class {target.__qualname__}")
        for name, value in sorted(vars(target).items()):
            if name in ("__dict__", "__weakref__", "__doc__", "__module__", "__static_attributes__", "__firstlineno__"):
                continue
            inner = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            parts.append(f"{name}={'' if isinstance(inner, FunctionType) else _stable(inner, seen)}")
            if isinstance(inner, FunctionType):
                _collect(inner, parts, seen, depth + 1)
        return
    function = inspect.unwrap(target) if callable(target) else target
    if inspect.ismethod(function):
        parts.append(_stable(getattr(function.__self__, "__dict__", {}), seen))
        function = function.__func__
    if not isinstance(function, FunctionType):
        parts.append(f"{type(target).__module__}.{type(target).__qualname__} {getattr(target, '__qualname__', '')}")
        if hasattr(target, "__dict__") and not inspect.isbuiltin(target):
            parts.append(_stable(vars(target), seen))
            _collect(type(target), parts, seen, depth + 1)
        return
    parts.append(_code(function.__code__))
    parts.append(_stable((function.__defaults__, function.__kwdefaults__), seen))
    for cell in function.__closure__ or ():
        try:
            _value(cell.cell_contents, function, parts, seen, depth)
        except ValueError:
            parts.append("<empty cell>")
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            parts.append(name)
            _value(function.__globals__[name], function, parts, seen, depth)


def _value(value: Any, user: FunctionType, parts: list[str], seen: set[int], depth: int) -> None:
    """Something that a function uses: code of the same module is followed, code of others is named."""
    if isinstance(value, ModuleType):
        parts.append(f"module {value.__name__}")
    elif isinstance(value, FunctionType) or inspect.isclass(value):
        if value.__module__ == user.__module__:
            _collect(value, parts, seen, depth + 1)
        else:
            parts.append(f"{value.__module__}:{value.__qualname__}")
    else:
        parts.append(_stable(value, seen))


def _global_names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names


def _code(code: CodeType) -> str:
    constants = [_code(constant) if isinstance(constant, CodeType) else _stable(constant, set()) for constant in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames[: code.co_argcount]} {constants}"


def _stable(value: Any, seen: set[int]) -> str:
    """A text that is the same in every process: no addresses, sets in order."""
    if isinstance(value, (str, bytes, int, float, bool, complex, type(None))) or value is Ellipsis:
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[{', '.join(_stable(inner, seen) for inner in value)}]"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}{sorted(_stable(inner, seen) for inner in value)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_stable(key, seen)}: {_stable(inner, seen)}' for key, inner in value.items())}}}"
    if isinstance(value, FunctionType):
        return "function" if id(value) in seen else _code(value.__code__)
    pattern = getattr(value, "pattern", None)
    if isinstance(pattern, (str, bytes)):  # a compiled regular expression
        return f"pattern {pattern!r} {getattr(value, 'flags', '')}"
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
