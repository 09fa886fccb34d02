"""The simulation bites: with any one safety line of the protocol removed, some seed violates an invariant."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 3000


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_simulation_notices_when_a_safety_line_is_removed(mutation: Mutation, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "cloudshard", tmp_path / "cloudshard", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    shutil.copytree(ROOT / "tests" / "simulation", tmp_path / "tests" / "simulation", ignore=shutil.ignore_patterns("__pycache__"))
    for module, old, new in mutation.patches:
        path = tmp_path / "cloudshard" / module
        text = path.read_text()
        assert text.count(old) == 1, f"stale mutation {mutation.name}: {old!r} is {text.count(old)} times in {module}"
        path.write_text(text.replace(old, new))
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.hunt", "0", str(SEEDS)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, f"{mutation.line}: {done.stdout}{done.stderr[-2000:]}"
    assert "Violation" in done.stdout, done.stdout + done.stderr[-2000:]
    print(f"{mutation.name}: {done.stdout.strip()}")
