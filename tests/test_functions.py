"""Functions as data: what travels by name and what by value, when code counts as changed, and what is said when it cannot be shipped."""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudshard.errors import RecipeError
from cloudshard.functions import describe, find, load
from cloudshard.functions_digest import digest_of

LIMIT = 3


def clean(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "limit": LIMIT}


class Scaler:
    """A class step."""

    def __init__(self, by: int = 1) -> None:
        self.by = by

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "n": row["n"] * self.by}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Writes the source of a module that other processes can import, imports it afresh, and returns it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(source: str) -> Any:
        sys.modules.pop("users_steps", None)
        (tmp_path / "users_steps.py").write_text(textwrap.dedent(source))
        for cache in tmp_path.glob("__pycache__/*"):
            cache.unlink()
        importlib.invalidate_caches()
        return importlib.import_module("users_steps")

    yield make
    sys.modules.pop("users_steps", None)


# ---------------------------------------------------------------- by name, by value


def test_a_function_of_a_module_travels_by_name() -> None:
    reference, pickled = describe(clean, {})
    assert (reference.kind, reference.name, pickled) == ("import", "tests.test_functions:clean", None)
    assert load(reference, safe=True).make()({"n": 1}) == {"n": 1, "limit": 3}


def test_a_name_is_as_good_as_the_function() -> None:
    assert describe("tests.test_functions:clean", {}) == describe(clean, {})


def closure(step: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {**row, "n": row["n"] + step}


def bound_method(step: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return Scaler(step).__call__


@pytest.mark.parametrize("make", [closure, bound_method, Scaler], ids=["closure", "bound method", "object"])
def test_what_no_other_process_can_import_travels_by_value(make: Any) -> None:
    reference, pickled = describe(make(5), {})
    assert reference.kind == "pickle"
    assert reference.key == f"plan/functions/{reference.digest}.pkl"
    assert pickled is not None
    body = pickled
    assert load(reference, lambda key: body).make()({"n": 1})["n"] in (5, 6)


def test_functions_of_a_pipeline_file_travel_by_value(tmp_path: Path) -> None:
    from cloudshard.recipe.target import load_file

    (tmp_path / "job.py").write_text(
        "WORD = 'x'\ndef helper(row):\n    return {**row, 'word': WORD}\ndef step(row):\n    return helper(row)\n"
    )
    reference, pickled = describe(load_file(str(tmp_path / "job.py")).step, {})
    assert reference.kind == "pickle"
    program = f"import pickle\nprint(pickle.loads({pickled!r})({{}}))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "{'word': 'x'}"


def test_a_class_is_made_with_its_arguments() -> None:
    reference, pickled = describe(Scaler, {"by": 4})
    assert (reference.kind, reference.arguments, pickled) == ("import", {"by": 4}, None)
    loaded = load(reference)
    assert loaded.is_class
    assert loaded.make()({"n": 2}) == {"n": 8}


def test_a_partial_of_keywords_is_its_function_with_arguments() -> None:
    reference, _ = describe(functools.partial(clean, extra=1), {})
    assert (reference.kind, reference.name, reference.arguments) == ("import", "tests.test_functions:clean", {"extra": 1})


@pytest.mark.parametrize("value", [(1, 2), {1: "a"}, re.compile("x"), float("nan"), b"x"], ids=str)
def test_arguments_that_json_would_change_travel_in_the_pickle(value: Any) -> None:
    reference, pickled = describe(clean, {"by": value})
    assert (reference.kind, reference.arguments) == ("pickle", {})
    assert pickled is not None
    body = pickled
    found = load(reference, lambda key: body).arguments["by"]
    assert type(found) is type(value)
    assert found == value or value != value


# ---------------------------------------------------------------- when code counts as changed

BASE = """
    LIMIT = 3
    WORDS = {"alpha", "beta", "gamma", "delta"}
    def helper(row): return row["n"] + LIMIT
    def step(row, by=2):
        if row["word"] in {"one", "two", "three"}: return None
        return {**row, "n": helper(row) * by, "known": row["word"] in WORDS}
"""


def changed(source: str, old: str, new: str) -> str:
    assert old in source
    return source.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("* by", "+ by"),
        ("by=2", "by=3"),
        ("LIMIT = 3", "LIMIT = 4"),
        ('row["n"] + LIMIT', 'row["n"] - LIMIT'),
        ('"delta"', '"epsilon"'),
        ('"three"', '"four"'),
        ('"known"', '"seen"'),
    ],
)
def test_another_behaviour_is_another_digest(module: Any, old: str, new: str) -> None:
    # without the module's source: what travels by value is known by its code alone
    before = digest_of(module(BASE).step)
    assert digest_of(module(changed(BASE, old, new)).step) != before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "\n\n    # a comment\n    LIMIT = 3"),
        ("def step(row, by=2):", 'def step(row: dict, by: int = 2) -> dict:\n        """What it does."""'),
        ("def helper", "def unused(): return 1\n    def helper"),
    ],
    ids=["comments and lines", "docstring and annotations", "another function"],
)
def test_the_same_behaviour_is_the_same_digest(module: Any, old: str, new: str) -> None:
    before = digest_of(module(BASE).step)
    assert digest_of(module(changed(BASE, old, new)).step) == before


