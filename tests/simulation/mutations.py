# ruff: noqa: E501 - the texts are those of the code
"""Recorded mutations: each removes one safety line of the protocol, and the simulation must notice.

A mutation is a list of (module, old text, new text) applied to a copy of the package; ``python -m tests.simulation.hunt`` plays seeds on
that copy until one fails. If the old text is no longer in the module the mutation is stale, and the test says so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """``line``: the safety line it removes; ``invariants``: at least one of these is violated."""

    name: str
    line: str
    patches: tuple[tuple[str, str, str], ...]


MUTATIONS = (
    Mutation(
        "no-nonce-read-back",
        "a lost answer is not a lost race: read back and compare the nonce",
        (
            ("store/reliable.py", "if not unknown or self.get(key) != body:", "if True:"),
            ("ledger/stage.py", "won = winner.nonce == claim.nonce", "won = False"),
        ),
    ),
    Mutation(
        "local-clock",
        "lease age is measured by the server's clock",
        (("ledger/ledger.py", "server_now=self.store.now", "server_now=self._around.monotonic"),),
    ),
    Mutation(
        "clock-runs-ahead",
        "the estimate of the server's clock is a lower bound",
        (("store/reliable.py", "return best + self._monotonic()", "return best + self._monotonic() + 45.0"),),
    ),
    Mutation(
        "publish-before-commit",
        "nothing is visible before the commit record exists",
        (
            (
                "ledger/stage.py",
                "        won = True\n        try:\n            self.store.create(key, body)",
                '        won = True\n        for part in record.parts:\n            publish(output if part.base == "output" else self.store, part)\n'
                "        try:\n            self.store.create(key, body)",
            ),
        ),
    ),
    Mutation(
        "same-epoch",
        "a takeover claims the next epoch",
        (("ledger/decide.py", "next_epoch=newest + 1", "next_epoch=max(newest, 1)"),),
    ),
    Mutation(
        "commit-overwrites",
        "the commit record is created, never overwritten",
        (
            (
                "ledger/stage.py",
                "            self.store.create(key, body)\n        except AlreadyExists:\n            found",
                "            self.store.put(key, body)\n        except AlreadyExists:\n            found",
            ),
        ),
    ),
    Mutation(
        "seal-early",
        "a stage is sealed only when every item is committed",
        (
            ("ledger/ledger.py", "if not stage.complete:", "if not stage.progress().committed:"),
            (
                "ledger/stage.py",
                "missing = [item for item in items if item not in known]",
                "items = sorted(known)\n        missing = []",
            ),
            ("ledger/stage.py", "if len(bodies) != len(items):", "items = items[: len(bodies)]\n            if False:"),
            ("ledger/seal.py", "if totals.items != len(ledger.items):", "if False:"),
        ),
    ),
    Mutation(
        "no-conservation",
        "a stage is sealed only when rows are conserved",
        (("ledger/seal.py", "    if problems:", "    if False:"),),
    ),
    Mutation(
        "takeover-spends-budget",
        "infrastructure failures never spend the retry budget",
        (
            (
                "ledger/stage.py",
                "if decision.state is State.FREE and len(decision.vanished) >= self.settings.max_takeovers:",
                "if decision.state is State.FREE and decision.vanished:",
            ),
            (
                "ledger/stage.py",
                "if decision.state is State.FREE and len(decision.vanished) > self.settings.max_takeovers:",
                "if decision.state is State.FREE and decision.vanished:",
            ),
        ),
    ),
    Mutation(
        "discard-in-doubt",
        "uploads are aborted only after another attempt's commit record was seen",
        (
            (
                "ledger/stage.py",
                "            self.store.create(key, body)\n        except AlreadyExists:\n            found",
                "            self.store.inner.create(key, body)\n        except CloudshardError as doubt:\n"
                "            if not isinstance(doubt, AlreadyExists):\n                discard(output, record.parts)\n                raise\n            found",
            ),
            (
                "ledger/stage.py",
                "from cloudshard.errors import AlreadyExists,",
                "from cloudshard.errors import CloudshardError, AlreadyExists,",
            ),
        ),
    ),
    Mutation(
        "delete-before-switch",
        "old data is deleted only after the new data is switched on",
        (("ledger/seal.py", "    named = tuple(ManifestPart(", "    output.delete(list(replaces))\n    named = tuple(ManifestPart("),),
    ),
    Mutation(
        "nobody-finishes",
        "whoever seals finishes the publication of winners that died",
        (("ledger/seal.py", "    list(parallel_map(lambda part: publish(output, part), missing))", "    del missing"),),
    ),
    Mutation(
        "upload-gone-is-loss",
        "an upload that is gone may have been finished by somebody else: look for the object",
        (("ledger/publish.py", "if not is_there(store, part):", "if True:"),),
    ),
    Mutation(
        "steal-running-leases",
        "a running lease is not taken over",
        (("ledger/decide.py", "        if now <= end:", "        if now <= end - 50.0:"),),
    ),
    Mutation(
        "revival-forgotten",
        "failures up to the last revival no longer count",
        (("ledger/decide.py", "if any(epoch > seen.revived for epoch in seen.dead):", "if seen.dead:"),),
    ),
    Mutation(
        "one-retry-less",
        "max_retries = 3 means four failed attempts",
        (
            (
                "ledger/stage.py",
                "        if failures > self.settings.max_retries:\n            self._write_dead",
                "        if failures >= self.settings.max_retries:\n            self._write_dead",
            ),
        ),
    ),
    Mutation(
        "endless-retries",
        "the retry budget ends",
        (
            ("ledger/decide.py", "if seen.counted_failures > settings.max_retries:", "if False:"),
            (
                "ledger/stage.py",
                "        if failures > self.settings.max_retries:\n            self._write_dead",
                "        if False:\n            self._write_dead",
            ),
        ),
    ),
)
