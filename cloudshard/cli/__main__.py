"""`python -m cloudshard.cli` is `cloudshard`."""

from cloudshard.cli.main import entry

if __name__ == "__main__":
    entry()