def test_an_importable_function_changes_with_its_modules_source(module: Any) -> None:
    before = describe(module(BASE).step)[0].digest
    assert describe(module(BASE).step)[0].digest == before
    assert describe(module(BASE + "\n    OTHER = 1\n").step)[0].digest != before


def test_closures_count_by_what_they_hold() -> None:
    assert digest_of(closure(1)) == digest_of(closure(1))
    assert digest_of(closure(1)) != digest_of(closure(2))


def test_classes_count_by_their_methods_and_bases() -> None:
    def make(factor: int, base_factor: int) -> type:
        class Base:
            def scale(self, n: int) -> int:
                return n * base_factor

        class Step(Base):
            def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
                return {"n": self.scale(row["n"]) * factor}

        return Step

    assert digest_of(make(1, 1)) == digest_of(make(1, 1))
    assert len({digest_of(make(1, 1)), digest_of(make(2, 1)), digest_of(make(1, 2))}) == 3


def test_values_of_all_kinds_count() -> None:
    values = [1, 1.0, True, "1", b"1", (1,), [1], {1}, {"a": 1}, {"a": 2}, None, re.compile("a"), re.compile("b"), Path("a"), Path("b")]
    values += [np.array([1, 2]), np.array([2, 1]), Scaler(1), Scaler(2), range(1), range(2), 1 + 2j]
    digests = [digest_of(value) for value in values]
    assert len(set(digests)) == len(values)
    assert [digest_of(value) for value in values] == digests


def test_functions_that_call_each_other_have_a_digest(module: Any) -> None:
    found = module("def a(row): return b(row)\ndef b(row): return a(row)\n")
    assert digest_of(found.a) == digest_of(found.a)


PROGRAM = """
import re
WORDS = frozenset({"alpha", "beta", "gamma", "delta"})
TABLE = {"x": [1, 2], "y": {"p", "q", "r"}}
PATTERN = re.compile("a+")
class Thing:
    def __init__(self): self.names = {"n", "m", "o"}
THING = Thing()
def make(k):
    def step(row, also=("u", "v")):
        return row["w"] in WORDS and row["w"] in {"one", "two", "three"} and TABLE and PATTERN.match(row["w"]) and THING and k
    return step
from cloudshard.functions import describe
print(describe(make({"s", "t"}))[0].digest)
"""


def test_the_digest_is_the_same_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."}
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 32


# ---------------------------------------------------------------- what is said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:f", "no module 'no_such_module'.*PYTHONPATH"),
        ("cloudshard.no_such:f", "no module"),
        ("cloudshard.quickstart:claen", "there is no 'claen'.*Did you mean 'clean'"),
        ("cloudshard.quickstart:_WORD", "cannot be called"),
        ("just text", "names no function"),
    ],
)
def test_a_name_that_leads_nowhere(name: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        find(name)


def test_a_module_that_raises_when_it_is_imported(module: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        module("1 / 0\n")
    with pytest.raises(RecipeError, match="importing the module raised ZeroDivisionError") as caught:
        find("users_steps:f")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_module_that_needs_what_is_not_installed(module: Any) -> None:
    with pytest.raises(ModuleNotFoundError):
        module("import not_installed_here\n")
    with pytest.raises(RecipeError, match="the module needs 'not_installed_here'"):
        find("users_steps:f")


def test_what_cannot_be_pickled_says_what_to_do() -> None:
    lock = threading.Lock()
    with pytest.raises(RecipeError, match=r"cannot be shipped.*lock.*setup\(\)"):
        describe(lambda row: lock)


def test_what_captures_too_much_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudshard.functions.MAX_PICKLE_BYTES", 1000)
    data = "x" * 2000
    with pytest.raises(RecipeError, match="captures 2,"):
        describe(lambda row: data)


def test_arguments_for_a_class_without_any() -> None:
    class Bare:
        def __call__(self, row: Any) -> Any:
            return row

    with pytest.raises(RecipeError, match="takes no arguments, by given"):
        describe(Bare, {"by": 1})


def test_safe_refuses_pickles() -> None:
    reference, pickled = describe(closure(1))
    assert pickled is not None
    with pytest.raises(RecipeError, match="--safe refuses"):
        load(reference, lambda key: pickled, safe=True)


def test_a_pickle_that_needs_what_is_not_here(module: Any) -> None:
    found = module("class Thing:\n    def __call__(self, row): return row\n")
    reference, pickled = describe(found.Thing())
    assert pickled is not None
    body = pickled
    sys.modules.pop("users_steps")
    sys.path.pop(0)
    try:
        with pytest.raises(RecipeError, match="needs the module 'users_steps'"):
            load(reference, lambda key: body)
    finally:
        sys.path.insert(0, "")
    with pytest.raises(RecipeError, match="cannot be unpickled"):
        load(reference, lambda key: b"not a pickle")


def test_every_name_and_every_argument_counts() -> None:
    functions = [lambda row: row.real, lambda row: row.imag, lambda a, b: a, lambda a, b: b, lambda a, b: a < b, lambda a, b: a > b]
    functions += [lambda a: a[0], lambda a: a[1], lambda a: a + 1, lambda a: a - 1, lambda a, *, k=1: a, lambda a, *, k=2: a]
    assert len({digest_of(function) for function in functions}) == len(functions)
