"""Ends the running requests of a key that is revoked, or whose tenant is suspended."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.tenancy.errors import InvalidKey

CHECK_S = 0.5
"""Time between two looks at the keys of running requests. With the authenticator's `REFRESH_S` and `READ_TIMEOUT_S` a
request ends 4.5 s after its key was revoked at the latest, while the database answers."""

End = Callable[[InvalidKey], None]


class KeyWatch:
    """The running requests by key. Belongs to one event loop; without requests it has no timer."""

    def __init__(self, why_ended: Callable[[str], InvalidKey | None]) -> None:
        """`why_ended`: as `Authenticator.why_ended`."""
        self._why_ended = why_ended
        self._running: dict[str, dict[object, End]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        """Requests that are watched."""
        return sum(map(len, self._running.values()))

    @contextmanager
    def watching(self, key_id: str, end: End) -> Iterator[None]:
        """A block in which `end` is called, once, with the reason why the key is not in use any more."""
        token = object()
        self._running.setdefault(key_id, {})[token] = end
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)
        try:
            yield
        finally:
            requests = self._running.get(key_id, {})
            requests.pop(token, None)
            if not requests:
                self._running.pop(key_id, None)
            if not self._running and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _check(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)
        for key_id in list(self._running):
            if (reason := self._why_ended(key_id)) is not None:
                for end in self._running.pop(key_id).values():
                    end(reason)
