"""W1 and W5 with Daft: ``python daft_peer.py w1 DATA OUT``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import daft
from daft import DataType, col

daft.set_runner_native(num_threads=2)
RESULT = DataType.struct({"text": DataType.string(), "n_words": DataType.int64()})


@daft.func(return_dtype=RESULT)
def collapse(text: str) -> dict[str, Any]:
    """W1's function on the text."""
    words = text.split()
    return {"text": " ".join(words), "n_words": len(words)}


if __name__ == "__main__":
    workload, data, out = sys.argv[1:4]
    if workload == "w1":
        frame = daft.read_json(f"{data}/w1/*.jsonl").where(col("score") >= 0.2).with_column("made", collapse(col("text")))
        frame = frame.with_columns({"text": col("made").get("text"), "n_words": col("made").get("n_words")}).exclude("made")
        frame.where(col("text").length() >= 200).write_parquet(f"{out}/o", compression="zstd")
    else:
        for path in sorted(Path(data, "w5").glob("*.jsonl")):
            daft.read_json(str(path)).write_parquet(f"{out}/o", compression="zstd")
