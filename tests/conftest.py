"""Fixtures for all rooms: a fresh bucket of each kind. No test talks to anything but this machine."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import moto_server

#: What a shell of a developer may hold and a test must not see.
_AWS_VARIABLES = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_ENDPOINT_URL_S3",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_CA_BUNDLE",
)


@pytest.fixture
def memory_url() -> str:
    """A fresh, empty bucket in memory (this process only)."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """A fresh folder as a bucket; it does not exist yet."""
    return f"file://{tmp_path}/bucket"


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """The endpoint of an S3 server that answers one request at a time (so conditional writes are atomic)."""
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_env(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Endpoint and dummy credentials in the environment, so that child processes have them too."""
    for name in _AWS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ENDPOINT_URL": moto_endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    return moto_endpoint


@pytest.fixture
def s3_url(s3_env: str) -> str:
    """A fresh, empty S3 bucket."""
    import boto3

    bucket = f"test-{uuid.uuid4().hex[:20]}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return f"s3://{bucket}"
