"""``python -m tests.worker.one_worker FOLDER JSON``: one worker with the fake executor, as a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cloudshard.worker.events import ChildOutput, Note
from tests.worker.harness import Run


def main() -> int:
    given = json.loads(sys.argv[2])
    run = Run(Path(sys.argv[1]), **given["run"])
    run.events = Said()  # type: ignore[assignment]
    return run.work(**given["work"])


class Said(list[object]):
    """Tells notes and output as they come."""

    def append(self, event: object) -> None:
        if isinstance(event, (Note, ChildOutput)):
            print(event.text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
