"""What waits of a model's requests are predicted, between two steps of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.request import Request
from engine.scheduling.hindsight import Hindsight
from engine.scheduling.pace import Pace
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.wait import QueueSnapshot, predict_drain_ns, predict_first_token_ns

FRESH_NS = 50_000_000
"""So long a load is as good as the next, while nobody waits and as many run. Prompts that run get shorter meanwhile."""


@dataclass(frozen=True, slots=True)
class PredictedWait:
    """Nanoseconds until a new request's first token, and until all that wait now in its class have theirs."""

    first_token_ns: int
    drain_ns: int


class Forecast:
    """The scheduler's load after its last step, with what has been submitted since, and what follows from it.

    Of the steps that the load takes: each as long as the cost model says, stretched by the pace of the latest, and all
    of it corrected by how fast the class's queue has moved of late. `submitted` and `stepped` take turns;
    `predicted_wait` and `queue_depth` may be asked at any time.
    """

    def __init__(self, scheduler: Scheduler, pace: Pace) -> None:
        self._scheduler = scheduler
        self._pace = pace
        self._load = scheduler.snapshot()
        self._running = len(scheduler.running)
        self._stepped_ns: int | None = None
        """When the load was taken, where nobody waited then and nobody has come since."""
        self._hindsights = [Hindsight(rank, self._first_token_ns) for rank in scheduler.ranks]

    @property
    def queue_depth(self) -> int:
        """Requests that wait, of all classes."""
        return sum(each.waiting_requests for each in self._load.classes)

    def predicted_wait(self, service_class: str, prompt_tokens: int) -> PredictedWait:
        """Of a request that came now. O(classes)."""
        load, rank = self._load, self._scheduler.rank_of(service_class)
        factor = self._hindsights[rank].factor
        drain_ns = self._pace.stretch * predict_drain_ns(load, rank, self._scheduler.cost_model)
        return PredictedWait(int(factor * self._first_token_ns(load, rank, prompt_tokens)), int(factor * drain_ns))

    def submitted(self, request: Request, now_ns: int) -> None:
        """Whoever comes next waits behind this one. The choices of a request share its prompt: they wait once."""
        rank = self._scheduler.rank_of(request.service_class.name)
        self._hindsights[rank].submitted(self._load, request.prompt_tokens, now_ns)
        self._load = self._load.with_waiting(rank, request.prompt_tokens)
        self._stepped_ns = None

    def is_fresh(self, now_ns: int) -> bool:
        """Is there no need to be told of a step? Asked on the engine thread, after each."""
        taken_ns, scheduler = self._stepped_ns, self._scheduler
        return (
            taken_ns is not None
            and now_ns - taken_ns < FRESH_NS
            and self._running == len(scheduler.running)
            and not scheduler.waiting
        )

    def stepped(self, load: QueueSnapshot, unseen: Iterable[Request], now_ns: int) -> None:
        """A step has moved the queues. `unseen` were submitted, and the scheduler does not have them yet."""
        for request in unseen:
            load = load.with_waiting(self._scheduler.rank_of(request.service_class.name), request.prompt_tokens)
        self._load = load
        self._running = sum(each.running_requests for each in load.classes)
        self._stepped_ns = None if self.queue_depth else now_ns
        for hindsight in self._hindsights:
            hindsight.moved(load, now_ns)

    def _first_token_ns(self, load: QueueSnapshot, rank: int, prompt_tokens: int) -> int:
        """Without what hindsight makes of it."""
        cost_model = self._scheduler.cost_model
        return int(self._pace.stretch * predict_first_token_ns(load, rank, prompt_tokens, cost_model))
