"""Calling the command line as a user does: in this process for speed, as a process where that matters."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import pytest

from cloudshard.cli.main import main


class Said(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str


class Caller:
    """Runs `cloudshard …` in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *arguments: str) -> Said:
        self._capfd.readouterr()
        code = main(arguments)
        out, err = self._capfd.readouterr()
        return Said(code, out, err)


def process(*arguments: str, timeout: float = 60, **options: object) -> Said:
    """Runs `cloudshard …` as a process of its own."""
    done = subprocess.run(  # type: ignore[call-overload]
        [sys.executable, "-m", "cloudshard.cli", *arguments], capture_output=True, text=True, timeout=timeout, check=False, **options
    )
    return Said(done.returncode, done.stdout, done.stderr)
