"""Metrics as the program words them, and a server that shows them."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from engine.runtime.core import EngineHealth
from engine.scheduling.stats import DraftStats
from gateway.telemetry.health import HealthCollector
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.model_stats import ModelStats
from gateway.tools.top.sample import Between, Sample
from gateway.tools.top.view import View, view_of
from tests.support.scheduler_stats import class_stats, model_stats

NAMES = ("large", "small")
CLASSES = ("premium", "standard")


@dataclass
class Served:
    """A gateway's metrics. What `stats` says of the engine may be changed at any time."""

    stats: Mapping[str, ModelStats] = field(
        default_factory=lambda: {name: model_stats(*map(class_stats, CLASSES)) for name in NAMES}
    )
    ready: bool = True

    def __post_init__(self) -> None:
        self.metrics = Metrics(lambda: self.stats)
        health = EngineHealth(alive=True, stuck_steps_total=0, step_age_seconds=0.0)
        self.metrics.registry.register(HealthCollector(lambda: self.ready, lambda: health))

    @property
    def text(self) -> str:
        return self.metrics.render().decode()

    def answer(self, model: str, tier: str, *, ttft_s: float = 0.1, tpot_s: float = 0.01, tokens: int = 10) -> None:
        """Record an answered request with `tokens` output tokens, after a prompt of twice that length."""
        labels = ("chat", model, tier)
        self.metrics.request_duration.labels(*labels, "").observe(1.0)
        self.metrics.time_to_first_token.labels(*labels).observe(ttft_s)
        self.metrics.time_per_output_token.labels(*labels).observe(tpot_s)
        self.metrics.inter_token.labels(*labels).observe(tpot_s)
        self.metrics.token_usage.labels(*labels, "input").observe(2 * tokens)
        self.metrics.token_usage.labels(*labels, "output").observe(tokens)


@contextmanager
def serving(served: Served, port: int) -> Iterator[str]:
    """Serves its /metrics; a request is answered before each scrape."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/metrics"
            served.answer("large", "premium")
            body = served.text.encode()
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def parsed(served: Served, at_s: float) -> Sample:
    return Sample.parse(served.text, at_s)


def busy() -> View:
    """Two seconds in which something of everything has happened."""
    served = Served()
    before = parsed(served, 10.0)
    for _ in range(4):
        served.answer("large", "premium", ttft_s=0.05, tpot_s=0.02)
    served.metrics.sheds.labels("large", "premium", "overloaded").inc(6)
    premium = class_stats(
        "premium",
        running=3,
        waiting=2,
        queue_age_ns=1_500_000_000,
        held_blocks=30,
        reserved_blocks=10,
        cached_blocks=5,
        preemptions_suffered=2,
    )
    drafts = (DraftStats("ngram", "premium", 2.5, 80, 60, 0.9), DraftStats("ngram", "standard", 1.0, 20, 5, 0.2))
    served.stats = {
        "large": model_stats(
            premium,
            class_stats("standard"),
            drafts=drafts,
            running=3,
            waiting=2,
            paused=1,
            free_blocks=70,
            steps_total=50,
            scheduled_tokens_total=300,
            cached_tokens_total=100,
            preemptions_total=2,
        ),
        "small": model_stats(*map(class_stats, CLASSES)),
    }
    after = parsed(served, 12.0)
    return view_of(Between(before, after), Between(before, after))
