"""Reads again, in the background, what a process keeps of the database in memory."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gateway.errors import OperatorError

REFRESH_S = 2.0
READ_TIMEOUT_S = 2.0

_log = logging.getLogger(__name__)


class Refresher:
    """Calls `load` every `refresh_s` seconds from `start` until `aclose`. A failed read is logged once per outage, with
    `what` could not be read."""

    def __init__(self, what: str, load: Callable[[], Awaitable[None]], refresh_s: float = REFRESH_S) -> None:
        """`load` keeps what it has read before where it raises OperatorError."""
        self._what = what
        self._load = load
        self._refresh_s = refresh_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin on the running event loop."""
        self._task = asyncio.create_task(self._refresh())

    async def aclose(self) -> None:
        """End, also within a read."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _refresh(self) -> None:
        outage = False
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    await self._load()
            except (OperatorError, TimeoutError) as error:
                if not outage:
                    _log.warning("%s cannot be read again: %s", self._what, str(error) or "no answer in time")
                outage = True
            else:
                if outage:
                    _log.warning("%s can be read again", self._what)
                outage = False
