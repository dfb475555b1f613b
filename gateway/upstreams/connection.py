"""The HTTP client of an upstream: a bounded pool of connections, timeouts, retries before the first byte."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from typing import Any

import httpx2
import orjson

from gateway.config.upstreams import StatedUpstream
from gateway.http.errors import APIError
from gateway.upstreams.breaker import RetryBudget, UpstreamBreaker
from gateway.upstreams.errors import UpstreamUnavailable, lost, no_answer, of_response, timed_out, unreachable

MAX_ERROR_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
"""Of an answer that is no stream, such as an embedding."""
MAX_IDLE_CONNECTIONS = 100
IDLE_S = 15.0
"""After which an unused connection is closed: before servers close it, which do so after 20 s and more."""
RETRY_S = 0.1
"""Mean pause before a request is sent once more."""
PROBE_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


class UpstreamConnection:
    """For one event loop, on which `aclose` ends it. `secret`: the server's API key."""

    def __init__(self, name: str, stated: StatedUpstream, secret: str | None, breaker: UpstreamBreaker) -> None:
        self._name = name
        self._stated = stated
        self._secret = secret
        self._breaker = breaker
        self.budget = RetryBudget()
        self._opened: httpx2.AsyncClient | None = None

    @property
    def _client(self) -> httpx2.AsyncClient:
        if self._opened is None:
            stated = self._stated
            headers = {"user-agent": "turnpike", "accept-encoding": "identity"}  # compression delays events
            if self._secret is not None:
                headers["authorization"] = f"Bearer {self._secret}"
            self._opened = httpx2.AsyncClient(
                headers=headers,
                timeout=httpx2.Timeout(
                    connect=stated.connect_timeout_s, read=None, write=stated.read_timeout_s, pool=None
                ),
                limits=httpx2.Limits(
                    max_connections=stated.max_concurrent + 1,  # one for health checks
                    max_keepalive_connections=min(stated.max_concurrent, MAX_IDLE_CONNECTIONS),
                    keepalive_expiry=IDLE_S,
                ),
            )
        return self._opened

    async def aclose(self) -> None:
        """Close all connections."""
        if self._opened is not None:
            await self._opened.aclose()

    async def get_models(self) -> tuple[int, Any]:
        """Status and body of `/models`; None for a body that is no JSON.

        Raises:
            UpstreamUnavailable: there is no answer.
        """
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                response = await self._client.get(f"{self._stated.url}/models")
        except (TimeoutError, httpx2.TimeoutException):
            raise timed_out(connecting=True) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
            raise unreachable("no answer to a health check") from None
        try:
            return response.status_code, orjson.loads(response.content)
        except orjson.JSONDecodeError:
            return response.status_code, None

    async def chunks(self, path: str, body: Mapping[str, Any], request_id: str) -> AsyncGenerator[tuple[bytes, bool]]:
        """The bytes of an answer as they arrive, and whether they are server-sent events. Closing the iterator closes
        the connection. `request_id`: for the server's logs.

        Raises:
            APIError: the request is refused, or the server fails.
        """
        content = orjson.dumps(body, default=dict, option=orjson.OPT_NON_STR_KEYS)
        response, parts, first = await self._begun(path, content, request_id)
        try:
            is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
            yield first, is_stream
            while True:
                try:
                    async with asyncio.timeout(self._stated.read_timeout_s):
                        part = await anext(parts, None)
                except (TimeoutError, httpx2.HTTPError, OSError) as error:
                    _log.warning("upstream %s ends an answer: %s", self._name, type(error).__name__)
                    self._breaker.on_failure()
                    raise lost() from None
                if part is None:
                    return
                yield part, is_stream
        finally:
            await response.aclose()

    async def post(self, path: str, body: Mapping[str, Any], request_id: str) -> Any:
        """The JSON of an answer that is no stream.

        Raises:
            APIError: as `chunks`.
        """
        whole = bytearray()
        async with aclosing(self.chunks(path, body, request_id)) as parts:
            async for part, _ in parts:
                whole += part
                if len(whole) > MAX_BODY_BYTES:
                    raise no_answer()
        try:
            return orjson.loads(whole)
        except orjson.JSONDecodeError:
            raise no_answer() from None

    async def _begun(
        self, path: str, content: bytes, request_id: str
    ) -> tuple[httpx2.Response, AsyncIterator[bytes], bytes]:
        """A response whose first bytes have arrived. Sent once more where that is safe and the budget allows it."""
        self.budget.on_request()
        try:
            return await self._attempt(path, content, request_id)
        except UpstreamUnavailable as error:
            if not (error.may_retry and self.budget.take()):
                raise
        await asyncio.sleep(RETRY_S * (0.5 + random.random()))
        return await self._attempt(path, content, request_id)

    async def _attempt(
        self, path: str, content: bytes, request_id: str
    ) -> tuple[httpx2.Response, AsyncIterator[bytes], bytes]:
        try:
            response, parts, first = await self._sent(path, content, request_id)
        except UpstreamUnavailable as error:
            _log.warning("upstream %s gives no answer: %s", self._name, error.reason)
            if error.is_outage:
                self._breaker.on_failure()
            raise
        except APIError:
            self._breaker.on_success()  # it refuses this request as a working server does
            raise
        self._breaker.on_success()
        return response, parts, first

    async def _sent(
        self, path: str, content: bytes, request_id: str
    ) -> tuple[httpx2.Response, AsyncIterator[bytes], bytes]:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "x-request-id": request_id,
        }
        response = None
        try:
            async with asyncio.timeout(self._stated.first_byte_timeout_s):
                request = self._client.build_request("POST", self._stated.url + path, content=content, headers=headers)
                response = await self._client.send(request, stream=True)
                is_plain = "content-encoding" not in response.headers
                parts = response.aiter_raw() if is_plain else response.aiter_bytes()
                if response.status_code != 200:
                    raise await self._refusal(response, parts)
                if (first := await anext(parts, None)) is None:
                    raise unreachable("an empty response")
                return response, parts, first
        except BaseException as error:
            if response is not None:
                with suppress(httpx2.HTTPError, OSError):
                    await response.aclose()
            if isinstance(error, httpx2.ConnectTimeout):
                raise timed_out(connecting=True) from None
            if isinstance(error, TimeoutError | httpx2.TimeoutException):
                raise timed_out(connecting=False) from None
            if isinstance(error, httpx2.HTTPError | httpx2.InvalidURL | OSError):
                raise unreachable(type(error).__name__) from None
            raise

    async def _refusal(self, response: httpx2.Response, parts: AsyncIterator[bytes]) -> APIError:
        body = bytearray()
        async for part in parts:
            body += part
            if len(body) > MAX_ERROR_BYTES:
                break
        secrets = () if self._secret is None else (self._secret,)
        return of_response(response.status_code, response.headers, bytes(body), secrets)
