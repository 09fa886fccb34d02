"""W1 and W5 with datatrove: ``python datatrove.py w1 DATA OUT`` (run as a file, in an environment that has it)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

from datatrove.executor import LocalPipelineExecutor  # noqa: E402
from datatrove.pipeline.readers import JsonlReader  # noqa: E402
from datatrove.pipeline.writers import ParquetWriter  # noqa: E402


def clean(documents: Iterable[Any], rank: int = 0, world_size: int = 1) -> Iterator[Any]:
    """W1's function."""
    for document in documents:
        if document.metadata["score"] < 0.2:
            continue  # before the text is touched, as in clean_row: the same work for every peer
        words = document.text.split()
        text = " ".join(words)
        if len(text) >= 200:
            document.text = text
            document.metadata["n_words"] = len(words)
            yield document


def same(documents: Iterable[Any], rank: int = 0, world_size: int = 1) -> Iterator[Any]:
    """W5 changes nothing."""
    yield from documents


def flat(self: Any, document: Any) -> dict[str, Any]:
    """One row."""
    rest = {key: value for key, value in document.metadata.items() if key != "file_path"}
    return {"id": document.id, "text": document.text, **rest}


if __name__ == "__main__":
    workload, data, out = sys.argv[1:4]
    writer = ParquetWriter(f"{out}/o", compression="zstd", adapter=flat)
    steps = [JsonlReader(f"{data}/{workload}"), clean if workload == "w1" else same, writer]
    LocalPipelineExecutor(pipeline=steps, tasks=10 if workload == "w1" else 1000, workers=2, logging_dir=f"{out}/.log").run()
