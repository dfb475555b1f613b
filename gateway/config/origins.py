"""Web origins, as browsers send them (RFC 6454)."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

ANY = "*"


def _origin(text: str) -> str:
    """
    Raises:
        ValueError: it is neither `*` nor a scheme, a host and possibly a port.
    """
    parts = urlsplit(text)
    is_origin = parts.scheme in ("http", "https") and parts.hostname and text == f"{parts.scheme}://{parts.netloc}"
    if text != ANY and (not is_origin or "@" in parts.netloc or text != text.lower()):
        raise ValueError(f"an origin has the form https://host or https://host:port, or is *, got {text!r}")
    return text


Origin = Annotated[str, AfterValidator(_origin)]
