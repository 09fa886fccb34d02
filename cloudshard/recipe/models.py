"""The recipe's shape as pydantic models: what may stand where. Unknown keys are errors; the JSON Schema is made from these.

A source, a step and a sink are each a mapping with exactly one verb: ``{filter: "n > 3"}``. A verb's value is its main argument, or a
mapping of all its arguments: ``{map: "module:function"}`` or ``{map: {function: "module:function", on_error: quarantine}}``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

_UNITS = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")


def parse_size(value: Any) -> Any:
    """Bytes of ``"128 MiB"``, ``"1.5GB"`` or a number."""
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value)
    unit = None if match is None else _UNITS.get(match.group(2).lower())
    if match is None or unit is None:
        raise ValueError(f"{value!r} is no size; write a number of bytes, or for example 128MiB")
    return int(float(match.group(1)) * unit)


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Bytes = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(ge=1),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^\s*[0-9.]+\s*[A-Za-z]*\s*$"}],
            "description": "bytes, or a text such as 128MiB",
        }
    ),
]
Texts = Annotated[
    list[str],
    BeforeValidator(_one_or_many),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
OnErrorName = Literal["raise", "null", "drop", "quarantine"]
BadRowsName = Literal["raise", "drop", "quarantine"]
ReadCompression = Literal["auto", "none", "gzip", "zstd", "bz2", "lz4"]
Columns = dict[str, str]


class Strict(BaseModel):
    """No unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


class Verb(Strict):
    """The arguments of one verb; a value that is no mapping is its ``main`` argument."""

    main: ClassVar[str] = ""
    main_schema: ClassVar[JsonSchemaValue] = {"type": "string"}

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if cls.main and not isinstance(value, dict | BaseModel):
            return {cls.main: value}
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        if not cls.main:
            return schema
        return {"anyOf": [cls.main_schema, schema]}


