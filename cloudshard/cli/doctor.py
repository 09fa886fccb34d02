"""`cloudshard doctor URL`: can this bucket do what cloudshard needs?"""

from __future__ import annotations

import click

from cloudshard.cli import options
from cloudshard.errors import EXIT_DONE, EXIT_FAILED


@click.command("doctor", short_help="Prove that a bucket can do what cloudshard needs.")
@click.argument("url", metavar="URL")
@options.as_json
@options.store_options
def command(url: str, as_json: bool, store_option: tuple[tuple[str, str], ...]) -> int:
    """Prove on your own bucket what cloudshard relies on, under the folder URL.

    Creates a few small objects there and deletes them: create-only under a race, the server's clock, a multipart upload finished by
    another client, versioning, permissions, latency. Says what is wrong and how to mend it.

    Exit codes: 0 everything works, 2 something does not.

    \b
    Example: cloudshard doctor s3://bucket/runs
    """
    import msgspec

    from cloudshard.observe.doctor import examine

    findings = examine(url, options.store_values(store_option))
    if as_json:
        found = [{"check": f.check, "ok": f.ok, "detail": f.detail, "mend": f.mend} for f in findings]
        click.echo(msgspec.json.encode({"url": url, "ok": all(f.ok for f in findings), "findings": found}))
    else:
        width = max((len(finding.check) for finding in findings), default=0)
        for finding in findings:
            click.echo(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.check:<{width}}  {finding.detail}")
            if not finding.ok and finding.mend:
                click.echo(f"{'':<{width + 8}}{finding.mend}")
    return EXIT_DONE if all(finding.ok for finding in findings) else EXIT_FAILED
