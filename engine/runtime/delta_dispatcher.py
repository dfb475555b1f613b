"""From the engine thread to those who submitted requests: what a step brought, in one call to each."""

from collections.abc import Callable

from engine.request import TokenDelta

Sink = Callable[[list[TokenDelta]], None]
"""Takes what one step brought to the requests that were submitted with it. Called on the engine thread, or on the
watchdog's where that hangs; must not block."""


class DeltaDispatcher:
    """Where the deltas of one model's requests go, and what has yet to go there.

    Whoever gets deltas makes text of them, on another thread, and needs the interpreter for that. The engine thread
    needs it as much between two steps, and not while one is computed. So what a step brought is held until the next is
    about to be: nothing waits for it then, and it is late by the time that it takes to plan a step.
    """

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}
        """Of each request that is here, by its id."""
        self._held: list[TokenDelta] = []

    def hold(self, deltas: list[TokenDelta]) -> None:
        """Keep what a step brought until `release`."""
        self._held += deltas

    def release(self) -> None:
        """Hand each sink what is held for it, in one call."""
        if self._held:
            held, self._held = self._held, []
            self.deliver(held)

    def deliver(self, deltas: list[TokenDelta]) -> None:
        """Hand each sink its share, in one call. The last delta of a request takes it from here."""
        shares: dict[Sink, list[TokenDelta]] = {}
        for delta in deltas:
            sink = self.sinks[delta.request_id]
            share = shares.get(sink)
            if share is None:
                shares[sink] = [delta]
            else:
                share.append(delta)
            if delta.finish_reason is not None:
                del self.sinks[delta.request_id]
        for sink, share in shares.items():
            sink(share)
