"""The ledger verbs against an S3 server: leases in user metadata, pending uploads, times in whole seconds."""

from __future__ import annotations

import json

import pytest

from cloudshard.ledger import keys
from tests.cli.calling import Caller
from tests.observe.builder import BuiltRun

pytestmark = pytest.mark.slow


def test_status_verify_query_retry_and_gc(cloudshard: Caller, s3_url: str) -> None:
    run = BuiltRun(items=(3,), folder=s3_url)
    run.commit(0)
    run.die(1)
    run.claim(2, state="released")
    status = json.loads(cloudshard("status", run.store.url, "--json").out)
    assert status["stages"][0]["items"] == {"pending": 1, "running": 0, "stale": 0, "done": 1, "failed": 1}
    assert cloudshard("retry", run.store.url, "--all-failed").code == 0
    run.commit(1, epoch=3)
    run.commit(2, epoch=2)
    run.seal()
    lost = run.output.begin_upload(keys.part_name(1, 0, run.tag, ".parquet"), part_size=5 << 20)
    assert "losing upload: 1 upload" in cloudshard("gc", run.store.url, "--yes").out
    assert lost.upload_id not in {upload.upload_id for upload in run.output.list_uploads()}
    verified = cloudshard("verify", run.store.url)
    assert (verified.code, verified.err) == (0, ""), verified.out
    sql = "select outcome, count(*) as n from attempts group by outcome order by outcome"
    lines = cloudshard("query", sql, "--run", s3_url, "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"outcome": "committed", "n": 3},
        {"outcome": "failed", "n": 2},
        {"outcome": "released", "n": 1},
    ]


def test_a_wrong_bucket_is_one_sentence(cloudshard: Caller, s3_url: str) -> None:
    said = cloudshard("status", f"{s3_url}-is-not-there/run")
    assert said.code == 2
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1


def test_store_options_reach_the_store(cloudshard: Caller, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from cloudshard.store.options import register_options

    BuiltRun(folder=s3_url)
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    try:
        said = cloudshard("status", f"{s3_url}/run", "--store-option", f"endpoint_url={endpoint}", "--store-option", "region=us-east-1")
    finally:
        register_options("s3://", {})
    assert said.code == 1, said.err
