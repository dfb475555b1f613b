"""Reads a request body as one JSON object and checks its bounds."""

import asyncio
import re

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from gateway.http.bounds import MAX_BODY_SECONDS, MAX_JSON_COMMAS, MAX_JSON_CONTAINERS, MAX_JSON_STRINGS
from gateway.http.errors import APIError, ClientGone, invalid
from gateway.http.fields import Fields
from gateway.http.request_state import request_state
from gateway.refusals.refusal import MAX_MODEL_CHARS

# Possessive, and an open string runs to the end: no backtracking, so linear on any input.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.?[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SQUARE = bytes.maketrans(b"{}", b"[]")


async def read_json(scope: Scope, receive: Receive, max_depth: int) -> Fields:
    """Read and parse the body. The model that it names is noted in the request's state.

    Raises:
        APIError: 415 for another media type or content encoding than UTF-8 JSON, 408 for a timeout, 400 for
            anything but one JSON object. (`BodyLimit` raises 413.)
        ClientGone: the client disconnected.
    """
    _require_json(Headers(scope=scope))
    body = parse_json(await read_body(receive), max_depth)
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        request_state(scope).model = body["model"][:MAX_MODEL_CHARS]
    return Fields(body)


async def read_body(receive: Receive) -> bytes:
    """
    Raises:
        APIError: 408, a timeout. (`BodyLimit` raises 413.)
        ClientGone: the client disconnected.
    """
    try:
        async with asyncio.timeout(MAX_BODY_SECONDS):
            return await _read(receive)
    except TimeoutError:
        raise APIError(
            408,
            "Timed out while reading the request body.",
            code="request_timeout",
            headers={"connection": "close"},
        ) from None


def parse_json(body: bytes, max_depth: int) -> object:
    """Parse JSON of bounded depth and size. NaN, infinities and lone surrogates are not JSON."""
    return InnerJSON().parse(body, max_depth)


class InnerJSON:
    """Parses JSON in the strings of one body. The body's bound on arrays and objects holds for all of them together."""

    __slots__ = ("_containers_left",)

    def __init__(self) -> None:
        self._containers_left = MAX_JSON_CONTAINERS

    def parse(self, text: bytes, max_depth: int) -> object:
        """As `parse_json`."""
        self._containers_left -= _require_bounded(text, max_depth, self._containers_left)
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise invalid(None, f"We could not parse the JSON body of your request: {error}.", "invalid_json") from None


async def _read(receive: Receive) -> bytes:
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


def _require_json(headers: Headers) -> None:
    media_type, _, parameters = headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if media_type.strip().lower() != "application/json" or charset not in ("", "charset=utf-8", "charset=utf8"):
        raise APIError(415, "The content type must be application/json in UTF-8.", code="unsupported_media_type")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise APIError(415, "Compressed request bodies are not supported.", code="unsupported_content_encoding")


def _require_bounded(body: bytes, max_depth: int, max_containers: int) -> int:
    """Check the bounds on the bytes, before a parser recurses or allocates. Returns how many containers it has."""
    skeleton, strings = _STRINGS.subn(b"", body, MAX_JSON_STRINGS + 1)
    if strings > MAX_JSON_STRINGS:
        raise _too_large("strings")
    if skeleton.count(b",") > MAX_JSON_COMMAS:
        raise _too_large("values")
    containers = skeleton.count(b"[") + skeleton.count(b"{")
    if containers > max_containers:
        raise _too_large("arrays and objects")
    if containers > max_depth and _nests_deeper(skeleton, max_depth):
        raise invalid(None, f"The JSON body nests over {max_depth} levels or has unbalanced brackets.", "invalid_json")
    return containers


def _nests_deeper(skeleton: bytes, depth: int) -> bool:
    """Whether brackets nest over `depth` levels or do not match. Each pass removes the innermost level of pairs."""
    brackets = skeleton.translate(_SQUARE, _NOT_BRACKETS)
    for _ in range(depth):
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _too_large(what: str) -> APIError:
    return invalid(None, f"The JSON body has too many {what}.", "request_too_large")
