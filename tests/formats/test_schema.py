"""Schemas as values: encoding and unifying."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cloudshard.errors import IntegrityError, SchemaError
from cloudshard.formats.schema import decode_schema, encode_schema, infer, infer_block, unify


def test_encoding_is_exact_and_deterministic() -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.large_string(), nullable=False, metadata={"k": "v"}),
            ("m", pa.struct([("t", pa.timestamp("us", "UTC")), ("l", pa.list_(pa.decimal128(20, 2)))])),
            ("d", pa.dictionary(pa.int8(), pa.string())),
        ]
    )
    assert decode_schema(encode_schema(schema)).equals(schema, check_metadata=True)
    assert encode_schema(schema) == encode_schema(decode_schema(encode_schema(schema)))
    assert encode_schema(schema.with_metadata({"pandas": "{}"})) == encode_schema(schema)
    assert decode_schema(encode_schema(schema.with_metadata({"own": "x"}))).metadata == {b"own": b"x"}


@pytest.mark.parametrize("text", ["", "not base64!", "AAAA", encode_schema(pa.schema([("a", pa.int8())]))[:40]])
def test_what_is_no_schema(text: str) -> None:
    with pytest.raises(IntegrityError, match="not an encoded Arrow schema"):
        decode_schema(text)


def test_columns_in_order_of_first_appearance() -> None:
    assert infer([{"b": 1}, {"c": 1, "a": 1}, {"b": 2, "d": 1}]).names == ["b", "c", "a", "d"]
    assert unify([("1", pa.schema([("b", pa.int8())])), ("2", pa.schema([("a", pa.int8()), ("b", pa.int16())]))]).names == ["b", "a"]


def test_a_column_that_a_file_lacks_is_nullable() -> None:
    schema = unify(
        [("1", pa.schema([pa.field("a", pa.int8(), nullable=False)])), ("2", pa.schema([pa.field("b", pa.int8(), nullable=False)]))]
    )
    assert all(field.nullable for field in schema)


def test_nothing_to_unify() -> None:
    assert unify([]).names == []
    assert infer([]).names == []
    assert infer_block(None, pa.table({"a": [1]})).names == ["a"]


def test_the_conflict_names_the_file_that_really_differs() -> None:
    files = [
        ("s3://b/0", pa.schema([("m", pa.struct([("x", pa.null())]))])),
        ("s3://b/1", pa.schema([("m", pa.struct([("x", pa.int64()), ("y", pa.string())]))])),
        ("s3://b/2", pa.schema([("m", pa.struct([("x", pa.list_(pa.int64()))]))])),
    ]
    with pytest.raises(SchemaError, match=r"column 'm\.x' is int64 in s3://b/1 and list<item: int64> in s3://b/2"):
        unify(files)


def test_double_columns_are_refused() -> None:
    double = pa.schema([("a", pa.int8()), ("a", pa.int8())])
    with pytest.raises(SchemaError, match=r"two columns have the name 'a'.*s3://b/1"):
        unify([("s3://b/1", double)])
