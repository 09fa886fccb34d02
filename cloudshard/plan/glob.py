"""Glob patterns over object keys: the literal part that a LIST can use, and a regular expression for the rest.

``*`` and ``?`` stay within one path segment, ``[abc]``/``[!abc]`` is a set, a segment ``**`` stands for any number of folders (none
included). Hidden names (``.x``, and ``_x`` unless it is a partition folder ``_x=1``) match only a segment that spells their first
character: the convention of Hive, Spark and Arrow, whose ``_SUCCESS`` and ``.crc`` files lie beside the data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MAGIC = re.compile(r"[*?\[]")
#: Not at the beginning of a hidden name.
_VISIBLE = r"(?!\.|_[^/=]*(?:/|$))"


@dataclass(frozen=True, slots=True)
class Glob:
    """``literal``: what every match begins with; ``folder``: its part up to the last ``/``; ``deep``: matches may lie in
    subfolders of ``folder``; ``pattern``: matches whole keys."""

    literal: str
    folder: str
    deep: bool
    pattern: re.Pattern[str]


def has_magic(text: str) -> bool:
    """Whether ``text`` is a pattern and not a plain name."""
    return _MAGIC.search(text) is not None


def compile_glob(key: str, *, include_hidden: bool = False) -> Glob:
    """The pattern ``key`` (relative to its store's root)."""
    magic = _MAGIC.search(key)
    literal = key if magic is None else key[: magic.start()]
    folder = literal[: literal.rfind("/") + 1]
    rest = key[len(folder) :].split("/")
    body = "".join(_segment(segment, last=at == len(rest) - 1, include_hidden=include_hidden) for at, segment in enumerate(rest))
    return Glob(
        literal=literal,
        folder=folder,
        deep=len(rest) > 1 or rest[0] == "**",
        pattern=re.compile(re.escape(folder) + body + r"\Z", re.DOTALL),
    )


def compile_exclude(pattern: str) -> re.Pattern[str]:
    """An exclusion: matches a URL whose path ends with the pattern, beginning at any ``/``; a pattern that ends in ``/`` or names a
    folder excludes all below it."""
    rest = pattern.strip("/").split("/")
    body = "".join(_segment(segment, last=at == len(rest) - 1, include_hidden=True) for at, segment in enumerate(rest))
    return re.compile(rf"(?:^|.*/){body}(?:/.*)?\Z", re.DOTALL)


def visible_below(folder: str, *, include_hidden: bool = False) -> re.Pattern[str]:
    """All keys below ``folder`` (ending in ``/`` or empty) that are not hidden."""
    guard = "" if include_hidden else _VISIBLE
    return re.compile(rf"{re.escape(folder)}(?:{guard}[^/]+/)*{guard}[^/]+\Z", re.DOTALL)


def _segment(segment: str, *, last: bool, include_hidden: bool) -> str:
    """The regular expression of one path segment, with the ``/`` that follows it unless it is the last."""
    guard = "" if include_hidden else _VISIBLE
    if segment == "**":
        return rf"(?:{guard}[^/]+/)*{guard}[^/]+" if last else rf"(?:{guard}[^/]+/)*"
    body = guard if segment[:1] in ("*", "?") else ""
    at = 0
    while at < len(segment):
        character = segment[at]
        if character == "*":
            while segment[at : at + 1] == "*":
                at += 1
            body += "[^/]*"
            continue
        if character == "[":
            end = segment.find("]", at + 2 if segment[at + 1 : at + 2] != "!" else at + 3)
            if end > 0:
                body += _character_set(segment[at + 1 : end])
                at = end + 1
                continue
        body += "[^/]" if character == "?" else re.escape(character)
        at += 1
    return body if last else body + "/"


def _character_set(text: str) -> str:
    """``[...]`` of a glob as that of a regular expression; never matches ``/``."""
    negated = text.startswith("!")
    inside = re.sub(r"([\\\[\]^&~|])", r"\\\1", text[1:] if negated else text)
    return f"(?!/)[{'^' if negated else ''}{inside}]"
