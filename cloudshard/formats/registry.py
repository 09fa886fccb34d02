"""Formats by name and by suffix. Outside packages add theirs through the entry point group ``cloudshard.formats``.

An entry point names a class or function without arguments that makes the format; its name is the format's name.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from cloudshard.errors import RecipeError
from cloudshard.formats.compress import CODECS
from cloudshard.formats.port import Format

GROUP = "cloudshard.formats"

#: name → (module, class, suffixes). The suffixes stand here too, so that looking one up imports no reader.
_BUILT_IN: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "jsonl": ("cloudshard.formats.jsonl", "JsonlFormat", (".jsonl", ".ndjson", ".jsonlines", ".json")),
    "parquet": ("cloudshard.formats.parquet", "ParquetFormat", (".parquet", ".pq", ".parq")),
    "csv": ("cloudshard.formats.csv", "CsvFormat", (".csv", ".tsv")),
    "arrow": ("cloudshard.formats.arrow", "ArrowFormat", (".arrow", ".feather", ".ipc", ".arrows")),
    "files": ("cloudshard.formats.files", "FilesFormat", (".txt", ".md", ".html", ".xml", ".py")),
    "runs": ("cloudshard.formats.runs", "RunsFormat", (".run",)),
}


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {found.name: found for found in entry_points(group=GROUP)}


@cache
def get_format(name: str) -> Format:
    """The format called ``name``. Raises RecipeError listing the known ones."""
    built_in = _BUILT_IN.get(name)
    if built_in is not None:
        made: Format = getattr(importlib.import_module(built_in[0]), built_in[1])()
        return made
    found = _entry_points().get(name)
    if found is None:
        raise RecipeError(
            f"unknown format {name!r}",
            mend=f"Known: {', '.join(format_names())}. A package may add one by an entry point in the group {GROUP!r}.",
        )
    outside: Format = found.load()()
    return outside


def format_names() -> list[str]:
    """Names that users may give; "runs" is our own stages' matter."""
    return sorted((set(_BUILT_IN) - {"runs"}) | set(_entry_points()))


def format_name_for(url: str) -> str:
    """The name of the format that the suffix of ``url`` tells (``.jsonl.gz`` is jsonl). Raises RecipeError listing the suffixes."""
    path = url.partition("?")[0].lower()
    for compressed in CODECS:
        path = path.removesuffix(compressed)
    for name, (_, _, suffixes) in _BUILT_IN.items():
        if path.endswith(suffixes):
            return name
    for name in _entry_points():
        if path.endswith(get_format(name).suffixes):
            return name
    known = ", ".join(suffix for name, (_, _, suffixes) in _BUILT_IN.items() if name != "runs" for suffix in suffixes)
    raise RecipeError(
        "the format cannot be told from the name",
        where=url,
        mend=f"Give the format ({', '.join(format_names())}). Known suffixes: {known}; JSON lines and CSV also with {', '.join(CODECS)}.",
    )


def format_for(url: str) -> Format:
    """The format that the suffix of ``url`` tells; see :func:`format_name_for`."""
    return get_format(format_name_for(url))
