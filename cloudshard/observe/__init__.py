"""Status, verification, garbage collection, ledger SQL."""
