"""Glob patterns: what they match, and what they ask a LIST for."""

from __future__ import annotations

import pytest

from cloudshard.plan.glob import compile_exclude, compile_glob, has_magic, visible_below


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a/*.jsonl", ["a/x.jsonl"], ["a/b/x.jsonl", "a/x.json", "b/x.jsonl", "a/.x.jsonl", "a/_x.jsonl", "xa/x.jsonl", "a/x.jsonl.gz"]),
        ("a/**/*.py", ["a/x.py", "a/b/x.py", "a/b/c/x.py"], ["a/x.pyc", "x.py", "a/.git/x.py", "a/_b/x.py", "a/b/__init__.py"]),
        ("a/**/_*.py", ["a/__init__.py", "a/b/_x.py"], ["a/x.py", "a/_b/_x.py"]),
        ("a/**", ["a/x", "a/b/x"], ["a/_SUCCESS", "a/b/.crc", "b/x"]),
        ("a/day=?/x", ["a/day=1/x"], ["a/day=10/x", "a/day=/x"]),
        ("a/[ab]x", ["a/ax", "a/bx"], ["a/cx", "a//x"]),
        ("a/[!ab]x", ["a/cx"], ["a/ax", "a//x"]),
        ("a/[]]x", ["a/]x"], ["a/ax"]),
        ("a/*/x", ["a/b/x", "a/_day=1/x"], ["a/x", "a/b/c/x", "a/_b/x"]),
        ("a/x**y", ["a/xy", "a/x1y"], ["a/x/y"]),
        ("a.b/*", ["a.b/c"], ["aXb/c"]),
        ("a/[unclosed", ["a/[unclosed"], ["a/u"]),
        ("a/.*", ["a/.x"], ["a/x"]),
        ("a/*", ["a/line\nbreak"], []),
    ],
)
def test_what_a_pattern_matches(pattern, yes, no):
    compiled = compile_glob(pattern).pattern
    assert [key for key in yes if not compiled.match(key)] == []
    assert [key for key in no if compiled.match(key)] == []


def test_hidden_names_on_request():
    compiled = compile_glob("a/**/*.py", include_hidden=True).pattern
    assert compiled.match("a/_b/__init__.py")
    assert compiled.match("a/.x/y.py")


@pytest.mark.parametrize(
    ("pattern", "literal", "folder", "deep"),
    [
        ("a/part-*.x", "a/part-", "a/", False),
        ("a/*/x", "a/", "a/", True),
        ("a/**", "a/", "a/", True),
        ("*", "", "", False),
        ("a/b", "a/b", "a/", False),
    ],
)
def test_the_literal_part_narrows_the_list(pattern, literal, folder, deep):
    glob = compile_glob(pattern)
    assert (glob.literal, glob.folder, glob.deep) == (literal, folder, deep)


def test_exclusions_match_anywhere_in_the_path_and_all_below():
    assert compile_exclude("site-packages").match("file:///usr/lib/site-packages/x/y.py")
    assert not compile_exclude("site-packages").match("file:///usr/lib/my-site-packages/y.py")
    assert compile_exclude("**/test_*.py").match("file:///a/b/test_x.py")
    assert compile_exclude("tests/**").match("file:///a/tests/b/c.py")
    assert not compile_exclude("*.py").match("file:///a/x.pyc")


def test_all_visible_files_below_a_folder():
    visible = visible_below("a/")
    assert visible.match("a/b/c.x")
    assert not visible.match("a/_tmp/c.x")
    assert not visible.match("ab/c")
    assert visible_below("a/", include_hidden=True).match("a/_tmp/.c")


def test_magic():
    assert has_magic("a*")
    assert not has_magic("a/b.c")
