"""Security headers of the console's responses, and the same-origin check of its POST requests."""

import re
from collections.abc import Mapping

from starlette.datastructures import Headers

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)

SECURITY: Mapping[str, str] = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    # Not no-referrer: under that, browsers send `Origin: null` with our own forms, too.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
NEVER_STORED: Mapping[str, str] = {"cache-control": "no-store"}

_LOOPBACK = frozenset({"127.0.0.1", "[::1]", "localhost"})


def is_own(headers: Headers) -> bool:
    """Whether a browser says that the request comes from a page of this very site. What says nothing is no browser of
    today; it has no victim's cookie to misuse, and the session's token is asked for besides."""
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host", "")


def is_loopback(headers: Headers) -> bool:
    """Whether the Host header names a loopback address."""
    return re.sub(r":[0-9]+\Z", "", headers.get("host", "")) in _LOOPBACK
