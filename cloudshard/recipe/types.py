"""Column types as people write them in a recipe: ``string``, ``list<int64>``, ``struct<a: string, b: double>``, ``timestamp[us, UTC]``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from cloudshard.errors import RecipeError

#: Text and bytes are 64-bit: no column of a batch is ever too long.
_SIMPLE: dict[str, pa.DataType] = {
    "string": pa.large_string(),
    "str": pa.large_string(),
    "text": pa.large_string(),
    "large_string": pa.large_string(),
    "binary": pa.large_binary(),
    "bytes": pa.large_binary(),
    "large_binary": pa.large_binary(),
    "bool": pa.bool_(),
    "boolean": pa.bool_(),
    "float": pa.float64(),
    "double": pa.float64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "int": pa.int64(),
    "date": pa.date32(),
    "date32": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    **{f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_./+-]*|[+-]?\d\d:\d\d|\d+|[<>\[\](),:=])")


def parse_schema(columns: Mapping[str, str], *, where: str = "schema") -> pa.Schema:
    """An Arrow schema from column → type. A type that ends in ``not null`` makes a column that must not be null."""
    return pa.schema([_field(name, text, where) for name, text in columns.items()])


def _field(name: str, text: str, where: str) -> Any:
    body, nullable = (text[: -len("not null")], False) if text.rstrip().lower().endswith("not null") else (text, True)
    return pa.field(name, parse_type(body, where=f"{where}.{name}"), nullable=nullable)


def parse_type(text: str, *, where: str = "type") -> pa.DataType:
    """One type. Raises RecipeError naming ``where`` and the types that there are."""
    parser = _Parser(text, where)
    parsed = parser.type()
    parser.end()
    return parsed


class _Parser:
    """Recursive descent over the tokens of one type."""

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._tokens: list[str] = []
        at = 0
        stripped = text.rstrip()
        while at < len(stripped):
            match = _TOKEN.match(stripped, at)
            if match is None:
                raise self._error(f"at {stripped[at:]!r}")
            self._tokens.append(match.group(1))
            at = match.end()

    def type(self) -> pa.DataType:
        name = self._next().lower()
        if name in ("list", "large_list"):
            self._expect("<")
            inner = self.type()
            self._expect(">")
            return pa.large_list(inner) if name == "large_list" else pa.list_(inner)
        if name == "map":
            self._expect("<")
            key = self.type()
            self._expect(",")
            value = self.type()
            self._expect(">")
            return pa.map_(key, value)
        if name == "struct":
            return self._struct()
        if name in ("timestamp", "duration") and self._peek() == "[":
            return self._unit(name)
        if name.startswith("decimal"):
            return self._decimal()
        if name not in _SIMPLE:
            raise self._error(f"{name!r} is unknown")
        return _SIMPLE[name]

    def end(self) -> None:
        if self._tokens:
            raise self._error(f"something follows: {' '.join(self._tokens)}")

    def _struct(self) -> pa.DataType:
        self._expect("<")
        fields = []
        while True:
            name = self._next()
            self._expect(":")
            fields.append(pa.field(name, self.type()))
            if self._peek() != ",":
                break
            self._next()
        self._expect(">")
        return pa.struct(fields)

    def _unit(self, name: str) -> pa.DataType:
        self._expect("[")
        unit: Any = self._next()
        zone: Any = None
        if unit not in ("s", "ms", "us", "ns"):
            raise self._error(f"the unit {unit!r} is none of s, ms, us, ns")
        if name == "timestamp" and self._peek() == ",":
            self._next()
            zone = self._next()
            if zone == "tz" and self._peek() == "=":  # Arrow's own spelling: timestamp[us, tz=UTC]
                self._next()
                zone = self._next()
        self._expect("]")
        return pa.duration(unit) if name == "duration" else pa.timestamp(unit, tz=zone)

    def _decimal(self) -> pa.DataType:
        self._expect("(")
        precision = self._number()
        self._expect(",")
        scale = self._number()
        self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self._error("a decimal has 1 to 38 digits, and not more of them behind the point")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        token = self._next()
        if not token.isdigit():
            raise self._error(f"{token!r} is no number")
        return int(token)

    def _peek(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _next(self) -> str:
        if not self._tokens:
            raise self._error("it ends too early")
        return self._tokens.pop(0)

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise self._error(f"{token!r} is expected, {found!r} stands there")

    def _error(self, what: str) -> RecipeError:
        mend = (
            "Types: string, binary, bool, int8…int64, uint8…uint64, float32, float64, date, time, timestamp[us, UTC], decimal(p, s), "
            "list<…>, struct<a: …>, map<…, …>"
        )
        return RecipeError(f"the type {self._text!r} cannot be understood: {what}", where=self._where, mend=mend)
