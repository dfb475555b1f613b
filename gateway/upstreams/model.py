"""One upstream model: what the pipeline reads of a served model, its calls, and its health."""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from engine.request import ServiceClass
from engine.runtime.engine_call import EngineCall
from engine.runtime.model_details import ModelDetails
from engine.runtime.reservation import Reservation
from engine.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from engine.scheduling.stats import SchedulerStats
from gateway.config.upstreams import StatedUpstream
from gateway.generation.remote_prompt import RemoteText
from gateway.upstreams.breaker import BreakerState, UpstreamBreaker
from gateway.upstreams.calls import CallContext, EmbeddedAnswer, GeneratedAnswer
from gateway.upstreams.connection import UpstreamConnection
from gateway.upstreams.errors import UpstreamUnavailable, unavailable
from gateway.upstreams.load import UpstreamLoad, UpstreamWait
from gateway.upstreams.stream import UpstreamStream

DEFAULT_WINDOW = 32_768
"""Tokens, of a server that does not say."""

_ANY_ID = 2**31
"""Vocabulary of a model whose tokenizer is not known."""
_RUNNING_USAGE = frozenset(("vllm", "turnpike"))
"""Values of `owned_by` of servers that report the usage in each chunk."""
_WINDOWS = ("max_model_len", "context_window", "context_length")
"""Members of `/models` that state the context window."""

_log = logging.getLogger(__name__)


