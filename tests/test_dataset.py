"""The Python API: lazy, immutable, the same plan locally and in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

import cloudshard as cs


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    folder = tmp_path / "in"
    folder.mkdir()
    for file in range(4):
        rows = [{"n": file * 100 + i, "text": "w " * (i % 7), "score": (i % 10) / 10} for i in range(100)]
        (folder / f"part-{file}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return f"{folder}/"


def words(row: dict[str, Any]) -> dict[str, Any] | None:
    row["words"] = len(row["text"].split())
    return row if row["words"] else None


def test_nothing_runs_before_a_terminal_call(tmp_path: Path) -> None:
    dataset = cs.read_jsonl(f"{tmp_path}/nowhere/*.jsonl").map(lambda row: 1 / 0)
    assert "map" in repr(dataset)
    with pytest.raises(cs.RecipeError, match="nowhere"):
        dataset.take(1)


def test_datasets_are_immutable(corpus: str) -> None:
    base = cs.read_jsonl(corpus)
    filtered = base.filter("n < 5")
    assert base.count() == 400
    assert filtered.count() == 5


def test_take_iter_and_table_agree(corpus: str) -> None:
    dataset = cs.read_jsonl(corpus).map(words).filter("score > 0.5").with_columns(twice="words * 2").drop("text").rename({"n": "id"})
    rows = list(dataset.iter_rows())
    assert dataset.take(5) == rows[:5]
    assert dataset.to_table().to_pylist() == rows
    assert dataset.to_pandas().shape == (len(rows), 4)
    assert set(rows[0]) == {"id", "score", "words", "twice"}
    assert dataset.schema().names == list(rows[0])


def test_take_reads_no_more_than_it_needs(corpus: str) -> None:
    touched: list[int] = []
    dataset = cs.read_jsonl(corpus).map(lambda row: touched.append(row["n"]) or row)
    assert len(dataset.take(3)) == 3
    assert len(touched) <= 100  # the first file alone


def test_limit_is_exact_locally_and_in_a_run(corpus: str, tmp_path: Path) -> None:
    dataset = cs.read_jsonl(corpus).shards(8).filter("n % 3 = 0").limit(50)
    local = [row["n"] for row in dataset.iter_rows()]
    assert local == [n for n in range(400) if n % 3 == 0][:50]
    dataset.write_jsonl(f"{tmp_path}/out").run(f"{tmp_path}/run", processes=2)
    found = [orjson.loads(line)["n"] for path in sorted(Path(f"{tmp_path}/out").glob("part-*")) for line in path.read_bytes().splitlines()]
    assert sorted(found) == local


def test_a_run_writes_what_the_local_plan_shows(corpus: str, tmp_path: Path) -> None:
    dataset = cs.read_jsonl(corpus).map(words).sample(0.5, seed=3).checkpoint().with_columns(twice="words * 2")
    expected = sorted(dataset.iter_rows(), key=lambda row: row["n"])
    result = dataset.write_parquet(f"{tmp_path}/out").run(f"{tmp_path}/run", processes=2)
    assert result.exit_code == 0
    assert result.seal is not None
    assert result.seal.counts.rows_out == len(expected)
    found = [row for path in Path(f"{tmp_path}/out").glob("part-*") for row in pq.read_table(path).to_pylist()]
    assert sorted(found, key=lambda row: row["n"]) == expected
    again = dataset.write_parquet(f"{tmp_path}/out").run(f"{tmp_path}/run", processes=2)
    assert again.was_complete
    with pytest.raises(cs.PlanMismatch, match="differs"):
        dataset.filter("n > 3").write_parquet(f"{tmp_path}/out").run(f"{tmp_path}/run", processes=2)


def test_an_output_folder_that_is_not_empty_is_refused_or_replaced(corpus: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.parquet").write_bytes(b"old")
    dataset = cs.read_jsonl(corpus).map(words)
    with pytest.raises(cs.RecipeError, match="not empty"):
        dataset.write_parquet(str(out)).run(f"{tmp_path}/run-1", processes=1)
    dataset.write_parquet(str(out), mode="overwrite").run(f"{tmp_path}/run-2", processes=1)
    names = {path.name for path in out.iterdir()}
    assert "old.parquet" not in names
    assert cs.read_parquet(str(out)).count() == dataset.count()
    dataset.filter("n < 10").write_parquet(str(out), mode="overwrite").run(f"{tmp_path}/run-3", processes=1)
    assert cs.read_parquet(str(out)).count() == dataset.filter("n < 10").count()


def test_an_empty_result_is_typed_and_legal(corpus: str, tmp_path: Path) -> None:
    import pyarrow as pa

    schema = pa.schema([("n", pa.int64()), ("text", pa.large_string()), ("score", pa.float64())])
    result = cs.read_jsonl(corpus).filter("n < 0").write_parquet(f"{tmp_path}/out", schema=schema).run(f"{tmp_path}/run", processes=1)
    assert result.exit_code == 0
    (part,) = Path(f"{tmp_path}/out").glob("part-*")
    assert pq.read_schema(part).names == ["n", "text", "score"]
    assert pq.read_table(part).num_rows == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: cs.read_jsonl([]), "no input"),
        (lambda: cs.read_jsonl("x", bad_rows="ignore"), "bad_rows"),
        (lambda: cs.read_jsonl("x").sample(1.5), "fraction"),
        (lambda: cs.read_jsonl("x").limit(-1), "negative"),
        (lambda: cs.read_jsonl("x").map(lambda row: row, on_error="null"), "into="),
        (lambda: cs.read_jsonl("x").map(3), "function"),
        (lambda: cs.read_jsonl("x").sql("DROP TABLE batch"), "SELECT"),
        (lambda: cs.read_jsonl("x").sql("SELECT ("), "parsed"),
        (lambda: cs.read_jsonl("x").map_batches(len, as_="spark"), "spark"),
        (lambda: cs.read_jsonl("x").write_parquet("y").map(len), "after the sink"),
        (lambda: cs.read_jsonl("x").write_parquet("y", mode="append"), "mode"),
        (lambda: cs.read_jsonl("x").write_parquet("y", new_columns="ignore"), "new_columns"),
    ],
)
def test_mistakes_are_found_when_they_are_written(make: Any, said: str) -> None:
    with pytest.raises(cs.RecipeError, match=said):
        make()


def test_a_key_that_comes_late_is_a_null_column_for_sql(tmp_path: Path) -> None:
    rows = [{"a": n} for n in range(3000)] + [{"a": 3000, "late": 1}]
    (tmp_path / "in.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    dataset = cs.read_jsonl(f"{tmp_path}/in.jsonl").filter("late IS NULL")
    dataset.write_parquet(f"{tmp_path}/out").run(f"{tmp_path}/run", processes=1)
    assert cs.read_parquet(f"{tmp_path}/out").count() == 3000


def test_invariant_8_a_sample_behind_a_boundary_is_the_same_in_every_run(corpus: str, tmp_path: Path) -> None:
    samples = []
    for run in ("a", "b"):
        dataset = cs.read_jsonl(corpus).shards(6).checkpoint().sample(0.4, seed=5).write_jsonl(f"{tmp_path}/out-{run}")
        dataset.run(f"{tmp_path}/run-{run}", processes=2)
        samples.append(sorted(row["n"] for row in cs.read_jsonl(f"{tmp_path}/out-{run}").iter_rows()))
    assert samples[0] == samples[1]
    assert 100 < len(samples[0]) < 220


def test_a_damaged_run_is_noticed(corpus: str, tmp_path: Path) -> None:
    dataset = cs.read_jsonl(corpus).shards(2).checkpoint().map(words).write_jsonl(f"{tmp_path}/out")
    dataset.run(f"{tmp_path}/run", processes=1, max_shards=2)
    (run, *_) = sorted(Path(f"{tmp_path}/run/stages/00/runs").rglob("*.run"))
    body = bytearray(run.read_bytes())
    body[len(body) // 2] ^= 0xFF
    run.write_bytes(body)
    with pytest.raises(cs.RunFailed, match=r"checksum|damaged|not readable"):
        dataset.run(f"{tmp_path}/run", processes=1)


def written(folder: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for path in sorted(Path(folder).glob("part-*")) for line in path.read_bytes().splitlines()]


def test_a_limit_behind_a_checkpoint_conserves_rows(corpus: str, tmp_path: Path) -> None:
    dataset = cs.read_jsonl(corpus).shards(4).checkpoint().limit(7)
    result = dataset.write_jsonl(f"{tmp_path}/out").run(f"{tmp_path}/run", processes=2)
    assert result.exit_code == 0  # the seal has compared what the stages read with what the ones before wrote
    assert [row["n"] for row in written(f"{tmp_path}/out")] == list(range(7))
    assert [row["n"] for row in dataset.iter_rows()] == list(range(7))


async def slow(row: dict[str, Any]) -> dict[str, Any]:
    import asyncio

    await asyncio.sleep(0.001 * (row["n"] % 5))
    return row


def test_a_limit_behind_async_calls_is_the_first_rows_everywhere(corpus: str, tmp_path: Path) -> None:
    dataset = cs.read_jsonl(corpus).shards(1).map_async(slow, concurrency=16).limit(30)
    assert [row["n"] for row in dataset.iter_rows()] == list(range(30))
    dataset.write_jsonl(f"{tmp_path}/out").run(f"{tmp_path}/run", processes=1)
    assert [row["n"] for row in written(f"{tmp_path}/out")] == list(range(30))


def passages(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"n": row["n"], "k": k} for k in range(row["n"] % 3)]


@pytest.mark.parametrize("boundary", [False, True])
def test_what_is_shown_here_is_what_a_run_writes(corpus: str, tmp_path: Path, boundary: bool) -> None:
    dataset = cs.read_jsonl(corpus).shards(4).flat_map(passages).filter("k >= 0")
    dataset = (dataset.checkpoint() if boundary else dataset).row_number("at").sample(0.5, seed=2).map_batches(same, batch_rows=50)
    dataset.write_jsonl(f"{tmp_path}/out").run(f"{tmp_path}/run", processes=2)
    here = list(dataset.iter_rows())
    assert written(f"{tmp_path}/out") == here
    assert 100 < len(here) < 300


def same(table: Any) -> Any:
    return table


def test_a_table_of_rows_that_do_not_go_together_names_the_row(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"a":1}\n{"a":2}\n{"a":"three"}\n')
    with pytest.raises(cs.SchemaError, match=r"'a'.*in\.jsonl, byte 16"):
        cs.read_jsonl(f"{tmp_path}/in.jsonl").to_table()


def test_pandas_keeps_large_integers_beside_nulls(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"a":1152921504606846977}\n{"a":null}\n')
    assert int(cs.read_jsonl(f"{tmp_path}/in.jsonl").to_pandas()["a"][0]) == 2**60 + 1


def test_rows_that_are_lost_here_are_told_of(corpus: str, caplog: pytest.LogCaptureFixture) -> None:
    dataset = cs.read_jsonl(corpus).map(lambda row: row if row["n"] % 100 else 1 / 0, on_error="quarantine")
    assert dataset.count() == 396
    assert "4 rows were quarantined" in caplog.text


def test_parquet_files_that_differ_are_one_table_here_too(tmp_path: Path) -> None:
    import pyarrow as pa

    pq.write_table(pa.table({"n": pa.array([1, 2], pa.int32())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": pa.array([1.5]), "late": ["x"]}), tmp_path / "b.parquet")
    rows = list(cs.read_parquet(str(tmp_path)).filter("late IS NULL OR n > 1").iter_rows())
    assert rows == [{"n": 1.0, "late": None}, {"n": 2.0, "late": None}, {"n": 1.5, "late": "x"}]


def test_a_declared_schema_also_serves_the_stage_before_a_limit(corpus: str, tmp_path: Path) -> None:
    import pyarrow as pa

    async def answer(row: dict[str, Any]) -> dict[str, Any]:
        return {"n": row["n"], "answer": "x"}

    schema = pa.schema([("n", pa.int64()), ("answer", pa.large_string())])
    dataset = cs.read_jsonl(corpus).shards(4).map_async(answer).limit(30)
    with pytest.raises(cs.RecipeError, match="schema="):
        dataset.write_parquet(f"{tmp_path}/no").run(f"{tmp_path}/no.run", processes=1)
    dataset.write_parquet(f"{tmp_path}/out", schema=schema).run(f"{tmp_path}/run", processes=2)
    assert sorted(row["n"] for row in cs.read_parquet(f"{tmp_path}/out").iter_rows()) == list(range(30))
