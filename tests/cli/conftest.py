"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from tests.cli.calling import Caller


@pytest.fixture
def cloudshard(capfd: pytest.CaptureFixture[str]) -> Caller:
    """Call the command line."""
    return Caller(capfd)
