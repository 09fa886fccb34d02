"""Schemas as values: one for all parts of an output, decided once from a declaration or from samples.

The lattice is in :mod:`cloudshard.formats.widen`; what turns rows and tables into exactly one schema in :mod:`cloudshard.formats.conform`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from cloudshard.errors import IntegrityError, SchemaError
from cloudshard.formats.conform import Conformer, NewColumns
from cloudshard.formats.infer import AS_JSON_TEXT, infer_fields
from cloudshard.formats.widen import Incompatible, merge_fields, widen

__all__ = ["Conformer", "NewColumns", "decode_schema", "encode_schema", "infer", "infer_block", "unify", "widen"]


def encode_schema(schema: pa.Schema) -> str:
    """The schema as base64 of its Arrow IPC message; equal schemas give equal text. Metadata that pandas leaves is dropped."""
    metadata = {name: value for name, value in (schema.metadata or {}).items() if name != b"pandas"}
    return base64.b64encode(schema.with_metadata(metadata or None).serialize().to_pybytes()).decode("ascii")


def decode_schema(text: str) -> pa.Schema:
    """The schema of :func:`encode_schema`. Raises IntegrityError for anything else."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise IntegrityError(f"not an encoded Arrow schema: {error}", mend="Was the plan written by something else?") from error


def infer(rows: Sequence[Mapping[str, Any]], *, widen_to_string: bool = False) -> pa.Schema:
    """The schema of rows: all keys, in the order of first appearance. Raises SchemaError naming the column and the two types.

    ``widen_to_string``: a column of types that do not go together becomes large_string; values that are not text are kept as JSON text.
    """
    return pa.schema(infer_fields(rows, widen_to_string=widen_to_string))


def infer_block(rows: Sequence[Mapping[str, Any]] | None, table: pa.Table | None, *, widen_to_string: bool = False) -> pa.Schema:
    """The schema of a block's rows or table."""
    return infer(rows or (), widen_to_string=widen_to_string) if table is None else table.schema


def unify(samples: Iterable[tuple[str, pa.Schema]], *, widen_to_string: bool = False) -> pa.Schema:
    """One schema for all ``(name of the file, its schema)``, columns in the order of first appearance.

    A column that a file lacks is nullable. Raises SchemaError naming the column, both types and the two files.
    """
    fields: list[pa.Field] = []
    seen: dict[str, list[tuple[str, pa.DataType]]] = {}
    first = True
    for name, schema in samples:
        _refuse_doubles(name, schema)

        def widen_types(left: pa.DataType, right: pa.DataType, column: str, name: str = name) -> pa.DataType:
            try:
                return widen(left, right)
            except Incompatible as error:
                if widen_to_string:
                    return pa.large_string()
                raise _conflict(column, error, seen.get(column, []), name, right) from error

        merged = list(schema) if first else merge_fields(fields, list(schema), "", widen_types)
        first = False
        kinds = {field.name: field.type for field in fields}
        fields = [_marked(field, kinds.get(field.name), schema) if widen_to_string else field for field in merged]
        for field in schema:
            known = seen.setdefault(field.name, [])
            if not any(kind.equals(field.type) for _, kind in known):
                known.append((name, field.type))
    return pa.schema(fields)


def _marked(field: pa.Field, before: pa.DataType | None, schema: pa.Schema) -> pa.Field:
    """The merged field, with the mark of a column that became text only because its types do not go together."""
    index = schema.get_field_index(field.name)
    if before is None or index < 0 or not pa.types.is_large_string(field.type):
        return field
    try:
        widen(before, schema.field(index).type)
    except Incompatible:
        return field.with_metadata({**(field.metadata or {}), **AS_JSON_TEXT})
    return field


def _refuse_doubles(name: str, schema: pa.Schema) -> None:
    if len(set(schema.names)) < len(schema.names):
        double = next(one for one in schema.names if schema.names.count(one) > 1)
        raise SchemaError(f"two columns have the name {double!r}", where=name, mend="Rename one, or select the columns to read.")


def _conflict(column: str, error: Incompatible, seen: Sequence[tuple[str, pa.DataType]], name: str, kind: pa.DataType) -> SchemaError:
    """Names the earliest file whose type does not go with the new one's."""
    other, left, right, path = "", error.left, error.right, error.path
    for earlier, earlier_kind in seen:
        try:
            widen(earlier_kind, kind)
        except Incompatible as exact:
            other, left, right, path = earlier, exact.left, exact.right, exact.path
            break
    why = f" ({error.why})" if error.why else ""
    full = column if not path else f"{column}{path}" if path.startswith(("[", "{")) else f"{column}.{path}"
    return SchemaError(
        f"column {full!r} is {left} in {other or 'the files before'} and {right} in {name}{why}",
        mend="Declare the schema, convert the column in a step, or set widen_to_string to keep both as text.",
    )
