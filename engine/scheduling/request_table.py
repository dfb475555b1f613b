"""The requests of one model and their states: the one owner of every change of a request's phase."""

from collections.abc import Iterator, Mapping, Sequence

from engine.memory.kv_cache import KVCacheManager
from engine.request import Phase, Request, ServiceClass
from engine.scheduling.adapter_queue import AdapterQueue
from engine.scheduling.class_activity import ClassActivity
from engine.scheduling.fair_queue import FairQueue
from engine.scheduling.in_flight import DropReason, InFlightSteps
from engine.scheduling.ledger import Ledger
from engine.scheduling.order import RankedQueue
from engine.scheduling.service_window import ServiceWindow
from engine.scheduling.slots import SequenceSlots
from engine.scheduling.wait import LoadSums
from engine.scheduling.waiting_ages import WaitingAges


class RequestTable:
    """Each request waits in the queue of its class, waits for its adapter, for blocks of the second pool or for the
    prompt of the request that it forks, runs, or is paused because its client does not read.

    `add`, `start`, `preempt`, `pause`, `resume`, `park`, `unpark`, `await_blocks`, `end_fetch`, `remove` and
    `release_forks` are the only changes of state. They keep slots, blocks, leases of adapters, load sums and in-flight
    rows consistent. The queues are public for reading only.
    """

    def __init__(
        self,
        classes: Sequence[ServiceClass],
        max_running: int,
        cache: KVCacheManager,
        ledger: Ledger,
        class_activity: ClassActivity,
        adapter_slots: int = 0,
    ) -> None:
        self.adapters = AdapterQueue(adapter_slots)
        self._cache = cache
        self._ledger = ledger
        self._activity = class_activity
        self._requests: dict[str, Request] = {}
        self._forks: dict[str, list[Request]] = {}
        """Requests that wait for their parent's prompt, by the parent's id."""
        self._fetching: dict[int, dict[str, Request]] = {}
        """Requests that wait for blocks of the second pool, by the number of the fetch and the request's id."""
        self._fetch_of: dict[str, int] = {}
        self.ranks = range(len(classes))
        self.in_flight = InFlightSteps()
        self.running = RankedQueue(len(classes))
        self.waiting = [FairQueue(service_class.weight) for service_class in classes]
        self.loads = [LoadSums() for _ in classes]
        reserved = [int(service_class.reserved_fraction * max_running) for service_class in classes]
        self.slots = SequenceSlots(max_running, reserved)
        self.service = [ServiceWindow() for _ in classes]
        self.waiting_ages = [WaitingAges() for _ in classes]
        self.cached_tokens_total = 0
        self.paused = 0
        """Requests that are paused now."""
        self.pauses_total = 0
        self.paused_ns_total = 0
        """Total time of the pauses that have ended."""
        self.now_ns = 0
        """The time at which the current step is planned, as passed to `Scheduler.schedule`."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def get(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def available_slots(self, rank: int) -> int:
        """Slots that a class may take in the current step. Can be negative."""
        inactive = [above for above in range(rank) if not self._activity.is_active(above, self.now_ns)]
        return self.slots.available(rank, inactive)

    def add(self, request: Request) -> None:
        """Add a new request to its queue. A fork whose parent has not computed the prompt yet waits outside of it, as
        does a request whose adapter is not resident."""
        self._requests[request.id] = request
        self._await_turn(request)

    def start(self, request: Request) -> None:
        """Give a slot to a waiting request that has its blocks, and run it."""
        self.waiting[request.rank].remove(request)
        self.running.add(request)
        self._end_waiting(request)
        load = self.loads[request.rank]
        load.add_running(len(request.tokens), request.computed, request.max_tokens)
        request.phase = Phase.RUNNING
        request.slot = self.slots.take(request.rank)
        request.fork_of = None  # not a fork any more; the reference would keep its parent alive
        if request.admissions == 0:
            self.cached_tokens_total += request.cached_tokens
            request.queue_ns = self.now_ns - request.arrived_ns - request.paused_ns
        request.admissions += 1

    def allocate_more(self, request: Request) -> None:
        """Allocate the next part of a request's blocks. Where that fails, the request waits again, in its old place."""
        before = request.computed
        if not self._cache.allocate_more(request):
            self.preempt(request, cause=request.rank)
            return
        self.loads[request.rank].advance(request.computed - before, 0)
        if request.admissions == 1:
            self.cached_tokens_total += request.computed - before

    def preempt(self, request: Request, *, cause: int, drop_reason: DropReason = DropReason.PREEMPTED) -> None:
        """Free a running request's slot and blocks for a request of rank `cause`. It keeps its place in the order."""
        self._stop(request, cause, drop_reason, preempted=True)
        request.fetch_floor = 0
        request.preemptions += 1
        request.waiting_since_ns = self.now_ns
        request.phase = Phase.WAITING
        self._begin_waiting(request)
        self.waiting[request.rank].add(request)
        self._ledger.record_preemption(request.rank, cause)

    def pause(self, request: Request, now_ns: int) -> None:
        """Pause a waiting or running request: it holds nothing and is not in a queue until it is resumed.

        Its blocks are free but stay cached, so it gets back those that were not reused. It costs other requests no
        capacity, and free blocks of paused requests are used before any preemption. Forks that wait for its prompt go
        to their queues, as the pause may take any time.
        """
        if request.phase is Phase.RUNNING:
            self._stop(request, request.rank, DropReason.PAUSED)
        else:
            self._end_waiting(request)
            self._leave_queue(request)
        self.adapters.give_back(request)
        request.fetch_floor = 0
        request.phase = Phase.PAUSED
        request.pauses += 1
        request.paused_since_ns = now_ns
        self.paused += 1
        self.pauses_total += 1
        self.release_forks(request)

    def resume(self, request: Request, now_ns: int) -> None:
        """Return a paused request to its queue, in its old place."""
        self._end_pause(request, now_ns)
        request.waiting_since_ns = now_ns
        request.phase = Phase.WAITING
        self._await_turn(request)

    def park(self, request: Request) -> None:
        """Take the lease of its adapter from a request that waits in a queue; it waits for another one."""
        assert request.phase is Phase.WAITING, f"{request.id} does not wait"
        self._leave_queue(request)
        self.adapters.give_back(request)
        self.adapters.park(request, self.now_ns)
        self.release_forks(request)

    def unpark(self) -> None:
        """Move the requests whose adapter is resident to their queues, in their old places."""
        for request in self.adapters.released():
            self._join_queue(request)

    @property
    def awaiting_blocks(self) -> int:
        """Requests that wait for blocks of the second pool."""
        return len(self._fetch_of)

    def awaits_blocks(self, request: Request) -> bool:
        """Whether the request waits for blocks of the second pool."""
        return request.id in self._fetch_of

    def await_blocks(self, request: Request, fetch: int) -> None:
        """Let a request of a queue wait for this fetch, outside of the queues."""
        self.waiting[request.rank].remove(request)
        self._fetching.setdefault(fetch, {})[request.id] = request
        self._fetch_of[request.id] = fetch

    def end_fetch(self, fetch: int) -> None:
        """Return the requests that wait for this fetch to their queues, in their old places."""
        for request in self._fetching.pop(fetch, {}).values():
            del self._fetch_of[request.id]
            self.waiting[request.rank].add(request)

    def rewind(self, request: Request) -> None:
        """Undo a running request's oldest row in flight, which failed, and the later ones: they are planned again."""
        self.in_flight.drop(request, DropReason.SURPLUS)
        request.scheduled = request.computed

    def remove(self, request: Request, drop_reason: DropReason, *, forget: bool = False, now_ns: int = 0) -> None:
        """Finish a request in any state.

        `drop_reason`: why its rows in flight are dropped. `forget`: the KV that it computed must not be reused.
        `now_ns`: the end of its pause, if it is paused.
        """
        self.in_flight.drop(request, drop_reason)
        load = self.loads[request.rank]
        if request.phase is Phase.RUNNING:
            load.remove_running(len(request.tokens), request.computed, request.max_tokens)
            load.observe_answer(request.output_tokens)
            self.running.remove(request)
            self._give_back_slot(request)
            self._give_back_blocks(request, forget=forget)
        elif request.phase is Phase.PAUSED:
            self._end_pause(request, now_ns)
        else:
            self._end_waiting(request)
            self._leave_queue(request)
        self.adapters.give_back(request)
        request.phase = Phase.FINISHED
        del self._requests[request.id]
        self.release_forks(request)

    def release_forks(self, parent: Request) -> None:
        """Move the forks that wait for the parent's prompt to their queues: it is computed, or never will be."""
        for request in self._forks.pop(parent.id, ()):
            self.waiting[request.rank].add(request)

    def charge(self, services: Sequence[Mapping[str, int]]) -> None:
        """Charge the service of the current step: one mapping of tenant to service per rank."""
        for queue, window, served in zip(self.waiting, self.service, services, strict=True):
            queue.charge(served)
            window.add(self.now_ns, served)

    def check(self) -> None:
        """Assert the invariants that hold between any two calls."""
        running = list(self.running)
        waiting = [request for queue in self.waiting for request in queue]
        forks = [request for children in self._forks.values() for request in children]
        self.running.check()
        for rank, queue in enumerate(self.waiting):
            queue.check()
            assert all(request.rank == rank for request in queue), "a request waits in another class"
        paused = [request for request in self if request.phase is Phase.PAUSED]
        assert len(paused) == self.paused, "those that are paused are miscounted"
        parked = list(self.adapters)
        fetching = [request for waits in self._fetching.values() for request in waits.values()]
        assert sorted(self._fetch_of) == sorted(request.id for request in fetching), "those that fetch are miscounted"
        here = [*running, *waiting, *forks, *parked, *fetching, *paused]
        assert sorted(request.id for request in here) == sorted(self._requests), "a request is lost, or twice here"
        for request in running:
            assert request.phase is Phase.RUNNING
            assert request.computed < len(request.tokens), f"{request.id} has nothing to compute"
        self.adapters.check([*running, *waiting, *forks, *fetching])
        for request in (*waiting, *forks, *parked, *fetching):
            assert request.phase is Phase.WAITING
        for request in (*waiting, *forks, *parked, *fetching, *paused):
            assert not request.is_allocating, f"{request.id} waits while its blocks are being allocated"
            assert request.slot is None, f"{request.id} waits with a slot"
            assert request.computed == request.scheduled == 0, f"{request.id} waits with computed tokens"
            assert not request.block_table, f"{request.id} waits with blocks"
        for request in forks:
            assert self._awaits_prompt(request), f"{request.id} waits for a prompt that is there, or never comes"
        for request in (*waiting, *forks):
            if (parent := request.fork_of) is not None and not request.output_tokens:
                prompt = parent.tokens[: parent.prompt_tokens]
                assert request.tokens == prompt, f"{request.id} and {parent.id} differ in their prompt"
        self.slots.check(
            [[request.slot for request in queue if request.slot is not None] for queue in self.running.ranks]
        )
        self.in_flight.check(running)
        self._cache.check(here)
        for rank, load in enumerate(self.loads):
            load.check()
            self.service[rank].check()
            self.waiting_ages[rank].check()
            assert load.load().running_requests == len(self.running.ranks[rank]), "the running load is miscounted"

    def _awaits_prompt(self, request: Request) -> bool:
        """Whether the parent is going to compute the KV of the prompt and has not yet. False where it left, was never
        added, or is paused."""
        parent = request.fork_of
        if parent is None or self._requests.get(parent.id) is not parent or parent.phase is Phase.PAUSED:
            return False
        return max(parent.computed, parent.high_water_tokens) < parent.prompt_tokens

    def _await_turn(self, request: Request) -> None:
        self._begin_waiting(request)
        if self.adapters.take(request):
            self._join_queue(request)

    def _join_queue(self, request: Request) -> None:
        """Queue a request that has the lease of its adapter."""
        parent = request.fork_of
        if parent is not None and self._awaits_prompt(request):
            self._forks.setdefault(parent.id, []).append(request)
        else:
            self.waiting[request.rank].add(request)

    def _begin_waiting(self, request: Request) -> None:
        rank = request.rank
        self.loads[rank].add_waiting(len(request.tokens), request.max_tokens)
        self.service[rank].add_waiting(request.tenant)
        self.waiting_ages[rank].add(request)

    def _end_waiting(self, request: Request) -> None:
        rank = request.rank
        self.loads[rank].remove_waiting(len(request.tokens), request.max_tokens)
        self.service[rank].remove_waiting(request.tenant)
        self.waiting_ages[rank].remove(request)

    def _leave_queue(self, request: Request) -> None:
        """Remove a request from its class's queue, from the forks that wait for the same prompt, or from those that
        wait for blocks. One that waits for its adapter is in none of them."""
        if self.adapters.is_parked(request):
            return
        fetch = self._fetch_of.pop(request.id, None)
        if fetch is not None:
            del self._fetching[fetch][request.id]
            if not self._fetching[fetch]:
                del self._fetching[fetch]
            return
        parent = request.fork_of
        if parent is not None and request in self._forks.get(parent.id, ()):
            self._forks[parent.id].remove(request)
        else:
            self.waiting[request.rank].remove(request)

    def _stop(self, request: Request, cause: int, drop_reason: DropReason, *, preempted: bool = False) -> None:
        """Free the slot and the blocks of a running request. Recomputation is charged to the rank `cause`.

        Its rows in flight are dropped, including a token that is being sampled. No client has seen that token.
        Sampling it again gives the same one, and costs little, as the request recomputes its last token in any case.
        """
        self.in_flight.drop(request, drop_reason)
        self.running.remove(request)
        self._give_back_slot(request)
        self.loads[request.rank].remove_running(len(request.tokens), request.computed, request.max_tokens)
        if request.computed >= request.high_water_tokens:
            request.high_water_tokens = request.computed
            request.preempted_by = cause
        self._give_back_blocks(request, preempted=preempted)
        if request.output_tokens == 0:
            request.prompt_logprobs.clear()  # they are recomputed

    def _end_pause(self, request: Request, now_ns: int) -> None:
        paused_ns = max(0, now_ns - request.paused_since_ns)
        request.paused_ns += paused_ns
        self.paused_ns_total += paused_ns
        self.paused -= 1

    def _give_back_slot(self, request: Request) -> None:
        assert request.slot is not None, f"{request.id} runs without a slot"
        self.slots.give_back(request.slot, request.rank)
        request.slot = None

    def _give_back_blocks(self, request: Request, *, forget: bool = False, preempted: bool = False) -> None:
        request.reached_tokens = max(request.reached_tokens, request.scheduled)
        if self._cache.tier is not None and not forget:
            self._cache.tier.record_released(request, self.now_ns, preempted=preempted)
        self._cache.release(request, forget=forget)
