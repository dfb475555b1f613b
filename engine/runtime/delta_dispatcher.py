"""Passes token deltas from the engine thread to the callers, in one call for each caller and step."""

from collections.abc import Callable

from engine.request import TokenDelta

Sink = Callable[[list[TokenDelta]], None]
"""Receives the deltas of one step for the requests submitted with it. Called on the engine thread, or on the watchdog's
thread if the engine thread hangs. Must not block."""


class DeltaDispatcher:
    """Holds the deltas of one model's requests and delivers them to their sinks.

    Sinks convert deltas to text on another thread, which needs the GIL. The engine thread needs the GIL between two
    steps, but not during one. Deltas are therefore buffered until just before the next step launches: delivery costs no
    step time, and adds the planning time of one step to the latency of the deltas.
    """

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}
        """Sink of each live request, by request id."""
        self._held: list[TokenDelta] = []

    def hold(self, deltas: list[TokenDelta]) -> None:
        """Keep the deltas of a step until `release`."""
        self._held += deltas

    def release(self) -> None:
        """Deliver the held deltas, with one call for each sink."""
        if self._held:
            held, self._held = self._held, []
            self.deliver(held)

    def deliver(self, deltas: list[TokenDelta]) -> None:
        """Deliver deltas now, with one call for each sink. The last delta of a request removes its sink."""
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
