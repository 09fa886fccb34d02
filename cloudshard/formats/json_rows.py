"""From lines of JSON to rows, with everything checked that a parser lets pass in silence.

The fast path parses with msgspec (integers of any size stay exact; a row that is no object is refused) and then proves, for a
whole batch at once, that no key stood twice and no integer is beyond 64 bits:

- A string cannot hold a bare quote, so outside of escapes ``":`` occurs exactly once per key. Counting that pair of bytes over the batch
  (vectorised: 7 GB/s, 25 times as fast as bytes.count) gives an upper bound of the keys in the text; equal to the keys of the parsed
  rows it proves that none was lost. Only a batch where they differ is looked at line by line, and only such a line is parsed again by
  the slow, exact parser.
- Integers are gathered on the way and compared by their extremes.

Whatever the fast path refuses is parsed again by Python's own parser, which either finds the reason in words, or accepts what an option
allows (NaN as null, the last of duplicate keys, large integers as strings or floats).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np

from cloudshard.engine.block import Row
from cloudshard.formats.lines import PIECE_BYTES, Line, LineBatch
from cloudshard.formats.options import OptionReader

MIN_INTEGER = -(2**63)
MAX_INTEGER = 2**64 - 1
#: Objects and arrays inside each other. JSON writers refuse more than about 250, and the parser's own limit depends on the caller's stack.
MAX_DEPTH = 200

_BOM = b"\xef\xbb\xbf"
_KEY_END, _SPACE_COLON = 0x3A22, 0x3A20  # '":' and ' :' as little-endian pairs
_SPACED_KEY_END = re.compile(rb'"[ \t\r\n]+:')
_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


class JsonOptions(NamedTuple):
    """What a JSON reader accepts; see :class:`cloudshard.formats.jsonl.JsonlFormat`."""

    blank_lines: str = "skip"
    nan: str = "error"
    duplicate_keys: str = "error"
    big_integers: str = "error"

    @classmethod
    def take(cls, options: OptionReader) -> JsonOptions:
        """From a reader's options."""
        return cls(
            options.choice("blank_lines", "skip", ("skip", "error")),
            options.choice("nan", "error", ("error", "null")),
            options.choice("duplicate_keys", "error", ("error", "last")),
            options.choice("big_integers", "error", ("error", "string", "float")),
        )


class Refused(Exception):
    """A line is no acceptable row; the reason is the message."""


class JsonParser:
    """Parses batches of lines. ``refuse(position, reason, line)`` is called for each line that is no acceptable row."""

    def __init__(self, options: JsonOptions, counts: MutableMapping[str, int], refuse: Callable[[int, str, Line], None]) -> None:
        self._options = options
        self._counts = counts
        self._refuse = refuse
        self._decode = msgspec.json.Decoder(dict[str, Any]).decode

    def parse(self, batch: LineBatch) -> tuple[list[Row], list[int]]:
        """The rows of a batch and their positions. A byte order mark at position 0 is skipped."""
        lines, positions, buffers = batch
        if positions and positions[0] == 0 and lines[0].startswith(_BOM):
            lines = [lines[0][3:], *lines[1:]]
        try:
            rows = list(map(self._decode, lines))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return self._parse_singly(lines, positions)
        if self._proven(rows, buffers):
            return rows, positions
        return self._check_singly(rows, lines, positions)

    def _proven(self, rows: list[Row], buffers: Sequence[Line | memoryview]) -> bool:
        shape = measure(rows)
        if not shape.acceptable:
            return False
        return self._options.duplicate_keys == "last" or shape.keys == sum(map(key_marks, buffers))

    def _parse_singly(self, lines: Sequence[Line], positions: Sequence[int]) -> tuple[list[Row], list[int]]:
        """Line by line, because at least one of them is refused by the fast parser."""
        rows: list[Row] = []
        kept: list[int] = []
        for line, position in zip(lines, positions, strict=True):
            try:
                row = self._decode(line)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                if not line.strip(b" \t\r\n"):
                    self._blank(line, position)
                    continue
                self._exact(line, position, rows, kept)
            else:
                self._checked(row, line, position, rows, kept)
        return rows, kept

    def _check_singly(self, rows: Sequence[Row], lines: Sequence[Line], positions: Sequence[int]) -> tuple[list[Row], list[int]]:
        good: list[Row] = []
        kept: list[int] = []
        for row, line, position in zip(rows, lines, positions, strict=True):
            self._checked(row, line, position, good, kept)
        return good, kept

    def _checked(self, row: Row, line: Line, position: int, rows: list[Row], kept: list[int]) -> None:
        shape = measure([row])
        if shape.acceptable and (self._options.duplicate_keys == "last" or shape.keys == keys_at_most(line)):
            rows.append(row)
            kept.append(position)
        else:
            self._exact(line, position, rows, kept)

    def _exact(self, line: Line, position: int, rows: list[Row], kept: list[int]) -> None:
        try:
            row = parse_exactly(line, self._options, self._counts)
        except Refused as verdict:
            self._refuse(position, str(verdict), line)
        else:
            rows.append(row)
            kept.append(position)

    def _blank(self, line: Line, position: int) -> None:
        self._counts["blank_lines"] = self._counts.get("blank_lines", 0) + 1
        if self._options.blank_lines == "error":
            self._refuse(position, "a blank line", line)


