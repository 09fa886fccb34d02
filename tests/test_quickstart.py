"""The functions of the quickstart on what a standard library really holds."""

from __future__ import annotations

import pytest

from cloudshard.quickstart import clean, clean_text, module_name


def source(content, path="file:///usr/lib/python3.12/json/decoder.py"):
    return {"path": path, "content": content, "size": len(content)}


def test_a_source_file_becomes_a_document_with_counts():
    found = clean(source(b"\xef\xbb\xbf# one\r\nx = 1  \r\n\r\n\r\n\r\n\r\n\r\n\tdef f(): pass\r\n\r\n"))
    assert found == {
        "module": "json.decoder",
        "text": "# one\nx = 1\n\n\n        def f(): pass",
        "encoding": "utf-8",
        "n_bytes": 47,
        "n_lines": 5,
        "n_words": 6,
        "comment_ratio": 1 / 3,
    }


def test_a_file_says_itself_in_which_encoding_it_is():
    found = clean(source("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1")))
    assert (found["encoding"], found["text"][-3:]) == ("iso-8859-1", "'é'")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"# -*- coding: uft-8 -*-\n", SyntaxError),
        (b"x\n\n\n# \xff\n", UnicodeDecodeError),
        (b"# coding: utf-8\n\n\n\xe9\n", UnicodeDecodeError),
    ],
)
def test_a_file_that_is_broken_raises(content, error):
    with pytest.raises(error):
        clean(source(content))


def test_an_empty_file_is_a_document_of_no_lines():
    found = clean(source(b""))
    assert (found["text"], found["n_lines"], found["comment_ratio"]) == ("", 0, 0.0)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("file:///usr/lib/python3.11/json/__init__.py", "json"),
        ("file:///opt/py/lib/python3.13/abc.py", "abc"),
        ("/Users/x/python3.11/lib/python3.11/a/b.py", "a.b"),
        ("s3://b/corpus/x.py", "x"),
    ],
)
def test_module_names(path, name):
    assert module_name(path) == name


def test_text_is_cleaned_and_the_row_keeps_its_columns():
    row = {"id": 1, "text": "  a\u00a0\u200b b\x00\r\n\r\n\r\n\r\n\r\n  cafe\u0301  "}
    assert clean_text(row) == {"id": 1, "text": "a b\n\n\ncafé"}
    assert clean_text({"text": " \n "}) is None
    assert clean_text({"body": "x "}, column="body") == {"body": "x"}
