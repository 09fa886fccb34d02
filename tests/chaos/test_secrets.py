"""Credentials given in Python reach the children, and nothing that is written or said."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

import cloudshard as cs
from cloudshard.store.registry import open_store

SECRET = "planted-secret-0123456789"
KEY = "AKIAPLANTEDKEY000000"


@pytest.mark.slow
def test_no_credential_reaches_the_bucket_the_logs_or_an_error(
    s3_url: str, moto_endpoint: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store = open_store(s3_url)
    store.put("in/a.jsonl", b"".join(orjson.dumps({"n": n}) + b"\n" for n in range(50)))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)  # only what is given below can open the bucket
    options: dict[str, Any] = {"key": KEY, "secret": SECRET, "endpoint_url": moto_endpoint}

    def fail_late(row: dict[str, Any]) -> dict[str, Any]:
        print("row", row["n"])
        if row["n"] == 40:
            raise ValueError("no")
        return row

    cs.register_options(s3_url, options)
    try:
        dataset = cs.read_jsonl(f"{s3_url}/in/", storage_options=options).map(fail_late, on_error="quarantine")
        result = dataset.write_parquet(f"{s3_url}/out", storage_options=options).run(f"{s3_url}/run", processes=2)
        assert result.exit_code == 0
        written = open_store(s3_url, options)
        keys = [info.key for page in written.list() for info in page.objects]
        assert any(key.startswith("run/quarantine/") for key in keys)
        for key in keys:
            body = written.get(key)
            assert SECRET.encode() not in body, key
            assert KEY.encode() not in body, key
        with pytest.raises(cs.CloudshardError) as caught:
            open_store("s3://no-such-bucket-here", options).get("x")
        assert SECRET not in str(caught.value)
    finally:
        cs.register_options(s3_url, {})
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err
    assert KEY not in said.out + said.err
