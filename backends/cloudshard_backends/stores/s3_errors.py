"""What S3 and its clients say, in cloudshard's words: the one edge where their errors are translated.

A message is made of the server's error code and its one-line reason. Raw texts of clients are never passed on: they hold
signatures, canonical requests and URLs with credentials.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from cloudshard.errors import (
    CloudshardError,
    Conflict,
    IntegrityError,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    StoreError,
    Throttled,
    Unavailable,
    Unsupported,
    UploadGone,
)

_THROTTLED = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TooManyRequests",
    "TooManyRequestsException",
    "BandwidthLimitExceeded",
}
#: The request is well, the server is not: worth another try. RequestTimeout is S3's "your socket was idle" (400).
_PASSING = {"InternalError", "RequestTimeout", "ServiceUnavailable", "OperationAborted", "IncompleteBody", "BadDigest"}
_REFUSED = {
    "AccessDenied": "Check that the policy of the credentials (and of the bucket) allows this action.",
    "403": "Check that the policy of the credentials (and of the bucket) allows this action.",
    "Forbidden": "Check that the policy of the credentials (and of the bucket) allows this action.",
    "InvalidAccessKeyId": "Check the access key: the server does not know it.",
    "SignatureDoesNotMatch": "Check the secret key, and that the endpoint is the right one.",
    "ExpiredToken": "Get new credentials (for SSO: aws sso login).",
    "ExpiredTokenException": "Get new credentials (for SSO: aws sso login).",
    "InvalidToken": "Check the session token.",
    "TokenRefreshRequired": "Get new credentials.",
    "RequestTimeTooSkewed": "Set this machine's clock: it is more than 15 minutes off.",
    "AllAccessDisabled": "The bucket's owner has disabled it.",
    "AccountProblem": "Ask the owner of the account.",
    "UnauthorizedAccess": "Check the credentials.",
    "401": "Check the credentials.",
}
_UNSUPPORTED = {"NotImplemented", "501", "MethodNotAllowed", "405", "XNotImplemented"}
_INTEGRITY = {"InvalidPart", "InvalidPartOrder"}

_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})")
_STATUS = re.compile(r"status code: (\d{3})")


def from_code(code: str, reason: str, status: int, *, where: str, verb: str, secrets: tuple[str, ...] = ()) -> CloudshardError:
    """The error for a server's answer: ``code`` (S3's name of it, or the HTTP status as text) and its ``reason``."""
    reason = _clean(reason, secrets)
    said = f"{code}: {reason}" if reason and reason != code else code
    if code == "ConditionalRequestConflict" or (status == 409 and verb == "create"):
        return Conflict("a conditional write of this key is in flight", where=where)
    if status == 412 or code == "PreconditionFailed":
        return PreconditionFailed("the object has another ETag: it was rewritten", where=where)
    if code in _THROTTLED or status == 429 or (status == 503 and code != "ServiceUnavailable"):
        return Throttled(f"the store asks for fewer requests ({said})", where=where)
    if code == "NoSuchUpload":
        return UploadGone("the upload was finished or aborted before", where=where)
    if code == "NoSuchBucket":
        return NotFound(
            "the bucket does not exist", where=where, mend="Check its name, its region and the endpoint; cloudshard makes no buckets."
        )
    if code in _REFUSED or status in (401, 403):
        return PermissionDenied(f"the store refuses the request ({said})", where=where, mend=_REFUSED.get(code, _REFUSED["403"]))
    if status == 404 or code in ("NoSuchKey", "404", "NotFound"):
        return NotFound("no such key", where=where)
    if code in _UNSUPPORTED or status in (405, 501):
        return Unsupported(f"this store cannot do that ({said})", where=where, mend="`cloudshard doctor` says what the bucket can do.")
    if code in _PASSING or status >= 500 or status == 408:
        return Unavailable(f"the store failed ({said})", where=where)
    if code in _INTEGRITY:
        return IntegrityError(f"the store does not accept the upload's parts ({said})", where=where)
    if code == "EntityTooSmall":
        return Unsupported("a part other than the last has less than the store's smallest part size (5 MiB on S3)", where=where)
    if status in (301, 307, 308):
        return StoreError(
            f"the bucket lives elsewhere ({said})", where=where, mend="Give the bucket's region (option region, or AWS_REGION)."
        )
    return StoreError(f"the store refuses the request ({said})", where=where)


@cache
def client_errors() -> tuple[type[Exception], ...]:
    """Everything that boto3 raises when a request fails (it has no common base)."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    return (ClientError, BotoCoreError, Boto3Error, ResponseParserError, HTTPError, OSError)


def from_boto(error: Exception, *, where: str, verb: str, secrets: tuple[str, ...] = ()) -> CloudshardError:
    """The error for an exception of boto3."""
    import botocore.exceptions as bc
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    if isinstance(error, bc.ClientError):
        answer: Mapping[str, Any] = error.response.get("Error", {})
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
        return from_code(str(answer.get("Code", status)), str(answer.get("Message", "")), status, where=where, verb=verb, secrets=secrets)
    if isinstance(error, (bc.NoCredentialsError, bc.PartialCredentialsError)):
        return PermissionDenied(
            "no credentials were found",
            where=where,
            mend="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the option anon=true for a public bucket.",
        )
    if isinstance(
        error,
        (bc.CredentialRetrievalError, bc.UnauthorizedSSOTokenError, bc.TokenRetrievalError, bc.SSOError, bc.RefreshWithMFAUnsupportedError),
    ):
        return PermissionDenied(
            f"the credentials could not be got or refreshed ({type(error).__name__})",
            where=where,
            mend="Get new credentials (for SSO: aws sso login).",
        )
    if isinstance(error, bc.ProfileNotFound):
        return PermissionDenied(
            "the profile is not in the AWS configuration", where=where, mend="Check the option profile and AWS_PROFILE."
        )
    if isinstance(error, bc.ParamValidationError):
        return Unsupported(f"S3 does not take such a request: {_clean(str(error), secrets)}", where=where)
    if isinstance(error, bc.NoRegionError):
        return StoreError("no region is set", where=where, mend="Give the option region, or set AWS_REGION.")
    passing = (
        bc.HTTPClientError,
        bc.ConnectionError,
        bc.IncompleteReadError,
        bc.FlexibleChecksumError,
        ResponseParserError,
        HTTPError,
        OSError,
    )
    if isinstance(error, passing):
        return Unavailable(f"no answer from the store ({type(error).__name__})", where=where)
    return StoreError(f"the S3 client failed ({type(error).__name__})", where=where)


def from_obstore(error: Exception, *, where: str, secrets: tuple[str, ...] = ()) -> CloudshardError:
    """The error for an exception of obstore, which puts the server's answer into its text."""
    text = str(error)
    status = int(found.group(1)) if (found := _STATUS.search(text)) else 0
    kind = type(error).__name__
    code = found.group(1) if (found := _CODE.search(text)) else ""
    reason = found.group(1) if (found := _MESSAGE.search(text)) else ""
    if not status and not code:
        if isinstance(error, FileNotFoundError) or kind == "NotFoundError":
            return NotFound("no such key", where=where)
        if isinstance(error, CloudshardError):
            return error
        return Unavailable(f"no answer from the store ({kind})", where=where)
    return from_code(code or str(status), reason, status, where=where, verb="get", secrets=secrets)


def _clean(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        text = text.replace(secret, "…")
    text = re.sub(r"//[^/@\s]+@", "//", text)
    return " ".join(text.split())[:300]
