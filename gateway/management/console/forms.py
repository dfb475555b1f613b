"""Submitted forms and queries: names and texts, in order."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from gateway.http.errors import APIError, invalid
from gateway.http.json_body import read_body

MAX_FIELDS = 300
_FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form or a query. A name may occur more than once, as check boxes do."""

    pairs: tuple[tuple[str, str], ...] = ()

    def get(self, name: str, default: str = "") -> str:
        """The first text under a name, or `default`."""
        return next((text for each, text in self.pairs if each == name), default)

    def every(self, name: str) -> list[str]:
        return [text for each, text in self.pairs if each == name]

    def texts(self) -> Mapping[str, list[str]]:
        texts: dict[str, list[str]] = {}
        for name, text in self.pairs:
            texts.setdefault(name, []).append(text)
        return texts

    def given(self, *names: str) -> dict[str, str]:
        """The fields among `names` that have a text, as query parameters of an operation."""
        return {name: text for name in names if (text := self.get(name).strip())}


NO_FORM = Form()


def read_pairs(encoded: bytes) -> Form:
    """
    Raises:
        APIError: 400, it is not a form in UTF-8 of at most `MAX_FIELDS` fields.
    """
    try:
        text = encoded.decode("ascii")
        return Form(tuple(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)))
    except ValueError:
        raise invalid(None, "A form must be UTF-8, percent-encoded.") from None


async def read_form(scope: Scope, receive: Receive) -> Form:
    """
    Raises:
        APIError: 415, 408 or 400, it is no form.
        ClientGone: hung up half-way.
    """
    media_type = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    if media_type != _FORM:
        raise APIError(415, f"The content type must be {_FORM}.", code="unsupported_media_type")
    return read_pairs(await read_body(receive))
