"""Probes and metrics, without a key: /healthz and its other name /health, /readyz, /metrics."""

from collections.abc import Sequence
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from gateway.generation.engine_client import EngineClient
from gateway.generation.services import AllMetrics, Upstream
from gateway.http.drain import Drain
from gateway.http.responses import send_body
from gateway.metering.journal.journal import Journal
from gateway.telemetry.metrics import CONTENT_TYPE, Metrics


class Healthz:
    """An ASGI endpoint: 200 while the event loop runs. `upstreams` are named with their health, which does not change
    the status."""

    def __init__(self, upstreams: Sequence[Upstream] = ()) -> None:
        self._upstreams = upstreams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body: dict[str, Any] = {"status": "ok"}
        if self._upstreams:
            body["upstreams"] = {upstream.name: upstream.health for upstream in self._upstreams}
        await send_body(send, 200, orjson.dumps(body))


def is_ready(engine: EngineClient, journal: Journal) -> bool:
    """Whether requests can be served and billed."""
    return engine.ready and journal.trouble is None


class Readyz:
    """An ASGI endpoint: 200 if requests should be sent here, else 503."""

    def __init__(self, engine: EngineClient, journal: Journal, drain: Drain) -> None:
        self._engine = engine
        self._journal = journal
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._drain.begun:
            await send_body(send, 503, b'{"status":"draining"}', {"retry-after": "5"})
        elif is_ready(self._engine, self._journal):
            await send_body(send, 200, b'{"status":"ready"}')
        else:
            await send_body(send, 503, b'{"status":"not ready"}', {"retry-after": "5"})


class Scrape:
    """An ASGI endpoint: metrics in Prometheus' text format, of this process or of all on the port."""

    def __init__(self, metrics: Metrics, all_metrics: AllMetrics | None = None) -> None:
        self._metrics = metrics
        self._all_metrics = all_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = self._metrics.render() if self._all_metrics is None else await self._all_metrics.render()
        await send_body(send, 200, body, content_type=CONTENT_TYPE)
