"""The identity of code: a digest that changes when a function would do something else, and never with the process or the day.

What counts: byte code, constants, names, defaults, closures; of the globals that it names, plain values, and functions and classes of its
own module (recursively); for classes their methods, attributes and bases in the same module. Functions of other modules count by name only:
their packages' versions are recorded elsewhere. What does not count: comments, line numbers, docstrings, annotations, the order of sets.
"""

from __future__ import annotations

import copyreg
import dis
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Iterator
from typing import Any

#: Of a code object, from Python 3.14 on: it has a docstring.
_DOCSTRING_FLAG = 0x4000000
#: Deeper than this the value's type alone counts.
_MAX_DEPTH = 40
#: What a class has beyond what its author wrote.
_NOT_OURS = frozenset(
    {"__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__qualname__", "__firstlineno__", "__static_attributes__"}
    | {"__annotate__", "__annotate_func__", "__annotations_cache__", "__abstractmethods__", "_abc_impl", "__slotnames__"}
)


def digest_of(target: Any, *, sources: bool = False) -> str:
    """32 hex digits for a function, a class or any value. ``sources``: the source of the module that holds it counts too."""
    walker = _Walker(getattr(_unwrapped(target), "__module__", None))
    parts = [walker.value(target, 0)]
    if sources:
        parts.append(_module_source(getattr(target, "__module__", None)))
    return _hash("top", *parts).hex()[:32]


def _unwrapped(target: Any) -> Any:
    if isinstance(target, tuple) and target:
        target = target[0]
    return target.func if isinstance(target, functools.partial) else target


def _hash(kind: str, *parts: bytes) -> bytes:
    made = hashlib.sha256(kind.encode("utf-8"))
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.digest()


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _module_source(name: str | None) -> bytes:
    """Hash of the module's source text; empty when there is none (built-in and compiled modules)."""
    module = sys.modules.get(name or "")
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    get_source = getattr(loader, "get_source", None)
    if get_source is None:
        return b""
    try:
        source = get_source(name)
    except (ImportError, OSError, UnicodeDecodeError, SyntaxError):
        return b""
    return b"" if source is None else hashlib.sha256(_text(source)).digest()


