"""Documentation that lags behind fails here: commands, options, views, columns and the example queries."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from cloudshard.cli.main import VERBS, group
from cloudshard.observe.query import query_ledger
from cloudshard.observe.tables import COLUMNS
from tests.observe.builder import BuiltRun

DOCS = Path(__file__).parents[2] / "docs"
CLI = (DOCS / "cli.md").read_text()
SQL = (DOCS / "ledger-sql.md").read_text()

#: Arrow types of the tables as DuckDB spells them.
DUCKDB_TYPES = {
    "string": "VARCHAR",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "list<string>": "VARCHAR[]",
}


def section(text: str, title: str, level: int = 2) -> str:
    """The text under a heading, up to the next one of the same level."""
    found = re.search(rf"^{'#' * level} {re.escape(title)}$(.*?)(?=^#{{1,{level}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r}"
    return found[1]


def command(verb: str) -> click.Command:
    found = group.get_command(click.Context(group), verb)
    assert found is not None
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_and_option_is_documented_with_an_example(verb: str) -> None:
    text = section(CLI, verb)
    for parameter in command(verb).params:
        if isinstance(parameter, click.Option):
            for name in [*parameter.opts, *parameter.secondary_opts]:
                assert f"`{name}" in text or f" {name}`" in text, f"{verb} {name} is not documented"
        else:
            assert str(parameter.metavar) in text, f"{verb}: {parameter.name} is not documented"
    assert f"$ cloudshard {verb}" in text, f"{verb} has no example"


@pytest.mark.parametrize("verb", VERBS)
def test_no_option_is_documented_that_does_not_exist(verb: str) -> None:
    known = {name for parameter in command(verb).params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    for row in re.findall(r"^\| `([^`]*)`", section(CLI, verb), re.MULTILINE):
        for name in re.findall(r"(?<!\S)--?[a-z][a-z-]*", row):
            assert name in known, f"{verb} has no option {name}"


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_has_a_help_text(verb: str) -> None:
    for parameter in command(verb).params:
        assert not isinstance(parameter, click.Option) or parameter.help, parameter.name


def test_the_options_of_the_group_and_the_exit_codes_are_documented() -> None:
    for name in ("--debug", "--version", "--help"):
        assert name in CLI
    codes = section(CLI, "Exit codes")
    assert all(f"| {code} |" in codes for code in range(4))


@pytest.mark.parametrize("view", COLUMNS)
def test_every_view_and_column_is_documented_with_its_type(view: str) -> None:
    rows = re.findall(r"^\| (\w+) \| ([A-Z\[\]]+) \|", section(SQL, view, level=3), re.MULTILINE)
    assert rows == [(name, DUCKDB_TYPES[kind]) for name, kind in COLUMNS[view].items()]


QUESTIONS = re.findall(r"```sql\n(.*?)```", SQL, re.DOTALL)


@pytest.mark.parametrize("sql", QUESTIONS, ids=range(len(QUESTIONS)))
def test_the_useful_questions_can_be_asked(sql: str) -> None:
    run = BuiltRun(items=(3,))
    run.fail(0)
    run.commit(0, epoch=2)
    run.commit(1, quarantined=1)
    run.commit(2)
    run.seal()
    run.worker()
    run.clock.now += 5
    query_ledger(sql, [run.store.url], open_store=run.open_store)


def test_there_are_questions() -> None:
    assert len(QUESTIONS) >= 8
