"""Reads a gateway's metrics."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx2

from gateway.tools.top.sample import NotMetrics, Sample

TIMEOUT_S = 2.0

Scrape = Callable[[], Awaitable[Sample]]


class ServerAway(Exception):
    """The metrics are unavailable. The message states the reason."""


@asynccontextmanager
async def scraping(url: str) -> AsyncIterator[Scrape]:
    """A function that reads the metrics and raises `ServerAway`. `url`: the gateway's, with or without /v1."""
    address = url.rstrip("/").removesuffix("/v1") + "/metrics"
    async with httpx2.AsyncClient(timeout=TIMEOUT_S) as client:

        async def scrape() -> Sample:
            try:
                async with asyncio.timeout(TIMEOUT_S):  # the client's own is of each read
                    response = await client.get(address)
                if response.status_code != 200:
                    raise ServerAway(f"/metrics answers {response.status_code}")
                return Sample.parse(response.content.decode(), time.monotonic())
            except (TimeoutError, httpx2.TimeoutException):
                raise ServerAway(f"silent for {TIMEOUT_S:g} s") from None
            except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
                raise ServerAway("that is no URL of a gateway") from None
            except httpx2.ConnectError:
                raise ServerAway("cannot connect") from None
            except (httpx2.HTTPError, OSError) as error:
                raise ServerAway(f"connection lost ({type(error).__name__})") from None
            except (NotMetrics, UnicodeDecodeError):
                raise ServerAway("what answers is no gateway") from None

        yield scrape
