"""What user code logs during an attempt, kept beside the ledger as JSON lines; an attempt that logs nothing leaves no object."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

#: A step that logs every row must not fill memory or bucket: the first records tell the story.
MAX_RECORDS = 1000
MAX_MESSAGE_CHARACTERS = 4000


class AttemptLog(logging.Handler):
    """A handler on the root logger; warnings and worse also go to stderr, as they do without any handler."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[bytes] = []
        self._left_out = 0
        self._encoder = msgspec.json.Encoder(enc_hook=repr)
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        if len(self._lines) >= MAX_RECORDS:
            self._left_out += 1
            return
        try:
            text = record.getMessage()
        except (TypeError, ValueError) as error:  # arguments that do not fit the format
            text = f"{record.msg!r} ({error})"
        entry: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "message": text[:MAX_MESSAGE_CHARACTERS],
        }
        if record.exc_info and record.exc_info[0] is not None:
            entry["traceback"] = self._formatter.formatException(record.exc_info)[-MAX_MESSAGE_CHARACTERS:]
        self._lines.append(self._encoder.encode(entry))

    def take(self) -> bytes | None:
        """The records since the last call as JSON lines, or None when there are none."""
        if not self._lines:
            return None
        if self._left_out:
            self._lines.append(
                msgspec.json.encode({"level": "WARNING", "logger": __name__, "message": f"{self._left_out} more records left out"})
            )
        body = b"\n".join(self._lines) + b"\n"
        self._lines, self._left_out = [], 0
        return body


def install() -> AttemptLog:
    """Put the handler on the root logger of this process."""
    root = logging.getLogger()
    if not root.handlers:
        to_stderr = logging.StreamHandler()
        to_stderr.setLevel(logging.WARNING)
        to_stderr.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(to_stderr)
    handler = AttemptLog()
    root.addHandler(handler)
    return handler
