"""The JSON Schema of recipes, for editors: made from the models, kept in ``configs/pipeline.schema.json``."""

from __future__ import annotations

from typing import Any

from cloudshard.recipe.models import RecipeModel


def json_schema() -> dict[str, Any]:
    """The JSON Schema of recipes (draft 2020-12), as written to ``configs/pipeline.schema.json``.

    Where it wants a number or a boolean, ``${name}`` is allowed too: it describes the file as written, before parameters are put in.
    """
    schema = _with_references(RecipeModel.model_json_schema(by_alias=True))
    step = schema["$defs"].pop("StepModel")
    schema["$defs"]["StepModel"] = {"anyOf": [step, {"const": "checkpoint"}]}
    schema["$defs"]["Reference"] = {"type": "string", "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_:]*\}$", "description": "a parameter"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "cloudshard pipeline"}


def _with_references(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_references(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _with_references(value) for key, value in schema.items()}
    if {"type": "null"} in inner.get("anyOf", ()):  # pydantic's way to say that a key may be absent
        inner["anyOf"] = [part for part in inner["anyOf"] if part != {"type": "null"}]
        inner.pop("default", None)
        if len(inner["anyOf"]) == 1:
            inner = {**inner.pop("anyOf")[0], **inner}
    if inner.get("type") not in ("integer", "number", "boolean"):
        return inner
    outer = {key: inner.pop(key) for key in ("title", "description", "default") if key in inner}
    return {"anyOf": [inner, {"$ref": "#/$defs/Reference"}], **outer}
