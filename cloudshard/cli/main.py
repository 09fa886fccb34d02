"""The command `cloudshard`: finds the verb's module when it is called, and turns every ending into an exit code and a sentence."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from cloudshard.errors import EXIT_DONE, EXIT_FAILED, EXIT_PREEMPTED, CloudshardError

#: verb -> what it does. The modules (cloudshard.cli.<verb>) are imported only when called: start-up time counts on every worker.
VERBS = {
    "run": "Run a pipeline: plan, work, seal and report. The same command on N machines is one run.",
    "prepare": "Plan a run without working on it.",
    "worker": "Join a run that exists, by its URL.",
    "status": "Show what a run is doing.",
    "explain": "Show the plan: stages, boundaries, work items, requests and their cost.",
    "verify": "Prove that the output is what the ledger says, byte for byte and row for row.",
    "retry": "Give dead work items another chance.",
    "query": "Ask the ledger of one or many runs in SQL.",
    "gc": "Delete what a run no longer needs.",
    "doctor": "Prove that a bucket can do what cloudshard needs.",
}

EXIT_CODES = """
Exit codes: 0 done · 1 incomplete (work is left, nothing is wrong) · 2 wrong parameters, input or recipe, or terminal failure ·
3 preempted or interrupted: run the same command again.
"""


class _PipeClosed(Exception):
    """Whoever read our output has gone."""


class Verbs(click.Group):
    """A group whose commands are modules, imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"cloudshard.cli.{cmd_name}").command
        return command if isinstance(command, click.Command) else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], VERBS, 1)
            hint = f" Did you mean {close[0]!r}?" if close else f" Commands: {', '.join(VERBS)}."
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # before click sees it, which would make it exit 1: "incomplete"
            raise _PipeClosed from None
        return result


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, epilog=EXIT_CODES)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="cloudshard", message="%(prog)s %(version)s")
@click.pass_context
def group(ctx: click.Context, debug: bool) -> None:
    """Batch processing of machine-learning data on cloud object storage: the bucket is the cluster."""
    ctx.obj = {"debug": debug}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; never raises."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    # known before parsing, so that even an error of the parser may show its traceback
    debug = "--debug" in args[: next((at for at, word in enumerate(args) if not word.startswith("-")), len(args))]
    try:
        result = group.main(args, prog_name="cloudshard", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.ClickException as error:
        error.show()
        return EXIT_FAILED
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted: run the same command again to go on", err=True)
        return EXIT_PREEMPTED
    except (_PipeClosed, BrokenPipeError):
        # the interpreter would complain when it flushes the closed pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except CloudshardError as error:
        if debug:
            _traceback()
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the edge of the process: what nobody foresaw must still be one sentence
        if debug:
            _traceback()
        click.echo(
            f"internal error: {type(error).__name__}: {error}"
            + ("" if debug else ". See the traceback with `cloudshard --debug …`; please report it."),
            err=True,
        )
        return EXIT_FAILED
    return result if isinstance(result, int) else EXIT_DONE


def _traceback() -> None:
    import traceback

    click.echo(traceback.format_exc(), err=True, nl=False)


def entry() -> None:
    """The console script."""
    # One thread for BLAS: its pool is of no use here, and its threads, begun by an import, would keep the worker from forking
    # its children with all imports done. Whoever has set these variables keeps them.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    sys.exit(main())


if __name__ == "__main__":
    entry()
