"""Options of stores: which may be written into a plan, and where the others come from.

A plan lies in the bucket for everybody who can read it, so only the options on the list below go into it. Keys, secrets and
tokens never leave the process that was given them: other workers find theirs in their own environment, profile or machine
role, or are given them by :func:`register_options`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

#: What says *where* and *how*, never *who*.
PUBLIC = frozenset(
    {
        "endpoint_url",
        "region",
        "anon",
        "profile",
        "addressing_style",
        "requester_pays",
        "use_ssl",
        "verify",
        "durable",
        "metadata",
        "part_size",
    }
)

_registered: dict[str, dict[str, Any]] = {}
_lock = threading.Lock()


def register_options(url_prefix: str, options: Mapping[str, Any]) -> None:
    """Options (secret ones too) for every URL that begins with ``url_prefix``, in this process only.

    The longest prefix wins; options given to a call win over registered ones. Registering nothing forgets the prefix.
    """
    with _lock:
        if options:
            _registered[url_prefix] = dict(options)
        else:
            _registered.pop(url_prefix, None)


def registered_options() -> dict[str, dict[str, Any]]:
    """All of them, for handing on to a child process over a private channel. Never to be stored."""
    with _lock:
        return {prefix: dict(options) for prefix, options in _registered.items()}


def options_for(url: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Registered options of ``url``, overlaid with ``options``."""
    if not _registered:
        return dict(options or {})
    with _lock:
        best = max((prefix for prefix in _registered if _covers(prefix, url)), key=len, default=None)
        return {**(_registered[best] if best is not None else {}), **(options or {})}


def _covers(prefix: str, url: str) -> bool:
    """Prefixes end at a segment: ``s3://data`` covers ``s3://data/x`` and not ``s3://data-secret``; ``s3://`` covers all."""
    return url.startswith(prefix) and (prefix.endswith("/") or len(url) == len(prefix) or url[len(prefix)] == "/")


def public_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Those of ``options`` that may go into a plan, under their plain names (s3fs's nested spellings are understood)."""
    given = dict(options or {})
    client = given.get("client_kwargs") or {}
    config = given.get("config_kwargs") or {}
    plain = {
        "endpoint_url": client.get("endpoint_url"),
        "region": given.get("region_name") or client.get("region_name") or config.get("region_name"),
        "verify": client.get("verify"),
        "use_ssl": client.get("use_ssl"),
        "addressing_style": (config.get("s3") or {}).get("addressing_style"),
        **{name: value for name, value in given.items() if name in PUBLIC},
    }
    found = {name: value for name, value in plain.items() if value is not None}
    if isinstance(found.get("endpoint_url"), str):
        found["endpoint_url"] = without_credentials(found["endpoint_url"])
    return found


def without_credentials(url: str) -> str:
    """``url`` without ``user:password@`` and without query values, which may be signatures."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL that could be taken apart: tell nothing of it
        return url.partition("://")[0] + "://…"
    query = "…" if parts.query else ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


def frozen(options: Mapping[str, Any]) -> str:
    """A key for a cache: equal for equal options. Stays in memory: it may hold secrets."""
    return msgspec.json.encode(options, enc_hook=repr, order="deterministic").decode()
