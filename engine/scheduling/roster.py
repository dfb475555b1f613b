"""Who is here and where each stands: the owner of all that changes about the requests of one model."""

from collections.abc import Iterator, Mapping, Sequence

from engine.memory.kv_cache import KVCacheManager
from engine.request import Phase, Request, ServiceClass
from engine.scheduling.fair_queue import FairQueue
from engine.scheduling.flight import Fate, Flights
from engine.scheduling.ledger import Ledger
from engine.scheduling.order import RankedQueue
from engine.scheduling.presence import Presence
from engine.scheduling.service_window import ServiceWindow
from engine.scheduling.slots import SequenceSlots
from engine.scheduling.wait import LoadSums
from engine.scheduling.waiting_ages import WaitingAges


class Roster:
    """Each request waits in the queue of its class, or beside it for the prompt that it forks, or runs, or is paused:
    nobody reads it, and it waits for nothing.

    The moves between these, `add`, `start`, `preempt`, `pause`, `resume`, `remove` and `release_forks`, are the only
    way to change that, and keep slots, blocks, the sums of the load and what is in flight in step. The queues are there
    for others to read.
    """

    def __init__(
        self,
        classes: Sequence[ServiceClass],
        max_running: int,
        cache: KVCacheManager,
        ledger: Ledger,
        presence: Presence,
    ) -> None:
        self._cache = cache
        self._ledger = ledger
        self._presence = presence
        self._requests: dict[str, Request] = {}
        self._forks: dict[str, list[Request]] = {}
        """Requests that wait for the prompt of the one they fork, by the id of that one."""
        self.ranks = range(len(classes))
        self.flights = Flights()
        self.running = RankedQueue(len(classes))
        self.waiting = [FairQueue(each.weight) for each in classes]
        self.loads = [LoadSums() for _ in classes]
        self.slots = SequenceSlots(max_running, [int(each.reserved_fraction * max_running) for each in classes])
        self.service = [ServiceWindow() for _ in classes]
        self.waiting_ages = [WaitingAges() for _ in classes]
        self.cached_tokens_total = 0
        self.paused = 0
        """How many are, now."""
        self.pauses_total = 0
        self.paused_ns_total = 0
        """Of the pauses that have ended."""
        self.now_ns = 0
        """When the step under way was planned. The scheduler's caller says so."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def get(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def slot_room(self, rank: int) -> int:
        """How many slots a class may take in the step under way. Can be negative."""
        absent = [above for above in range(rank) if not self._presence.is_about(above, self.now_ns)]
        return self.slots.room(rank, absent)

    def add(self, request: Request) -> None:
        """A new request waits for its turn; a fork whose parent has yet to compute the prompt, beside the queue."""
        self._requests[request.id] = request
        self._await_turn(request)

    def start(self, request: Request) -> None:
        """A waiting request that has its blocks takes a slot and runs."""
        self.waiting[request.rank].remove(request)
        self.running.add(request)
        self._end_waiting(request)
        load = self.loads[request.rank]
        load.add_running(len(request.tokens), request.computed, request.max_tokens)
        request.phase = Phase.RUNNING
        request.slot = self.slots.take(request.rank)
        request.fork_of = None  # from now on it is a request like any other, and need not keep its parent alive
        if request.admissions == 0:
            self.cached_tokens_total += request.cached_tokens
            request.queue_ns = self.now_ns - request.arrived_ns - request.paused_ns
        request.admissions += 1

    def board(self, request: Request) -> None:
        """One that boards gets more of its blocks. Where it cannot, it waits again, in its place, for those of all."""
        before = request.computed
        if not self._cache.board(request):
            self.preempt(request, cause=request.rank)
            return
        self.loads[request.rank].advance(request.computed - before, 0)
        if request.admissions == 1:
            self.cached_tokens_total += request.computed - before

    def preempt(self, request: Request, *, cause: int, fate: Fate = Fate.PREEMPTED) -> None:
        """Take away a running request's slot and blocks, for the sake of a rank; it keeps its place."""
        self._stop(request, cause, fate)
        request.preemptions += 1
        request.waiting_since_ns = self.now_ns
        request.phase = Phase.WAITING
        self._begin_waiting(request)
        self.waiting[request.rank].add(request)
        self._ledger.preempted(request.rank, cause)

    def pause(self, request: Request, now_ns: int) -> None:
        """Nobody reads a request that waits or runs: it holds nothing and waits for nothing until it is resumed.

        Its blocks are free and cached, and so it has those that nobody has needed again when it goes on: it costs the
        others no room, and nobody is preempted where its blocks will do. Those that wait for its prompt do not know how
        long that may take, and take their turns.
        """
        if request.phase is Phase.RUNNING:
            self._stop(request, request.rank, Fate.PAUSED)
        else:
            self._end_waiting(request)
            self._leave_queue(request)
        request.phase = Phase.PAUSED
        request.pauses += 1
        request.paused_since_ns = now_ns
        self.paused += 1
        self.pauses_total += 1
        self.release_forks(request)

    def resume(self, request: Request, now_ns: int) -> None:
        """A paused request is read again: it waits, in its place."""
        self._end_pause(request, now_ns)
        request.waiting_since_ns = now_ns
        request.phase = Phase.WAITING
        self._await_turn(request)

    def take_back(self, request: Request) -> None:
        """Nothing came of the oldest row in flight of a running request, and so nothing will of the next."""
        self.flights.drop(request, Fate.SURPLUS)
        request.scheduled = request.computed

    def remove(self, request: Request, fate: Fate, *, forget: bool = False, now_ns: int = 0) -> None:
        """The one way out, from wherever it stands. `fate` is that of what is in flight of it.

        `forget`: nothing that it computed is to be reused. `now_ns` ends its pause, where it is paused.
        """
        self.flights.drop(request, fate)
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
        request.phase = Phase.FINISHED
        del self._requests[request.id]
        self.release_forks(request)

    def release_forks(self, parent: Request) -> None:
        """The parent's prompt is computed, or never will be: those that waited for it take their turns."""
        for request in self._forks.pop(parent.id, ()):
            self.waiting[request.rank].add(request)

    def charge(self, services: Sequence[Mapping[str, int]]) -> None:
        """Book the service that the tenants of each rank received in the step under way."""
        for queue, window, served in zip(self.waiting, self.service, services, strict=True):
            queue.charge(served)
            window.add(self.now_ns, served)

    def check(self) -> None:
        """State what holds between any two moves."""
        running = list(self.running)
        waiting = [request for queue in self.waiting for request in queue]
        forks = [request for children in self._forks.values() for request in children]
        self.running.check()
        for rank, queue in enumerate(self.waiting):
            queue.check()
            assert all(request.rank == rank for request in queue), "a request waits in another class"
        paused = [request for request in self if request.phase is Phase.PAUSED]
        assert len(paused) == self.paused, "those that are paused are miscounted"
        here = [*running, *waiting, *forks, *paused]
        assert sorted(request.id for request in here) == sorted(self._requests), "a request is lost, or twice here"
        for request in running:
            assert request.phase is Phase.RUNNING
            assert request.computed < len(request.tokens), f"{request.id} has nothing to compute"
        for request in (*waiting, *forks):
            assert request.phase is Phase.WAITING
        for request in (*waiting, *forks, *paused):
            assert not request.boards, f"{request.id} waits and boards"
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
        self.flights.check(running)
        self._cache.check(here)
        for rank, load in enumerate(self.loads):
            load.check()
            self.service[rank].check()
            self.waiting_ages[rank].check()
            assert load.load().running_requests == len(self.running.ranks[rank]), "the running load is miscounted"

    def _awaits_prompt(self, request: Request) -> bool:
        """Will the KV of the parent's prompt be there soon, but is not yet? Not if it left, never came, or pauses."""
        parent = request.fork_of
        if parent is None or self._requests.get(parent.id) is not parent or parent.phase is Phase.PAUSED:
            return False
        return max(parent.computed, parent.high_water_tokens) < parent.prompt_tokens

    def _await_turn(self, request: Request) -> None:
        self._begin_waiting(request)
        parent = request.fork_of
        if parent is not None and self._awaits_prompt(request):
            self._forks.setdefault(parent.id, []).append(request)
        else:
            self.waiting[request.rank].add(request)

    def _begin_waiting(self, request: Request) -> None:
        rank = request.rank
        self.loads[rank].add_waiting(len(request.tokens), request.max_tokens)
        self.service[rank].wait(request.tenant)
        self.waiting_ages[rank].add(request)

    def _end_waiting(self, request: Request) -> None:
        rank = request.rank
        self.loads[rank].remove_waiting(len(request.tokens), request.max_tokens)
        self.service[rank].leave(request.tenant)
        self.waiting_ages[rank].remove(request)

    def _leave_queue(self, request: Request) -> None:
        """The one of its class, or that of those who wait for the same prompt."""
        parent = request.fork_of
        if parent is not None and request in self._forks.get(parent.id, ()):
            self._forks[parent.id].remove(request)
        else:
            self.waiting[request.rank].remove(request)

    def _stop(self, request: Request, cause: int, fate: Fate) -> None:
        """A running request gives back its slot and its blocks. What it computes of its tokens again is put down to the
        rank that was the cause.

        What is in flight of it is dropped, a token that is being drawn included. Nobody has seen that; it will be the
        same when it is drawn again, and costs little, as the request computes its last token again in any case.
        """
        self.flights.drop(request, fate)
        self.running.remove(request)
        self._give_back_slot(request)
        self.loads[request.rank].remove_running(len(request.tokens), request.computed, request.max_tokens)
        if request.computed >= request.high_water_tokens:
            request.high_water_tokens = request.computed
            request.preempted_by = cause
        self._give_back_blocks(request)
        if request.output_tokens == 0:
            request.prompt_logprobs.clear()  # they are computed anew

    def _end_pause(self, request: Request, now_ns: int) -> None:
        paused_ns = max(0, now_ns - request.paused_since_ns)
        request.paused_ns += paused_ns
        self.paused_ns_total += paused_ns
        self.paused -= 1

    def _give_back_slot(self, request: Request) -> None:
        assert request.slot is not None, f"{request.id} runs without a slot"
        self.slots.give_back(request.slot, request.rank)
        request.slot = None

    def _give_back_blocks(self, request: Request, *, forget: bool = False) -> None:
        request.reached_tokens = max(request.reached_tokens, request.scheduled)
        self._cache.release(request, forget=forget)
