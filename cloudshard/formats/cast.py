"""From Arrow arrays of one type to another, losing nothing: by the lattice, or to a narrower type where every value fits exactly."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cloudshard.errors import SchemaError
from cloudshard.formats.columns import column_for, shown
from cloudshard.formats.findings import Findings, find_failing
from cloudshard.formats.infer import AS_JSON_TEXT
from cloudshard.formats.widen import Incompatible, is_list, widen


def cast_column(column: pa.ChunkedArray, field: pa.Field, path: str, findings: Findings) -> pa.ChunkedArray | None:
    """``column`` as ``field.type``; None when a value did not fit (then it is in ``findings``).

    Raises SchemaError when the two types do not go together at all.
    """
    made: list[pa.Array] = []
    fits = True
    row = 0
    for chunk in column.chunks:
        array = cast_array(chunk, field, path, findings.within(lambda index, row=row: row + index))  # type: ignore[misc]
        row += len(chunk)
        if array is None:
            fits = False
        else:
            made.extend(array.chunks if isinstance(array, pa.ChunkedArray) else [array])
    return pa.chunked_array(made, type=field.type) if fits else None


def cast_array(array: pa.Array, field: pa.Field, path: str, findings: Findings) -> pa.Array | pa.ChunkedArray | None:
    """As :func:`cast_column`, for one array."""
    if not field.nullable and array.null_count:
        for index, there in enumerate(array.is_valid().to_pylist()):
            if not there:
                findings.misfit(index, path, "null, but the column is declared as never null")
        return None
    if _same(array.type, field.type):
        return array
    as_text = (field.metadata or {}).get(b"cloudshard:as") == AS_JSON_TEXT[b"cloudshard:as"]
    if not as_text:
        try:
            widen(array.type, field.type)
        except Incompatible as error:
            raise SchemaError(
                f"column {path!r} is {array.type}, the schema says {field.type}{f' ({error.why})' if error.why else ''}",
                mend="Convert it in a step, or declare another schema.",
            ) from error
    if as_text or _needs_values(array.type, field.type):
        return column_for(field, path).build(array.to_pylist(), findings.of_arrow())
    if pt.is_struct(field.type):
        return _cast_struct(array, field, path, findings)
    return _cast_plain(array, field.type, path, findings)


def _same(left: pa.DataType, right: pa.DataType) -> bool:
    return bool(left.equals(right)) and not (pt.is_struct(right) and any(not field.nullable for field in right))


def _needs_values(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether objects lie inside lists or maps, where Arrow's cast would drop unknown fields in silence."""
    if pt.is_map(want):
        return _has_struct(want)
    return is_list(want) and is_list(have) and _has_struct(want)


def _has_struct(kind: pa.DataType) -> bool:
    if pt.is_struct(kind):
        return True
    if pt.is_map(kind):
        return _has_struct(kind.key_type) or _has_struct(kind.item_type)
    return is_list(kind) and _has_struct(kind.value_type)


def _cast_struct(array: pa.Array, field: pa.Field, path: str, findings: Findings) -> pa.Array | None:
    if pt.is_null(array.type):
        return pa.nulls(len(array), field.type)
    present = array.is_valid()
    known = {inner.name for inner in field.type}
    fits = True
    for index, inner in enumerate(array.type):
        if inner.name not in known:
            child = array.field(index)
            for row, (value, there) in enumerate(zip(child.to_pylist(), present.to_pylist(), strict=True)):
                if there and value is not None:
                    findings.stranger(row, f"{path}.{inner.name}", value)
    children = []
    for inner in field.type:
        position = array.type.get_field_index(inner.name)
        inner_path = f"{path}.{inner.name}"
        child = pa.nulls(len(array), inner.type) if position < 0 else array.field(position)
        # a missing object excuses its missing fields
        loose = inner.with_nullable(True) if array.null_count else inner
        made = cast_array(child, loose, inner_path, findings)
        if made is None or isinstance(made, pa.ChunkedArray):
            fits = False
        else:
            children.append(made)
    if not fits:
        return None
    if not children:
        return pa.array([{} if there else None for there in present.to_pylist()], field.type)
    mask = pc.invert(present) if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(field.type), mask=mask)


def _cast_plain(array: pa.Array, kind: pa.DataType, path: str, findings: Findings) -> pa.Array | pa.ChunkedArray | None:
    try:
        return array.cast(kind, safe=True)
    except pa.ArrowException:
        pass

    def attempt(some: Sequence[int]) -> str | None:
        try:
            array.slice(some[0], len(some)).cast(kind, safe=True)
        except pa.ArrowException as error:
            return f"{shown(array[some[0]].as_py())} cannot be held exactly by {kind}: {error}"
        return None

    failing = find_failing(len(array), attempt)
    if not failing:
        raise SchemaError(f"column {path!r} cannot be converted from {array.type} to {kind}", mend="Convert it in a step.")
    for index, reason in failing:
        findings.misfit(index, path, reason)
    return None