# ---------------------------------------------------------------- proofs


class Shape(NamedTuple):
    """Keys of all objects inside some rows, and whether depth and integers are within bounds."""

    keys: int
    acceptable: bool


def measure(rows: Sequence[Row]) -> Shape:
    """Walks rows level by level (0.6 µs per W1 row), so that no depth of nesting can exhaust the stack."""
    keys = depth = 0
    integers: list[int] = []
    objects: Sequence[Row] = rows
    arrays: list[list[Any]] = []
    while objects or arrays:
        depth += 1
        keys += sum(map(len, objects))
        values = chain(chain.from_iterable(map(dict.values, objects)), chain.from_iterable(arrays))
        objects, arrays = [], []
        for value in values:
            kind = type(value)
            if kind is str or kind is float:
                continue
            if kind is int:
                integers.append(value)
            elif kind is dict:
                objects.append(value)
            elif kind is list:
                arrays.append(value)
    within = not integers or (max(integers) <= MAX_INTEGER and min(integers) >= MIN_INTEGER)
    return Shape(keys, within and depth <= MAX_DEPTH)


def key_marks(text: Line | memoryview) -> int:
    """At least the number of keys in ``text`` (any number of lines), and exactly that in most text: colons after a quote or a blank."""
    if len(text) < 512:  # where numpy's fixed cost of 5 µs would dominate
        return keys_at_most(bytes(text))
    octets = np.frombuffer(text, dtype=np.uint8)
    found = 0
    for begin in range(0, len(octets), PIECE_BYTES):  # piece by piece: numpy's masks of a huge line would be as large as half of it
        piece = octets[begin : begin + PIECE_BYTES + 1]  # one octet more, for the pair over the edge
        size = len(piece)
        for pairs in (piece[: size & ~1].view(np.uint16), piece[1 : 1 + ((size - 1) & ~1)].view(np.uint16)):
            found += int(np.count_nonzero(pairs == _KEY_END)) + int(np.count_nonzero(pairs == _SPACE_COLON))
    body = text if isinstance(text, (bytes, bytearray)) else bytes(text)
    for blank in (
        b"\t",
        b"\r",
    ):  # rare outside of strings and impossible inside: looking for one byte is ten times faster than counting two
        if blank in body:
            found += body.count(blank + b":")
    return found


def keys_at_most(line: Line) -> int:
    """An upper bound of the keys in a line that is exact unless text looks like a key: escaped quotes before a colon are left out."""
    found = line.count(b'":')
    if b'\\":' in line:
        found -= line.count(b'\\":') - line.count(b'\\\\":')
    if b" :" in line or b"\t:" in line or b"\r:" in line:
        found += len(_SPACED_KEY_END.findall(line))
    return found


# ---------------------------------------------------------------- the slow, exact parser


