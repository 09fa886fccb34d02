"""Numbers and tables for people: bytes, durations, counts; rich tables on a terminal, aligned text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from numbers import Number
from typing import Any

import click


def size(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} PiB"


def duration(seconds: float | None) -> str:
    """3725 -> "1 h 02 min"; None -> "unknown"."""
    if seconds is None:
        return "unknown"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 172800:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def count(number: int) -> str:
    """1234567 -> "1,234,567"."""
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """(1, "row") -> "1 row", (2, "row") -> "2 rows"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def print_table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> None:
    """A table on stdout: by rich on a terminal, else aligned columns without any drawing."""
    cells = [["" if value is None else str(value) for value in row] for row in rows]
    numeric = [all(isinstance(value, Number) and not isinstance(value, bool) for value in column) for column in _columns(rows, headers)]
    if sys.stdout.isatty():
        _rich_table(headers, cells, numeric, title)
        return
    if title:
        click.echo(title)
    click.echo("\n".join(align(headers, cells, numeric)))


def align(headers: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> list[str]:
    """Lines of a plain table; columns two spaces apart, numbers to the right."""
    widths = [max(len(header), *(len(row[at]) for row in cells)) if cells else len(header) for at, header in enumerate(headers)]

    def line(row: Sequence[str]) -> str:
        return "  ".join(f"{v:>{w}}" if n else f"{v:<{w}}" for v, w, n in zip(row, widths, numeric, strict=True)).rstrip()

    return [line(headers), *(line(row) for row in cells)]


def _columns(rows: Iterable[Sequence[Any]], headers: Sequence[str]) -> list[list[Any]]:
    values = list(rows)
    return [[row[at] for row in values if row[at] is not None] for at in range(len(headers))]


def _rich_table(headers: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", header_style="bold")
    for header, right in zip(headers, numeric, strict=True):
        table.add_column(header, justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(_plain(value) for value in row))
    Console().print(table)


def _plain(value: str) -> Any:
    from rich.text import Text

    return Text(value)  # never parsed as markup: values come from users' data