class _Walker:
    """Walks through one object. ``home``: the module whose functions count by their code."""

    def __init__(self, home: str | None) -> None:
        self._home = home
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # an id belongs to an object only as long as it lives

    def value(self, value: Any, depth: int) -> bytes:
        """Digest of any value."""
        plain = _plain(value)
        if plain is not None:
            return plain
        if depth > _MAX_DEPTH:
            return _hash("deep", _text(_type_name(type(value))))
        if id(value) in self._seen:
            return _hash("again", str(self._seen[id(value)]).encode())
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return self._compound(value, depth + 1)

    def _compound(self, value: Any, depth: int) -> bytes:
        if isinstance(value, types.FunctionType):
            return self._function(value, depth)
        if isinstance(value, type):
            return self._class(value, depth)
        if isinstance(value, types.CodeType):
            return self._code(value, depth)
        if isinstance(value, types.ModuleType):
            return _hash("module", _text(value.__name__))
        if isinstance(value, (staticmethod, classmethod)):
            return _hash(type(value).__name__, self.value(value.__func__, depth))
        if isinstance(value, property):
            return _hash("property", *(self.value(one, depth) for one in (value.fget, value.fset, value.fdel)))
        if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
            return _hash("builtin", _text(f"{getattr(value, '__module__', '')}:{value.__qualname__}"))
        if isinstance(value, types.MethodType):
            return _hash("method", self.value(value.__func__, depth), self.value(value.__self__, depth))
        if isinstance(value, functools.partial):
            return _hash("partial", *(self.value(one, depth) for one in (value.func, value.args, value.keywords)))
        if isinstance(value, (list, tuple)):
            return _hash(_type_name(type(value)), *(self.value(one, depth) for one in value))
        if isinstance(value, (set, frozenset)):
            return _hash("set", *sorted(_Walker(self._home).value(one, depth) for one in value))
        if isinstance(value, dict):
            pairs = ((self.value(key, depth), self.value(one, depth)) for key, one in value.items())
            return _hash(_type_name(type(value)), *(part for pair in pairs for part in pair))
        return self._object(value, depth)

    def _function(self, function: types.FunctionType, depth: int) -> bytes:
        if not self._counts_by_code(function):
            return _hash("named", _text(f"{function.__module__}:{function.__qualname__}"))
        parts = [self._code(function.__code__, depth), self.value(function.__defaults__, depth), self.value(function.__kwdefaults__, depth)]
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                parts.append(_hash("cell", _text(name), self.value(cell.cell_contents, depth)))
            except ValueError:  # not yet filled
                parts.append(_hash("cell", _text(name)))
        for name in sorted(set(_names(function.__code__))):
            if name in function.__globals__:
                parts.append(_hash("global", _text(name), self.value(function.__globals__[name], depth)))
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            parts.append(self.value(wrapped, depth))
        return _hash("function", *parts)

    def _counts_by_code(self, function: Any) -> bool:
        return function.__module__ in (self._home, "__main__", None) or "<" in function.__qualname__

    def _class(self, cls: type, depth: int) -> bytes:
        if cls.__module__ not in (self._home, "__main__") and "<" not in cls.__qualname__:
            return _hash("named", _text(_type_name(cls)))
        parts = [self.value(base, depth) for base in cls.__bases__]
        for name, value in sorted(vars(cls).items()):
            if name not in _NOT_OURS and not isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType)):
                parts.append(_hash("attribute", _text(name), self.value(value, depth)))
        return _hash("class", _text(cls.__qualname__), *parts)

    def _code(self, code: types.CodeType, depth: int) -> bytes:
        """By its instructions with what they refer to: an unused constant, such as a docstring, does not count."""
        parts = []
        for instruction in dis.get_instructions(code):
            value = instruction.argval
            told = self.value(value, depth) if instruction.opcode in dis.hasconst else _text("" if instruction.arg is None else f"{value}")
            parts.append(_hash(instruction.opname, told))
        names = (code.co_varnames, code.co_freevars, code.co_cellvars)
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_DOCSTRING_FLAG)
        return _hash("code", *(_text("\0".join(some)) for some in names), str(shape).encode(), code.co_exceptiontable, *parts)

    def _object(self, value: Any, depth: int) -> bytes:
        """By what pickling would take it apart into, which tells the state and not the address."""
        kind = _hash("object", self.value(type(value), depth))
        if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            return _hash("numpy", _text(f"{value.dtype}{value.shape}"), value.tobytes())
        reducer = copyreg.dispatch_table.get(type(value))
        try:
            reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
        except Exception:  # noqa: BLE001 - it belongs to any library; without a way to take it apart its type alone counts
            return kind
        if isinstance(reduced, str):
            return _hash("reduced", kind, _text(reduced))
        parts = []
        for part in reduced:
            items = list(part) if isinstance(part, Iterator) else part
            parts.append(self.value(items, depth))
        return _hash("reduced", kind, *parts)


def _names(code: types.CodeType) -> Iterator[str]:
    """Global names (and names of attributes, which do no harm) that the code and the code inside it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _plain(value: Any) -> bytes | None:
    """Digest of a value that holds no other values, else None."""
    if value is None or value is Ellipsis or value is NotImplemented:
        return _hash("constant", repr(value).encode())
    if isinstance(value, enum.Enum):
        return _hash("enum", _text(f"{_type_name(type(value))}.{value.name}"))
    kind = type(value)
    if kind in (bool, int, float, complex):
        return _hash(kind.__name__, repr(value).encode())
    if kind is str:
        return _hash("str", _text(value))
    if kind in (bytes, bytearray):
        return _hash("bytes", bytes(value))
    if kind is range or kind is slice:
        return _hash(kind.__name__, repr(value).encode())
    return None


def _type_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
