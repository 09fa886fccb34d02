"""The fingerprint: what two runs must have in common for one to continue the other.

It covers the steps and the identity of their code, parameters, the source's options, each input object's URL, size and ETag, the sink and
the sharding. It does not cover what may differ between workers or from day to day: processes, lease settings, credentials, the name.
Sampled schemas are left out too (they follow from input and code); declared ones count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from cloudshard.plan.values import FunctionRef, SinkSpec, SourceSpec, StepSpec

#: Up to so many inputs are kept by name, so that a difference can name them; beyond, a digest tells only that they differ.
NAMED_INPUTS = 1000

#: Moves when the meaning of a field changes.
FINGERPRINT_VERSION = 1


def fingerprint_of(fields: Mapping[str, Any]) -> str:
    """32 hex digits over the canonical JSON of ``fields``."""
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:32]


def fingerprint_fields(
    *,
    source: SourceSpec,
    declared_schema: str | None,
    steps: Sequence[StepSpec | None],
    sink: SinkSpec,
    sink_schema: str | None,
    parameters: Mapping[str, Any],
    sharding: Mapping[str, Any],
    objects: Iterable[tuple[str, int, str]],
) -> dict[str, Any]:
    """The fields, in words that :mod:`cloudshard.plan.difference` can compare. ``steps``: None stands for a checkpoint.

    ``objects``: (URL, size, ETag) of every input object in input order. The values are JSON.
    """
    fields: dict[str, Any] = {
        "version": FINGERPRINT_VERSION,
        "source": {
            "format": source.format,
            "options": source.options,
            "bad_rows": source.bad_rows,
            "schema": schema_words(declared_schema),
        },
        "steps": [_step_fields(step) for step in steps],
        "sink": {
            "format": sink.format,
            "url": sink.url,
            "options": sink.options,
            "schema": schema_words(sink_schema),
            "new_columns": sink.new_columns,
            "target_part_bytes": sink.target_part_bytes,
        },
        "parameters": dict(parameters),
        "sharding": dict(sharding),
        "inputs": input_fields(objects),
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fields))
    return plain


def input_fields(objects: Iterable[tuple[str, int, str]]) -> dict[str, Any]:
    """Count, bytes and digest of the inputs, and up to ``NAMED_INPUTS`` of them as URL → [size, ETag]."""
    digest = hashlib.sha256()
    named: dict[str, list[Any]] = {}
    count = total = 0
    for url, size, etag in objects:
        digest.update(msgspec.json.encode((url, size, etag)))
        count += 1
        total += size
        if count <= NAMED_INPUTS:
            named[url] = [size, etag]
    fields: dict[str, Any] = {"objects": count, "bytes": total, "digest": digest.hexdigest()[:32]}
    if count <= NAMED_INPUTS:
        fields["named"] = named
    return fields


def schema_words(schema: str | None) -> dict[str, str] | None:
    """Column → type in words, of an encoded schema; None when there is none."""
    if schema is None:
        return None
    from cloudshard.formats.schema import decode_schema

    return {field.name: f"{field.type}{'' if field.nullable else ' not null'}" for field in decode_schema(schema)}


def _step_fields(step: StepSpec | None) -> dict[str, Any]:
    if step is None:
        return {"name": "checkpoint", "kind": "checkpoint"}
    return {
        "name": step.name,
        "kind": step.kind,
        "function": None if step.function is None else _function_fields(step.function),
        "params": step.params,
        "on_error": step.on_error,
    }


def _function_fields(function: FunctionRef) -> dict[str, Any]:
    return {"name": function.name, "code": function.digest, "arguments": function.arguments}
