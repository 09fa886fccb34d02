"""cloudshard: batch processing of machine-learning data on cloud object storage. The bucket is the cluster.

>>> import cloudshard as cs
>>> cs.read_jsonl("s3://corpus/raw/").map(clean).write_parquet("s3://corpus/clean/").run("s3://corpus/runs/1")

What is listed in ``__all__`` is public; everything else may change without notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "CloudshardError",
    "Dataset",
    "ErrorBudgetExceeded",
    "InputChanged",
    "InputError",
    "IntegrityError",
    "PlanMismatch",
    "Preempted",
    "RecipeError",
    "RowError",
    "RunFailed",
    "RunResult",
    "RunSettings",
    "SchemaError",
    "StepError",
    "StoreError",
    "__version__",
    "load_recipe",
    "read_arrow",
    "read_csv",
    "read_files",
    "read_jsonl",
    "read_parquet",
    "register_options",
    "run_pipeline",
    "work",
]

#: Where each public name lives; the module is imported when the name is first used.
_HOMES = {
    "CloudshardError": "cloudshard.errors",
    "Dataset": "cloudshard.dataset",
    "ErrorBudgetExceeded": "cloudshard.errors",
    "InputChanged": "cloudshard.errors",
    "InputError": "cloudshard.errors",
    "IntegrityError": "cloudshard.errors",
    "PlanMismatch": "cloudshard.errors",
    "Preempted": "cloudshard.errors",
    "RecipeError": "cloudshard.errors",
    "RowError": "cloudshard.errors",
    "RunFailed": "cloudshard.errors",
    "RunResult": "cloudshard.worker.run",
    "RunSettings": "cloudshard.ledger.records",
    "SchemaError": "cloudshard.errors",
    "StepError": "cloudshard.errors",
    "StoreError": "cloudshard.errors",
    "load_recipe": "cloudshard.recipe",
    "read_arrow": "cloudshard.readers",
    "read_csv": "cloudshard.readers",
    "read_files": "cloudshard.readers",
    "read_jsonl": "cloudshard.readers",
    "read_parquet": "cloudshard.readers",
    "register_options": "cloudshard.store.options",
    "run_pipeline": "cloudshard.worker.run",
    "work": "cloudshard.worker.run",
}

if TYPE_CHECKING:
    from cloudshard.dataset import Dataset
    from cloudshard.errors import (
        CloudshardError,
        ErrorBudgetExceeded,
        InputChanged,
        InputError,
        IntegrityError,
        PlanMismatch,
        Preempted,
        RecipeError,
        RowError,
        RunFailed,
        SchemaError,
        StepError,
        StoreError,
    )
    from cloudshard.ledger.records import RunSettings
    from cloudshard.readers import read_arrow, read_csv, read_files, read_jsonl, read_parquet
    from cloudshard.recipe import load_recipe
    from cloudshard.store.options import register_options
    from cloudshard.worker.run import RunResult, run_pipeline, work


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used: `import cloudshard` itself loads nothing heavy."""
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cloudshard' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
