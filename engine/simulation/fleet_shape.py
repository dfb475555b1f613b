"""The sizes of a simulated fleet, its step times, its clock, and its results."""

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from engine.config import SchedulerConfig
from engine.request import PREMIUM, STANDARD, ServiceClass
from engine.scheduling.cost import H200_LLAMA_8B, CostCoefficients, StepCostModel, step_work
from engine.simulation.device import NOISE

MODEL = "m"
MAX_MODEL_LEN = 16_384
DEVICE = CostCoefficients(
    *[
        4 * value
        for value in (
            H200_LLAMA_8B.step_ns,
            H200_LLAMA_8B.token_ns,
            H200_LLAMA_8B.context_token_ns,
            H200_LLAMA_8B.pair_ns,
        )
    ]
)
"""Llama 3.1 8B on a device with a quarter of an H200's rates: 16 ms a step, 10,000 tokens of prefill a second."""


class StepTimes(Protocol):
    """The device of a replica."""

    def step_ns(self, starts: Sequence[int], tokens: Sequence[int]) -> float:
        """The time of a step, in nanoseconds, without noise. A row computes `tokens[i]` tokens from position
        `starts[i]` on."""
        ...


class ReferenceTimes:
    """The step times of `DEVICE`."""

    def __init__(self) -> None:
        self._model = StepCostModel.from_coefficients(DEVICE)

    def step_ns(self, starts: Sequence[int], tokens: Sequence[int]) -> float:
        return self._model.predict_ns(step_work(starts, tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShape:
    """`speeds`: step times of each replica relative to the device's. `num_blocks`: of each replica's KV memory.

    `report_ns`: the age of reports of the load, and of prefix events when they arrive. `events`: replicas say which
    prefix blocks they hold; else gateways go by what they have sent. `request_ns`: time of a request outside the
    engine, before and after it together. `chunk_tokens`: None for as many as a step has.

    `max_wait_ns`: by class, the predicted wait above which a gateway refuses a request; a class without one is never
    refused. `windows`: of a model whose KV is in groups, the attention windows of those after the first.

    `device`: None for `ReferenceTimes`. `prior`: the coefficients with which the replicas' own cost models begin; they
    learn from the steps. `noise`: factors of step times, drawn with equal probability; empty for a uniform
    distribution.
    """

    speeds: tuple[float, ...]
    gateways: int = 1
    num_blocks: int = 4096
    report_ns: int = 2_000_000
    network_ns: int = 200_000
    request_ns: int = 0
    max_running: int = 64
    step_tokens: int = 1024
    chunk_tokens: int | None = None
    events: bool = True
    classes: tuple[ServiceClass, ...] = (PREMIUM, STANDARD)
    max_wait_ns: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    max_model_len: int = MAX_MODEL_LEN
    windows: tuple[int | None, ...] = ()
    device: StepTimes | None = None
    prior: CostCoefficients = DEVICE
    noise: tuple[float, ...] = ()

    @property
    def scheduler(self) -> SchedulerConfig:
        """The config of each replica's scheduler."""
        return SchedulerConfig(
            max_running=self.max_running,
            step_tokens=self.step_tokens,
            chunk_tokens=self.chunk_tokens or self.step_tokens,
            classes=self.classes,
        )


UNIFORM_NOISE = (1 - NOISE, 1 + NOISE)


class Served(NamedTuple):
    """A request that has ended. Times are virtual: `ttft_ns` from its arrival at a gateway to its first token there,
    `token_ns` the mean from one token to the next. `preemptions`: how often it lost its blocks."""

    service_class: str
    replica: int
    at_ns: int
    ttft_ns: int
    token_ns: int
    prompt_tokens: int
    cached_tokens: int
    tenant: str = ""
    answer_tokens: int = 0
    preemptions: int = 0


class RefusedRequest(NamedTuple):
    """A request that a gateway has refused for its predicted wait, or that no replica can ever serve (`too_long`)."""

    service_class: str
    tenant: str
    at_ns: int
    too_long: bool = False


class EventQueue:
    """Callbacks in order of virtual time, and of scheduling where times are equal."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._numbers = itertools.count()
        self._events: list[tuple[int, int, Callable[[], None]]] = []

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ns + delay_ns, next(self._numbers), action))

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until no event is left, or `until` is true."""
        while self._events and not until():
            self.now_ns, _, action = heapq.heappop(self._events)
            action()