class UpstreamModel:
    """A `ServedModel` that another server runs. For one event loop, on which `start` begins its health checks.

    `classes`: the service classes, from the highest. `secret`: the server's API key.
    """

    def __init__(
        self,
        name: str,
        stated: StatedUpstream,
        text: RemoteText,
        classes: Sequence[str],
        *,
        secret: str | None = None,
        sampling_defaults: SamplingDefaults = NO_DEFAULTS,
    ) -> None:
        self.name = name
        self.text = text
        self.created = int(time.time())
        self.sampling_defaults = sampling_defaults
        self.details: ModelDetails | None = None
        self.remote_name = stated.model or name
        self.version = "upstream-" + hashlib.sha256(f"{stated.url} {self.remote_name}".encode()).hexdigest()[:16]
        self.breaker = UpstreamBreaker(time.monotonic)
        self.connection = UpstreamConnection(name, stated, secret, self.breaker)
        self.load = UpstreamLoad(stated.max_concurrent, len(classes), time.monotonic)
        self.estimated_total = 0
        """Answers whose usage is an estimate."""
        self._stated = stated
        self._rank_of = {each: rank for rank, each in enumerate(classes)}
        self._running_usage = stated.running_usage == "on"
        self._takes_salt = False
        self._reported_window: int | None = None
        self._paused_until_s = 0.0
        self._refuses_key = False
        self._prober: asyncio.Task[None] | None = None

    @property
    def max_model_len(self) -> int:
        """The context window in tokens: that of the settings, else what the server states."""
        return self._stated.max_model_len or self._reported_window or DEFAULT_WINDOW

    @property
    def windows(self) -> Mapping[str, int]:
        """The same for each class."""
        return dict.fromkeys(self._rank_of, self.max_model_len)

    @property
    def vocab_size(self) -> int:
        """Bound on token ids."""
        return _ANY_ID if self.text.counting is None else self.text.counting.tokenizer.vocab_size

    @property
    def health(self) -> str:
        """`up`, `down` while nothing is sent to the server, or `misconfigured`: it refuses this gateway."""
        if self.breaker.state is BreakerState.OPEN:
            return "down"
        return "misconfigured" if self._refuses_key else "up"

    @property
    def queue_depth(self) -> int:
        """Requests that wait."""
        return self.load.queue_depth

    def start(self) -> None:
        """Begin the health checks on the running event loop."""
        self._prober = asyncio.create_task(self._probe_forever())

    async def aclose(self) -> None:
        """End them, and close all connections."""
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.wait([self._prober])
        await self.connection.aclose()

    def predicted_wait(self, service_class: ServiceClass) -> UpstreamWait:
        """The wait of a request of this class that is submitted now."""
        return self.load.predicted_wait(self._rank_of[service_class.name])

    def reserve(self, service_class: ServiceClass) -> Reservation:
        """A place in the queue.

        Raises:
            UpstreamUnavailable: nothing is sent to the server now.
        """
        if (retry_after_s := self._retry_after_s()) is not None:
            raise unavailable(retry_after_s)
        return self.load.reserve(self._rank_of[service_class.name])

    def submit(self, call: EngineCall) -> UpstreamStream:
        """As `EngineClient.submit`."""
        context = CallContext(
            self.connection,
            self.remote_name,
            self._running_usage,
            _cache_salt(call.tenant) if self._takes_salt else None,
            self.text.count,
            self.load.on_first_token,
            self._on_estimated,
        )
        answers: list[GeneratedAnswer | EmbeddedAnswer] = []
        first = 0
        for given in call.prompts:
            kind = GeneratedAnswer if given.params.pooling is None else EmbeddedAnswer
            answers.append(kind(context, given, first))
            first += given.params.n
        rank = self._rank_of[call.service_class.name]
        return UpstreamStream(answers, lambda: self._slot(rank, call.tenant), call.reservation, call.on_abort)

    def stats(self) -> SchedulerStats:
        """The part of a scheduler's state that is known of another server: requests of this gateway."""
        return SchedulerStats(
            running=self.load.in_flight,
            waiting=self.load.waiting,
            paused=0,
            free_blocks=0,
            num_blocks=0,
            steps_total=0,
            scheduled_tokens_total=0,
            cached_tokens_total=0,
            preemptions_total=0,
            pauses_total=0,
            paused_ns_total=0,
            failures_total=0,
            wasted_rows_total=0,
        )

    @asynccontextmanager
    async def _slot(self, rank: int, tenant: str) -> AsyncIterator[None]:
        """A place among the concurrent requests. While the breaker is half-open, one request passes.

        Raises:
            UpstreamUnavailable: the breaker has opened.
        """
        async with self.load.slot(rank, tenant):
            if (retry_after_s := self._retry_after_s()) is not None:
                raise unavailable(retry_after_s)
            is_trial = self.breaker.begin()
            try:
                yield
            except UpstreamUnavailable as error:
                if error.status == 503 and error.retry_after_s is not None:
                    self._paused_until_s = time.monotonic() + error.retry_after_s
                raise
            finally:
                if is_trial:
                    self.breaker.end_trial()

    def _retry_after_s(self) -> float | None:
        """When a request may be sent; None: now."""
        paused_s = self._paused_until_s - time.monotonic()
        if paused_s > 0:
            return paused_s
        return self.breaker.retry_after_s

    def _on_estimated(self) -> None:
        if not self.estimated_total:
            _log.warning(
                "%s: its server reports no usage, so answers are billed by an estimate; "
                "set upstreams.%s.tokenizer to count them",
                self.name,
                self.name,
            )
        self.estimated_total += 1

    async def _probe_forever(self) -> None:
        while True:
            await self._probe()
            await asyncio.sleep(self._stated.probe_every_s)

    async def _probe(self) -> None:
        """Ask for the server's models: whether it answers, the context window, and what it is."""
        before = self.health
        try:
            status, body = await self.connection.get_models()
        except UpstreamUnavailable:
            self.breaker.on_probe(succeeded=False)
        else:
            self.breaker.on_probe(succeeded=status < 500)
            self._refuses_key = status in (401, 403)
            if status == 200:
                self._take_card(body)
        if self.health != before:
            level = logging.INFO if self.health == "up" else logging.WARNING
            _log.log(level, "upstream %s is %s", self.name, self.health)

    def _take_card(self, body: Any) -> None:
        items = body.get("data") if isinstance(body, Mapping) else None
        cards = [each for each in items if isinstance(each, Mapping)] if isinstance(items, list) else []
        card = next((each for each in cards if each.get("id") == self.remote_name), None)
        if card is None:
            return
        window = next((value for key in _WINDOWS if isinstance(value := card.get(key), int)), None)
        if window is not None and window >= 2:
            self._reported_window = window
        self._takes_salt = card.get("owned_by") == "vllm"
        if self._stated.running_usage == "auto":
            self._running_usage = card.get("owned_by") in _RUNNING_USAGE


def _cache_salt(tenant: str) -> str:
    """vLLM's `cache_salt`: tenants share no cached prefix, whose time would tell one what another has asked."""
    return hashlib.sha256(f"turnpike {tenant}".encode()).hexdigest()[:32]
