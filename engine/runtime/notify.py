"""Waking one task, a token at a time."""

import asyncio


class Wakeup:
    """Wakes the one task that waits, and remembers nothing: whoever waits has just looked whether there is anything.

    As `asyncio.Event` for a single waiter, at less than half of its cost; it is paid for every token.
    """

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        assert self._waiter is None, "somebody waits already"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """On the event loop of the task that waits, if one does."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
