"""LIST answers, read by expat: botocore's own reader takes ten times as long (1,000 keys: 40 ms of CPU against 4 ms).

Everything else stays botocore's (signing, redirects, proxies, TLS): a handler of its event ``before-parse`` takes the body before
the slow reader sees it. Keys arrive URL-encoded, as botocore asks for, so that any key survives XML.
"""

from __future__ import annotations

from calendar import timegm
from typing import Any
from urllib.parse import unquote_plus
from xml.etree.ElementTree import ParseError, fromstring

from cloudshard.errors import Unavailable
from cloudshard.store.port import ObjectInfo

#: Where the handler leaves what it has read.
FOUND = "CloudshardListing"
_EMPTY = b"<ListBucketResult/>"


class Listing:
    """One LIST answer. ``next_token`` is empty on the last page."""

    __slots__ = ("next_token", "objects", "prefixes")

    def __init__(self, objects: list[ObjectInfo], prefixes: list[str], next_token: str) -> None:
        self.objects = objects
        self.prefixes = prefixes
        self.next_token = next_token


def install(client: Any) -> None:
    """Let ``client`` read its ListObjectsV2 answers here."""
    client.meta.events.register("before-parse.s3.ListObjectsV2", _before_parse)


def _before_parse(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] == 200:
        customized_response_dict[FOUND] = parse(response_dict["body"])
        response_dict["body"] = _EMPTY


def parse(body: bytes) -> Listing:
    """Read a ListBucketResult. Raises Unavailable when it breaks off."""
    objects: list[ObjectInfo] = []
    prefixes: list[str] = []
    token = ""
    encoded = truncated = False
    try:
        root = fromstring(body)  # noqa: S314 - the bucket that we signed for; botocore reads it with the same parser
    except ParseError as error:
        raise Unavailable(f"a LIST answer of {len(body)} bytes is not whole") from error
    for element in root:
        tag = element.tag.rpartition("}")[2]
        if tag == "Contents":
            fields = {child.tag.rpartition("}")[2]: child.text or "" for child in element}
            objects.append(ObjectInfo(fields["Key"], int(fields["Size"]), fields.get("ETag", "").strip('"'), _time(fields["LastModified"])))
        elif tag == "CommonPrefixes":
            prefixes.extend(child.text or "" for child in element)
        elif tag == "NextContinuationToken":
            token = element.text or ""
        elif tag == "IsTruncated":
            truncated = element.text == "true"
        elif tag == "EncodingType":
            encoded = element.text == "url"
    if encoded:
        objects = [ObjectInfo(unquote_plus(o.key), o.size, o.etag, o.last_modified) if "%" in o.key or "+" in o.key else o for o in objects]
        prefixes = [unquote_plus(prefix) for prefix in prefixes]
    return Listing(objects, prefixes, token if truncated else "")


def _time(text: str) -> float:
    """Seconds since the epoch of ``2026-11-29T15:29:40.123Z``."""
    whole = timegm((int(text[0:4]), int(text[5:7]), int(text[8:10]), int(text[11:13]), int(text[14:16]), int(text[17:19])))
    fraction = text[19:].rstrip("Z")
    return whole + float(fraction) if fraction.startswith(".") else float(whole)
