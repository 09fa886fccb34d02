"""The edge of the process: one sentence, an exit code, and no traceback unless it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import click
import pytest

from cloudshard.cli import main as main_module
from cloudshard.cli.main import VERBS, main
from cloudshard.errors import InputError, Preempted
from tests.cli.calling import Caller, process


def let_status_raise(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    from cloudshard.cli import status

    def boom(**_: object) -> None:
        raise error

    monkeypatch.setattr(status.command, "callback", boom)


def test_version_starts_quickly_and_imports_nothing_heavy() -> None:
    code = "import sys; from cloudshard.cli.main import main; main(['--version']); print(sorted(sys.modules))"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cloudshard ")
    for heavy in ("pyarrow", "duckdb", "rich", "boto3", "pandas", "pydantic", "yaml", "cloudpickle", "numpy"):
        assert f"'{heavy}'" not in done.stdout, heavy
    assert time.perf_counter() - start < 2  # 0.1 s on a quiet machine


def test_help_names_every_verb_and_the_exit_codes(cloudshard: Caller) -> None:
    said = cloudshard("--help")
    assert said.code == 0
    assert all(f"  {verb} " in said.out for verb in VERBS)
    assert "Exit codes: 0 done" in said.out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(cloudshard: Caller, verb: str) -> None:
    said = cloudshard(verb, "--help")
    assert said.code == 0
    assert "Usage: cloudshard " + verb in said.out


@pytest.mark.parametrize("arguments", [["stats"], ["status"], ["status", "--nonsense", "x"], ["query", "select 1"], ["--nonsense"]])
def test_usage_errors_exit_2(cloudshard: Caller, arguments: list[str]) -> None:
    said = cloudshard(*arguments)
    assert (said.code, said.out) == (2, "")
    assert "Usage:" in said.err


def test_a_misspelt_verb_gets_a_suggestion(cloudshard: Caller) -> None:
    assert "Did you mean 'verify'?" in cloudshard("verfy").err


def test_our_errors_are_one_sentence_with_their_exit_code(cloudshard: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    let_status_raise(monkeypatch, InputError("it is broken", where="s3://a/b", mend="Mend it."))
    said = cloudshard("status", "x")
    assert said == (2, "", "error: it is broken (s3://a/b). Mend it.\n")
    let_status_raise(monkeypatch, Preempted("asked to stop"))
    assert cloudshard("status", "x").code == 3


def test_a_foreign_error_is_one_sentence_and_a_traceback_only_with_debug(cloudshard: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    let_status_raise(monkeypatch, ZeroDivisionError("by zero"))
    said = cloudshard("status", "x")
    assert said.code == 2
    assert said.err.startswith("internal error: ZeroDivisionError: by zero")
    assert "Traceback" not in said.err
    assert "--debug" in said.err
    assert "Traceback" in cloudshard("--debug", "status", "x").err


def test_an_interrupt_exits_3(cloudshard: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    let_status_raise(monkeypatch, KeyboardInterrupt())
    assert cloudshard("status", "x").code == 3


def test_a_closed_pipe_is_quiet() -> None:
    code = "import sys; from cloudshard.cli import status; import click\n"
    code += "status.command.callback = lambda **_: [click.echo('x' * 1000) for _ in range(10000)]\n"
    code += "from cloudshard.cli.main import entry; sys.argv = ['cloudshard', 'status', 'x']; entry()"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read(10)
    child.stdout.close()
    assert child.stderr is not None
    assert child.stderr.read() == b""
    assert child.wait(20) == 0


def test_it_runs_as_a_module_and_returns_the_exit_code(tmp_path: os.PathLike[str]) -> None:
    said = process("status", f"{tmp_path}/nothing")
    assert said.code == 2
    assert said.err.startswith("error: there is no run")
    assert "Traceback" not in said.err


def test_main_never_raises_system_exit() -> None:
    assert main(["--version"]) == 0
    assert isinstance(main_module.group, click.Group)
