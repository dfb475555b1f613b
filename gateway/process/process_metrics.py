"""`/metrics` of several gateway processes: whichever gets the scrape answers for all.

Each process serves its own metrics on a Unix socket in the data directory, `gateway-N.sock`. A scrape gathers them
with the label `process`: the counters of a process that was started again begin at zero, as those of a restarted
instance do, where a sum over processes would fall and look like a restart of all. Metrics of the shared engine have no
such label: they are in a scrape once, as the process that answers has them.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.common.unix_socket import bind, short_path
from gateway.telemetry.engine_collector import EngineCollector
from gateway.telemetry.merged_metrics import gauge, merge, process_label
from gateway.upstreams.fleet import LocalEngine

ANSWER_SECONDS = 2.0
"""Time that a process has to send its metrics; without them its `turnpike_gateway_process_up` is 0."""


class ProcessMetrics:
    """The metrics of process `index` of `count`, and through it those of all. Used on one event loop."""

    def __init__(self, data_dir: Path, index: int, count: int, own: Callable[[], bytes], engine: LocalEngine | None):
        """`own`: renders the metrics of this process alone. `engine`: of all processes."""
        self._paths = [data_dir / f"gateway-{each}.sock" for each in range(count)]
        self._index = index
        self._own = own
        self._engine = CollectorRegistry()
        if engine is not None:
            self._engine.register(EngineCollector(engine.stats))
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Serve the other processes.

        Raises:
            OSError: the socket cannot be made.
        """
        self._server = await asyncio.start_unix_server(self._answer, sock=bind(self._paths[self._index]))

    async def aclose(self) -> None:
        """Serve them no longer. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._paths[self._index].unlink(missing_ok=True)
            self._server = None

    async def render(self) -> bytes:
        """The body of `/metrics`."""
        found = await asyncio.gather(*(self._of(index) for index in range(len(self._paths))))
        up = {process_label(index): float(each is not None) for index, each in enumerate(found)}
        own = [(process_label(index), each) for index, each in enumerate(found) if each is not None]
        ups = gauge("turnpike_gateway_process_up", "1 if the gateway process has sent its metrics", up)
        return merge([*own, ("", generate_latest(self._engine)), ("", ups)])

    async def _of(self, index: int) -> bytes | None:
        if index == self._index:
            return self._own()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                with short_path(self._paths[index]) as address:
                    reader, writer = await asyncio.open_unix_connection(address)
                try:
                    return await reader.read() or None
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return None

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(self._own())
            await writer.drain()
        writer.close()


class StartsCollector(Collector):
    """How often this process was started."""

    def __init__(self, starts_total: int) -> None:
        self._starts_total = starts_total

    def describe(self) -> Sequence[Metric]:
        """No names: they are the same for every process."""
        return ()

    def collect(self) -> Sequence[Metric]:
        """The current metrics."""
        return [CounterMetricFamily("turnpike_gateway_process_starts", "Starts of the process", self._starts_total)]
