"""The functions of ``configs/quickstart.yaml`` and ``configs/jsonl_clean.yaml``: cleaning source files and documents.

They are ordinary functions of one row, as any user would write them: a row is a dict, None removes it, an exception is the row's error.
"""

from __future__ import annotations

import io
import re
import tokenize
import unicodedata
from typing import Any

_BLANK_LINES = re.compile(r"\n{4,}")
_SPACES = re.compile(r"[ \t\u00a0\u2000-\u200a\u3000]+")
#: Control characters that no document needs; tab and line feed stay.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\ufeff]")
_WORD = re.compile(r"\w+")


def clean(row: dict[str, Any]) -> dict[str, Any]:
    """One Python source file (``path``, ``content`` as bytes or text) as a document with its counts.

    Decodes by the file's own declaration (PEP 263), makes line ends ``\\n``, removes trailing white space and superfluous blank lines.
    Raises SyntaxError or UnicodeDecodeError when the file is not text in the encoding that it declares.
    """
    text, encoding = decode_source(row["content"])
    lines = [line.rstrip() for line in text.expandtabs(8).splitlines()]
    text = _BLANK_LINES.sub("\n\n\n", "\n".join(lines).strip("\n"))
    lines = text.split("\n") if text else []
    comments = sum(1 for line in lines if line.lstrip().startswith("#"))
    blank = sum(1 for line in lines if not line)
    written = len(lines) - blank
    return {
        "module": module_name(row["path"]),
        "text": text,
        "encoding": encoding,
        "n_bytes": len(row["content"]),
        "n_lines": len(lines),
        "n_words": len(_WORD.findall(text)),
        "comment_ratio": comments / written if written else 0.0,
    }


def decode_source(content: bytes | str) -> tuple[str, str]:
    """(text, encoding) of a source file. Text is taken as it is."""
    if isinstance(content, str):
        return content, "utf-8"
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return content.decode(encoding), encoding.removesuffix("-sig")


def module_name(path: str) -> str:
    """``json.decoder`` for ``file:///…/lib/python3.11/json/decoder.py``: what follows the library's own folder."""
    below = re.split(r"/(?:lib/)?python3(?:\.\d+)?/", path)[-1] if "/python3" in path else path.rpartition("/")[2]
    return below.removesuffix(".py").removesuffix("/__init__").strip("/").replace("/", ".")


def clean_text(row: dict[str, Any], *, column: str = "text") -> dict[str, Any] | None:
    """The row with its text in Unicode NFC, without control characters and runs of spaces; None when nothing is left."""
    text = unicodedata.normalize("NFC", row[column]).replace("\r\n", "\n").replace("\r", "\n")
    text = _SPACES.sub(" ", _CONTROL.sub("", text))
    text = "\n".join(line.strip() for line in text.split("\n"))
    text = _BLANK_LINES.sub("\n\n\n", text).strip()
    if not text:
        return None
    return {**row, column: text}
