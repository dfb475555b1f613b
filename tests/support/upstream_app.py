"""The application over a fake engine and an upstream, with settings of a test."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.generation.health import is_ready
from gateway.telemetry.health import HealthCollector
from gateway.telemetry.metrics import Metrics
from gateway.upstreams.fleet import Fleet
from gateway.upstreams.metrics import UpstreamCollector
from gateway.upstreams.model import UpstreamModel
from gateway.upstreams.opening import open_upstreams
from tests.support.fake_engine import FakeEngine
from tests.support.fake_upstream import FakeUpstream
from tests.support.services import services_with

BIG = {"model": "big", "messages": [{"role": "user", "content": "hi"}]}
KEY_THERE = "sk-there"


@dataclass
class UpstreamApp:
    """`stated`: further settings of the upstream; `settings`: of the gateway."""

    folder: Path
    upstream: FakeUpstream
    engine: FakeEngine | None
    authenticator: Any
    services: dict[str, Any]
    stated: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    model: UpstreamModel = field(init=False)

    def build(self) -> Starlette:
        url = self.stated.pop("url", None) or self.upstream.url
        stated = {"url": url, "model": "there", "api_key": KEY_THERE, "probe_every_s": 3600} | self.stated
        if self.engine is not None:
            self.engine.stats = dict  # it counts nothing
        models = {} if self.engine is None else dict.fromkeys(self.engine.models, "unused")
        settings = Settings(data_dir=self.folder, models=models, upstreams={"big": stated}, **self.settings)
        upstreams = open_upstreams(settings)
        (self.model,) = upstreams
        fleet = Fleet(self.engine, upstreams)
        metrics = Metrics(fleet.stats)
        metrics.registry.register(UpstreamCollector(upstreams))
        made = services_with(
            self.folder, fleet, self.authenticator, metrics=metrics, upstreams=upstreams, **self.services
        )
        metrics.registry.register(HealthCollector(lambda: is_ready(fleet, made.journal), lambda: fleet.health))
        return create_app(settings, made)
