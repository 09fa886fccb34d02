"""The memory that a plan projects, against what a real child process takes."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import psutil
import pytest

from cloudshard.plan.build import build
from cloudshard.plan.explain import explain
from cloudshard.recipe import load_recipe

RECIPE = """
source: {{read_jsonl: {folder}/in}}
steps:
  - map: cloudshard.quickstart:clean_text
  {more}
sink: {{{sink}: {folder}/out}}
shards: {{target_bytes: 16MiB}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("sink", "more"), [("write_parquet", ""), ("write_jsonl", "- filter: length(text) > 10")])
def test_no_child_takes_much_more_than_projected_and_the_projection_is_no_fantasy(tmp_path, sink, more):
    (tmp_path / "in").mkdir()
    line = json.dumps({"id": 1, "text": " ".join(f"word{n}" for n in range(400))}) + "\n"
    (tmp_path / "in" / "0.jsonl").write_text(line * 20_000)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(RECIPE.format(folder=tmp_path, sink=sink, more=more))
    projected = explain(build(load_recipe(recipe).pipeline)).stages[0].memory_bytes
    run = subprocess.Popen(
        [sys.executable, "-m", "cloudshard.cli", "run", str(recipe), "--quiet", "--processes", "2"], stdout=subprocess.DEVNULL
    )
    measured = 0
    while run.poll() is None:
        for process in psutil.Process(run.pid).children(recursive=True):
            try:
                measured = max(measured, process.memory_info().rss)
            except psutil.Error:  # it has ended meanwhile
                continue
        time.sleep(0.05)
    assert run.returncode == 0
    assert 0.4 * projected < measured < 1.25 * projected, f"projected {projected >> 20} MiB, measured {measured >> 20} MiB"
