"""S3 options in one vocabulary: what users of s3fs, boto3 and the environment write, understood once, for both clients.

Accepted (s3fs's names first): ``key``, ``secret``, ``token``, ``anon``, ``profile``, ``endpoint_url``, ``use_ssl``, ``requester_pays``,
``client_kwargs`` (``endpoint_url``, ``region_name``, ``verify``, ``use_ssl``, ``aws_…`` keys), ``config_kwargs`` (anything that
:class:`botocore.config.Config` takes), ``s3_additional_kwargs`` (``ServerSideEncryption``, ``SSEKMSKeyId``, ``StorageClass``, ``ACL``: sent
with every write); and ``region``, ``addressing_style`` ("auto", "path", "virtual"), ``verify`` (False, or a CA file),
``part_size`` (bytes), ``bulk`` ("auto", "obstore", "boto3").

What is not given comes from the environment, as in every AWS tool: ``AWS_…`` variables, ``~/.aws``, container and instance roles,
SSO and web identity, each refreshed before it expires; and from ``FSSPEC_S3_KEY``, ``…_SECRET``, ``…_TOKEN``,
``…_ENDPOINT_URL``, ``…_ANON``, ``…_PROFILE``, as for s3fs.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudshard.errors import RecipeError

#: Spellings of one thing, the first is ours.
_SAME = {
    "key": ("key", "username", "aws_access_key_id", "access_key_id"),
    "secret": ("secret", "password", "aws_secret_access_key", "secret_access_key"),
    "token": ("token", "aws_session_token", "session_token"),
    "endpoint_url": ("endpoint_url",),
    "region": ("region", "region_name"),
    "anon": ("anon",),
    "profile": ("profile", "profile_name"),
    "use_ssl": ("use_ssl",),
    "verify": ("verify",),
    "addressing_style": ("addressing_style",),
    "requester_pays": ("requester_pays",),
    "part_size": ("part_size", "default_block_size"),
    "bulk": ("bulk",),
}
_CANONICAL = {spelling: name for name, spellings in _SAME.items() for spelling in spellings}
_NESTED = {"client_kwargs", "config_kwargs", "s3_additional_kwargs"}
#: Knobs of s3fs's caches and loops: they have no meaning here, and whoever shares options with s3fs may leave them in.
_IGNORED = {
    "default_fill_cache",
    "default_cache_type",
    "version_aware",
    "cache_regions",
    "asynchronous",
    "loop",
    "use_listings_cache",
    "listings_expiry_time",
    "skip_instance_cache",
    "max_concurrency",
    "fixed_upload_size",
}
_ENVIRONMENT = ("key", "secret", "token", "endpoint_url", "anon", "profile")
_WRITE_ARGUMENTS = {
    "ServerSideEncryption",
    "SSEKMSKeyId",
    "SSEKMSEncryptionContext",
    "BucketKeyEnabled",
    "StorageClass",
    "ACL",
    "Tagging",
    "ExpectedBucketOwner",
}

#: S3 refuses smaller parts, except the last.
SMALLEST_PART = 5 << 20
LARGEST_PART = 5 << 30


@dataclass(frozen=True, slots=True)
class S3Options:
    """Options, understood. None: decided by the environment. ``repr`` shows no secret."""

    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    endpoint_url: str | None = field(default=None, repr=False)  # may hold user:password
    region: str | None = None
    anon: bool = False
    profile: str | None = None
    use_ssl: bool = True
    verify: bool | str | None = None
    addressing_style: str = "auto"
    requester_pays: bool = False
    part_size: int | None = None
    bulk: str = "auto"
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    write_arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may hold."""
        return tuple(text for text in (self.secret, self.token) if text)


def parse(options: Mapping[str, Any], *, where: str = "", environ: Mapping[str, str] | None = None) -> S3Options:
    """Understand ``options``. Raises RecipeError for an unknown name (with a suggestion) or a value that cannot be."""
    environ = os.environ if environ is None else environ
    found: dict[str, Any] = {}
    for name in _ENVIRONMENT:
        if value := environ.get(f"FSSPEC_S3_{name.upper()}"):
            found[name] = value
    client = dict(options.get("client_kwargs") or {})
    config = dict(options.get("config_kwargs") or {})
    style = (config.get("s3") or {}).get("addressing_style")
    if style:
        found["addressing_style"] = style
    if config.get("region_name"):
        found["region"] = config.pop("region_name")
    for source, place in ((client, "client_kwargs."), ({k: v for k, v in options.items() if k not in _NESTED}, "")):
        for name, value in source.items():
            if name in _IGNORED:
                continue
            if name not in _CANONICAL:
                raise _unknown(place + name, where)
            if value is not None:
                found[_CANONICAL[name]] = value
    extra = dict(options.get("s3_additional_kwargs") or {})
    if unknown := sorted(set(extra) - _WRITE_ARGUMENTS):
        raise RecipeError(
            f"s3_additional_kwargs does not take {unknown[0]!r}", where=where, mend=f"It takes: {', '.join(sorted(_WRITE_ARGUMENTS))}."
        )
    return _checked(found, config, extra, where)


def _checked(found: dict[str, Any], config: dict[str, Any], extra: dict[str, Any], where: str) -> S3Options:
    for name in ("anon", "use_ssl", "requester_pays"):
        if name in found:
            found[name] = _truth(name, found[name], where)
    if found.get("addressing_style", "auto") not in ("auto", "path", "virtual"):
        raise RecipeError(f"addressing_style must be auto, path or virtual, not {found['addressing_style']!r}", where=where)
    if found.get("bulk", "auto") not in ("auto", "obstore", "boto3"):
        raise RecipeError(f"bulk must be auto, obstore or boto3, not {found['bulk']!r}", where=where)
    size = found.get("part_size")
    if size is not None and (not isinstance(size, int) or not SMALLEST_PART <= size <= LARGEST_PART):
        raise RecipeError(f"part_size must be from 5 MiB to 5 GiB, in bytes, not {size!r}", where=where)
    if bool(found.get("key")) != bool(found.get("secret")):
        raise RecipeError("key and secret must be given together", where=where)
    endpoint = found.get("endpoint_url")
    if endpoint is not None and not str(endpoint).startswith(("http://", "https://")):
        raise RecipeError("endpoint_url must begin with http:// or https://", where=where)
    return S3Options(**found, config=config, write_arguments=extra)


def _truth(name: str, value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise RecipeError(f"{name} must be true or false, not {value!r}", where=where)


def _unknown(name: str, where: str) -> RecipeError:
    known = sorted({*_CANONICAL, *_NESTED})
    near = difflib.get_close_matches(name.rpartition(".")[2], known, 1)
    mend = f"Did you mean {near[0]!r}?" if near else f"It knows: {', '.join(sorted({*_SAME, *_NESTED}))}."
    return RecipeError(f"the S3 store does not know the option {name!r}", where=where, mend=mend)
