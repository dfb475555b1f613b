"""Publishes the cached prefix blocks of all models of a worker to the clients that ask."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from engine.errors import EngineError
from engine.memory.prefix_journal import PrefixJournal
from engine.runtime.core import EngineCore
from engine.workers.messages import Prefixes
from engine.workers.prefix_events import PUBLISH_SECONDS, PrefixPublisher


class PrefixPublishers:
    """One `PrefixPublisher` for each model. The engine thread records changes; all else is done here, on one event
    loop."""

    def __init__(self, core: EngineCore, models: Iterable[str]) -> None:
        self._core = core
        epoch = secrets.randbits(62)
        self._publishers: Mapping[str, PrefixPublisher] = {name: PrefixPublisher(name, epoch) for name in models}
        self._beginning: set[str] = set()
        """Models whose hashes the engine thread was asked for."""

    def watch(self, model: str, client: object, send: Callable[[Prefixes], object]) -> None:
        """As `PrefixPublisher.watch`."""
        self._publishers[model].watch(client, send)

    def unwatch(self, client: object) -> None:
        """The client has gone. Idempotent."""
        for publisher in self._publishers.values():
            publisher.unwatch(client)

    async def run(self) -> None:
        """Publish until this is cancelled or the engine ends."""
        while self._core.alive:
            for model, publisher in self._publishers.items():
                if publisher.must_begin and publisher.watched:
                    self._begin(model, publisher)
                else:
                    publisher.publish()
            await asyncio.sleep(PUBLISH_SECONDS)

    def _begin(self, model: str, publisher: PrefixPublisher) -> None:
        if model in self._beginning:
            return
        self._beginning.add(model)
        loop, journal = asyncio.get_running_loop(), PrefixJournal()

        def begin(hashes: list[bytes]) -> None:
            self._beginning.discard(model)
            publisher.begin(hashes, journal)

        def on_hashes(hashes: list[bytes]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(begin, hashes)

        with suppress(EngineError):  # the connections end with the engine
            self._core.record_prefixes(model, journal, on_hashes)
