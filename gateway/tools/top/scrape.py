"""Reads a gateway's metrics."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp

from gateway.tools.top.sample import NotMetrics, Sample

TIMEOUT_S = 2.0

Scrape = Callable[[], Awaitable[Sample]]


class ServerAway(Exception):
    """The metrics are unavailable. The message states the reason."""


@asynccontextmanager
async def scraping(url: str) -> AsyncIterator[Scrape]:
    """A function that reads the metrics and raises `ServerAway`. `url`: the gateway's, with or without /v1."""
    address = url.rstrip("/").removesuffix("/v1") + "/metrics"
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def scrape() -> Sample:
            try:
                async with session.get(address) as response:
                    if response.status != 200:
                        raise ServerAway(f"/metrics answers {response.status}")
                    return Sample.parse(await response.text(), time.monotonic())
            except TimeoutError:
                raise ServerAway(f"silent for {TIMEOUT_S:g} s") from None
            except aiohttp.InvalidURL:
                raise ServerAway("that is no URL of a gateway") from None
            except aiohttp.ClientConnectorError:
                raise ServerAway("cannot connect") from None
            except (aiohttp.ClientError, OSError) as error:
                raise ServerAway(f"connection lost ({type(error).__name__})") from None
            except (NotMetrics, UnicodeDecodeError):
                raise ServerAway("what answers is no gateway") from None

        yield scrape
