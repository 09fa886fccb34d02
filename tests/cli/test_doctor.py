"""doctor on the command line: a table, JSON, and exit code 2 with the mend when a check fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudshard.observe.doctor import Finding
from tests.cli.calling import Caller


def test_a_folder_is_well(cloudshard: Caller, tmp_path: Path) -> None:
    said = cloudshard("doctor", str(tmp_path / "bucket"))
    assert said.code == 0, said
    assert all(line.startswith("ok") for line in said.out.splitlines())


def test_a_failed_check_comes_with_its_mend_and_exit_code_2(cloudshard: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [Finding("create-only", True, "fine", ""), Finding("versioning", False, "it is on", "Switch it off.")]
    monkeypatch.setattr("cloudshard.observe.doctor.examine", lambda *_: findings)
    said = cloudshard("doctor", "s3://x/y")
    assert said.code == 2
    assert said.out.splitlines()[1:] == ["FAIL  versioning   it is on", "                   Switch it off."]
    told = json.loads(cloudshard("doctor", "s3://x/y", "--json").out)
    assert told["ok"] is False
    assert told["findings"][1] == {"check": "versioning", "ok": False, "detail": "it is on", "mend": "Switch it off."}


def test_store_options_are_handed_on(cloudshard: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr("cloudshard.observe.doctor.examine", lambda *arguments: given.extend(arguments) or [])
    cloudshard("doctor", "s3://x/y", "--store-option", "anon=true", "--store-option", "region=eu")
    assert given == ["s3://x/y", {"anon": True, "region": "eu"}]
