"""GET /docs and its stylesheet: public, without scripts."""

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from gateway.http.made_body import PUBLIC, MadeBody

DOCUMENT_PATH = "/openapi.json"
PAGE_PATH = "/docs"
STYLE_PATH = "/docs/reference.css"

_PAGE_HEADERS: Mapping[str, str] = {
    **PUBLIC,
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
}


def page_endpoint(documents: Callable[[], Mapping[str, dict[str, Any]]]) -> MadeBody:
    """The page. `documents`: OpenAPI documents by the address of each."""

    def make() -> bytes:
        from gateway.reference.page import reference_page

        return reference_page(documents()).encode()

    return MadeBody(make, _PAGE_HEADERS, "text/html; charset=utf-8")


def style_endpoint() -> MadeBody:
    """The page's stylesheet."""
    style = files("gateway.reference").joinpath("static", "reference.css")
    return MadeBody(style.read_bytes, PUBLIC, "text/css; charset=utf-8")
