"""The user's function of W1: the same for every peer."""

from __future__ import annotations

from typing import Any


def clean_row(row: dict[str, Any]) -> dict[str, Any] | None:
    """Filter by score and length, collapse white space, count words."""
    if row["score"] < 0.2:
        return None
    words = row["text"].split()
    text = " ".join(words)
    if len(text) < 200:
        return None
    row["text"] = text
    row["n_words"] = len(words)
    return row