def parse_exactly(line: Line, options: JsonOptions, counts: MutableMapping[str, int]) -> Row:
    """One row by Python's own parser. Raises Refused with the reason in words."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(_encoding_reason(line, error)) from error
    seen: dict[str, int] = {}
    try:
        row = _decoder(options, seen).decode(text)
    except json.JSONDecodeError as error:
        raise Refused(_syntax_reason(text, error)) from error
    except RecursionError as error:
        raise Refused(f"objects and arrays are nested deeper than {MAX_DEPTH} levels") from error
    if type(row) is not dict:
        raise Refused(f"a row must be an object, this is {_KINDS.get(type(row), 'something else')}")
    if _depth_exceeds(row, MAX_DEPTH):
        raise Refused(f"objects and arrays are nested deeper than {MAX_DEPTH} levels")
    if "\\u" in text:
        _refuse_surrogates(row)
    for name, number in seen.items():
        counts[name] = counts.get(name, 0) + number
    return row


def _decoder(options: JsonOptions, seen: dict[str, int]) -> json.JSONDecoder:
    def note(name: str) -> None:
        seen[name] = seen.get(name, 0) + 1

    def constant(word: str) -> None:
        if options.nan == "error":
            raise Refused(f'{word} is not JSON; the option nan="null" reads it as null')
        note("nan_as_null")

    def integer(digits: str) -> int | float | str:
        if len(digits) <= 20 and MIN_INTEGER <= int(digits) <= MAX_INTEGER:
            return int(digits)
        shown = digits if len(digits) <= 40 else f"{digits[:40]}… ({len(digits)} digits)"
        if options.big_integers == "error":
            raise Refused(f'the integer {shown} needs more than 64 bits; the option big_integers="string" or "float" keeps it as such')
        note("big_integers")
        return digits if options.big_integers == "string" else real(digits)

    def real(digits: str) -> Any:
        value = float(digits)
        if math.isinf(value):
            constant(f"the number {digits[:40]}, beyond the range of a 64-bit float,")
            return None
        return value

    def pairs(items: list[tuple[str, Any]]) -> Row:
        row = dict(items)
        if len(row) < len(items):
            if options.duplicate_keys == "error":
                _refuse_duplicate(items)
            note("duplicate_keys")
        return row

    return json.JSONDecoder(object_pairs_hook=pairs, parse_constant=constant, parse_int=integer, parse_float=real)


def _refuse_duplicate(items: Sequence[tuple[str, Any]]) -> NoReturn:
    names: set[str] = set()
    for name, _ in items:
        if name in names:
            raise Refused(f'the key {name!r} stands twice in one object; the option duplicate_keys="last" takes the last')
        names.add(name)
    raise Refused("a key stands twice in one object")


def _encoding_reason(line: Line, error: UnicodeDecodeError) -> str:
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "not UTF-8: the file begins like UTF-16; convert it first"
    return f"invalid UTF-8: {error.reason} (0x{line[error.start]:02x}) at byte {error.start} of the line"


def _syntax_reason(text: str, error: json.JSONDecodeError) -> str:
    if text.startswith("\ufeff"):
        return "a byte order mark in the middle of the file (were files concatenated?)"
    if "\0" in text[:64]:
        return "NUL bytes: not UTF-8 text; is it UTF-16, or a file with holes?"
    if text[error.pos :].strip() == "":
        return "not valid JSON: the line ends in the middle of a value (is one record spread over several lines?)"
    near = text[error.pos : error.pos + 20].rstrip("\r\n")
    return f"not valid JSON: {error.msg} at character {error.pos} of the line, before {near!r}"


def _depth_exceeds(value: Any, limit: int) -> bool:
    """Whether containers are nested deeper than ``limit`` (iteratively: the value may be deeper than the stack allows)."""
    level: list[Any] = [value]
    for _ in range(limit):
        below: list[Any] = []
        for one in level:
            inner = one.values() if isinstance(one, dict) else one
            below.extend(item for item in inner if isinstance(item, (dict, list)))
        if not below:
            return False
        level = below
    return True


def _refuse_surrogates(row: Mapping[str, Any]) -> None:
    todo: list[Any] = [row]
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            found = _SURROGATE.search(value)
            if found is not None:
                raise Refused(f"a lone surrogate (\\u{ord(found.group()):04x}) in a string: it has no UTF-8 form")
        elif isinstance(value, dict):
            todo.extend(value)
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(value)