class OneVerb(Strict):
    """A mapping with exactly one verb."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="before")
    @classmethod
    def _exactly_one(cls, value: Any) -> Any:
        if value == "checkpoint" and "checkpoint" in cls.model_fields:
            return {"checkpoint": True}
        if isinstance(value, dict) and len(value) != 1 and all(key in cls.model_fields for key in value):
            raise ValueError(f"must have exactly one verb, has {', '.join(value) or 'none'}")
        if isinstance(value, dict) and len(value) == 1 and None in value.values():
            raise ValueError(f"{next(iter(value))} needs a value")
        return value

    def verb(self) -> tuple[str, Any]:
        """(name, arguments)."""
        name = next(iter(self.model_fields_set))
        return name, getattr(self, name)


# ---------------------------------------------------------------- source


class Read(Verb):
    """What all readers take."""

    main: ClassVar[str] = "urls"
    main_schema: ClassVar[JsonSchemaValue] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}

    urls: Texts = Field(description="Files, folders or globs (*, ?, [...], **) on any store; a path without scheme is local")
    exclude: Texts | None = Field(default=None, description="Globs of what not to read; a folder's name excludes all in it")
    include_hidden: bool = Field(default=False, description="Read names that begin with . or _ too")
    columns_types: Columns | None = Field(
        None, alias="schema", description="Column name → Arrow type (string, int64, list<string>, timestamp[us, UTC], ...)"
    )
    bad_rows: BadRowsName = Field(default="raise", description="What happens to a row that cannot be read")
    storage_options: dict[str, Any] = Field(default_factory=dict, description="For the store: endpoint_url, region, anon, profile, ...")


class ReadJsonl(Read):
    """JSON lines, plain or compressed."""

    max_row_bytes: Bytes | None = Field(default=None, description="A longer line is a bad row")
    blank_lines: Literal["skip", "error"] | None = None
    nan: Literal["error", "null"] | None = Field(default=None, description="NaN and Infinity: a bad row, or null")
    duplicate_keys: Literal["error", "last"] | None = None
    big_integers: Literal["error", "string", "float"] | None = Field(default=None, description="Integers of more than 64 bits")
    compression: ReadCompression | None = Field(default=None, description="auto: by the suffix")


class ReadParquet(Read):
    """Parquet."""

    columns: Texts | None = Field(default=None, description="Read only these columns")
    filter: list[Any] | None = Field(
        default=None, description="[[column, op, value], ...]: all hold; or a list of such lists: any holds. Row groups are skipped by it"
    )


class ReadCsv(Read):
    """Comma-separated text and its kin."""

    header: bool | None = Field(default=None, description="The first record names the columns")
    column_names: Texts | None = Field(default=None, description="Names of the columns, instead of the header's")
    columns: Texts | None = Field(default=None, description="Read only these columns")
    types: Columns | None = Field(default=None, description="Column name → Arrow type; the others' come from samples")
    delimiter: str | None = None
    quote: str | None = None
    escape: str | None = None
    null_values: Texts | None = Field(default=None, description="What stands for null when it is not quoted")
    encoding: str | None = None
    splittable: bool | None = Field(default=None, description="Your promise that no value contains a line end: files are cut")
    blank_lines: Literal["skip", "error"] | None = None
    max_row_bytes: Bytes | None = Field(default=None, description="A longer record is a bad row")
    compression: ReadCompression | None = Field(default=None, description="auto: by the suffix")


class ReadArrow(Read):
    """Arrow IPC files and streams."""

    columns: Texts | None = Field(default=None, description="Read only these columns")


class ReadFiles(Read):
    """Each file is one row: path, content, size, modified."""

    content: Literal["text", "bytes", "none"] | None = Field(default=None, description="Decoded, as it is, or not read at all")
    encoding: str | None = None
    errors: Literal["strict", "replace", "ignore"] | None = Field(default=None, description="What cannot be decoded: a bad row, or mended")
    max_row_bytes: Bytes | None = Field(default=None, description="A larger file is a bad row")
    modified: bool | None = Field(default=None, description="The column modified, which costs one more request per file")


class SourceModel(OneVerb):
    """Where rows come from."""

    read_jsonl: ReadJsonl | None = None
    read_parquet: ReadParquet | None = None
    read_csv: ReadCsv | None = None
    read_arrow: ReadArrow | None = None
    read_files: ReadFiles | None = None


class ShardsModel(Strict):
    """How the input is cut into work items."""

    num_shards: int | None = Field(default=None, ge=1, description="Exactly so many")
    target_bytes: Bytes | None = Field(default=None, description="About so many bytes each; small files are put together")


# ---------------------------------------------------------------- steps


class Calls(Verb):
    """What all steps that call a function take."""

    main: ClassVar[str] = "function"

    function: str = Field(description="module:function or module:Class")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the function, or of the class")
    on_error: OnErrorName = Field(default="raise", description="What happens to a row for which the function raises")
    label: str | None = Field(default=None, description="The step's name in reports")
    long_call_seconds: float | None = Field(
        default=None, gt=0, strict=False, description="One call may take so long without counting as stuck"
    )


class MapModel(Calls):
    """function(row) → row or None."""

    into: str | None = Field(default=None, description="Put the result in this column instead of replacing the row")


class FlatMapModel(Calls):
    """function(row) → rows."""


class FilterModel(Verb):
    """Keeps rows for which an SQL condition or a function is true."""

    main: ClassVar[str] = "condition"

    condition: str = Field(description="SQL condition, or module:function")
    arguments: dict[str, Any] = Field(default_factory=dict)
    on_error: Literal["raise", "drop", "quarantine"] = "raise"
    label: str | None = None


class MapBatchesModel(Calls):
    """function(batch) → batch."""

    as_: Literal["arrow", "pandas", "polars", "rows"] = Field(default="arrow", alias="as")
    batch_rows: int | None = Field(default=None, ge=1)
    batch_bytes: Bytes | None = None
    span_shards: bool = False


class MapAsyncModel(Calls):
    """await function(row) → row or None, many at once."""

    concurrency: int = Field(default=64, ge=1)
    ordered: bool = False
    into: str | None = None


class SqlModel(Verb):
    """One SELECT over the table ``batch``."""

    main: ClassVar[str] = "query"

    query: str
    on_error: Literal["raise", "drop", "quarantine"] = "raise"
    label: str | None = None


class SampleModel(Verb):
    """A fraction of the rows, chosen by row identity."""

    main: ClassVar[str] = "fraction"
    main_schema: ClassVar[JsonSchemaValue] = {"type": "number", "minimum": 0, "maximum": 1}

    fraction: float = Field(ge=0, le=1, strict=False)
    seed: int = 0


class StepModel(OneVerb):
    """One step."""

    map: MapModel | None = None
    flat_map: FlatMapModel | None = None
    filter: FilterModel | None = None
    map_batches: MapBatchesModel | None = None
    map_async: MapAsyncModel | None = None
    sql: SqlModel | None = None
    select: Texts | None = Field(default=None, description="Only these columns, in this order")
    drop: Texts | None = Field(default=None, description="All but these columns")
    rename: Columns | None = Field(default=None, description="Old name → new name")
    with_columns: Columns | None = Field(default=None, description="Name → SQL expression")
    sample: SampleModel | None = None
    limit: int | None = Field(default=None, ge=0, description="The first rows in input order")
    row_number: str | None = Field(default=None, description="Column for the row's position in its object")
    checkpoint: bool | None = Field(default=None, description="true: write the rows down here; what follows is another stage")


# ---------------------------------------------------------------- sink and the rest


class Write(Verb):
    """What all writers take."""

    main: ClassVar[str] = "url"

    url: str = Field(description="The output's folder")
    mode: Literal["error", "overwrite"] = Field(
        default="error", description="When the folder is not empty: refuse, or replace it at the end"
    )
    columns_types: Columns | None = Field(default=None, alias="schema", description="Column name → Arrow type: the one schema of all parts")
    new_columns: Literal["error", "quarantine", "drop", "collect"] = Field(
        "error", description="What happens to a column that the schema lacks"
    )
    target_part_bytes: Bytes | None = Field(default=None, description="Begin another part when one has so many bytes")
    storage_options: dict[str, Any] = Field(default_factory=dict)


class WriteParquet(Write):
    """Parquet parts."""

    compression: Literal["zstd", "snappy", "gzip", "lz4", "brotli", "none"] | None = None
    compression_level: int | None = None
    row_group_bytes: Bytes | None = Field(default=None, description="Memory of a row group before it is written")
    use_dictionary: Literal["auto"] | bool | list[str] | None = Field(default=None, description="auto, true, false, or columns")
    write_statistics: bool | None = None


class WriteJsonl(Write):
    """JSON lines parts."""

    compression: Literal["none", "gzip", "zstd"] | None = None
    compression_level: int | None = None
    nulls: Literal["write", "omit"] | None = None
    nan: Literal["null", "error"] | None = None
    bytes: Literal["error", "base64"] | None = None


class WriteCsv(Write):
    """CSV parts."""

    header: bool | None = None
    delimiter: str | None = None
    quoting: Literal["needed", "all", "none"] | None = None
    compression: Literal["none", "gzip", "zstd"] | None = None
    compression_level: int | None = None


class WriteArrow(Write):
    """Arrow IPC parts."""

    compression: Literal["none", "lz4", "zstd"] | None = None
    batch_bytes: Bytes | None = Field(default=None, description="Memory of one record batch")


class SinkModel(OneVerb):
    """Where rows go."""

    write_parquet: WriteParquet | None = None
    write_jsonl: WriteJsonl | None = None
    write_csv: WriteCsv | None = None
    write_arrow: WriteArrow | None = None


class SummaryModel(Verb):
    """A small table that is shown when the run is done."""

    main: ClassVar[str] = "sql"

    sql: str = Field(description="One SELECT over the table output: all parts of the output")
    title: str = "Summary"


class SettingsModel(Strict):
    """How the run behaves; see the settings of a run in the documentation."""

    lease_seconds: float | None = Field(default=None, gt=0, strict=False)
    lease_margin_seconds: float | None = Field(default=None, ge=0, strict=False)
    max_retries: int | None = Field(default=None, ge=0)
    max_takeovers: int | None = Field(default=None, ge=1)
    error_budget_rows: int | None = Field(default=None, ge=0, description="More suppressed rows than this fail the run")
    error_budget_fraction: float | None = Field(default=None, ge=0, le=1, strict=False)
    processes: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(default="auto", description="Child processes per worker")


class RecipeModel(Strict):
    """A cloudshard pipeline."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="The file's name when absent")
    description: str = ""
    run: str | None = Field(default=None, description="URL of the run's ledger; next to the output when absent")
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="Name → default, or {type, default, choices, help}; used as ${name}"
    )
    source: SourceModel
    shards: ShardsModel = ShardsModel()
    steps: list[StepModel] = Field(default_factory=list)
    sink: SinkModel
    summary: SummaryModel | None = None
    settings: SettingsModel = SettingsModel()
