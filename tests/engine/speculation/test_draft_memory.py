"""KV of a draft model: correct under any order of events, and never computed without need."""

import random
from collections.abc import Sequence
from hashlib import sha256

import pytest

from engine.config import BLOCK_TOKENS, MOST_DRAFTS, SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import Phase, Request, SamplingParams
from engine.scheduling import RowResult, Scheduler, StepResult
from engine.simulation import make_request
from engine.speculation.draft_memory import ORDINARY_TOKENS, DraftMemory
from tests.engine.scheduling.support import CLASSES

POISON, CLEARED = "never written", "cleared"
POSITIONS = 4096
FOREVER = SamplingParams(max_tokens=100_000, ignore_eos=True)

Written = str | tuple[int, ...]
"""Content of a position of a block: the KV of the last of these tokens, which depends on all before it."""


def continuation(tokens: Sequence[int], seed: int) -> int:
    """The token after these: one of three, so that different sequences often continue alike."""
    return sha256(repr((seed, *tokens)).encode()).digest()[0] % 3


class DraftDevice:
    """The draft model's KV memory, that knows of each position what was written there, and checks what is read."""

    def __init__(self, num_blocks: int, num_slots: int, right: float = 0.7, positions: int = POSITIONS) -> None:
        self.memory = DraftMemory(num_blocks, num_slots, positions)
        self.blocks: list[list[Written]] = [[POISON] * BLOCK_TOKENS for _ in range(num_blocks + num_slots)]
        self.right = right
        self.positions = positions
        self.computed = 0

    def propose(self, wants: Sequence[tuple[Request, int]], catch_up_tokens: int = 64) -> list[list[int]]:
        """Drafts for each want; those of a row that catches up are none."""
        plan = self.memory.plan(wants, catch_up_tokens)
        for source, target in plan.copies:
            self.blocks[target] = list(self.blocks[source])
        for block in plan.cleared:
            self.blocks[block] = [CLEARED] * BLOCK_TOKENS
        texts = [list(row.request.tokens[: row.start + row.tokens]) for row in plan.rows]
        for row, text in zip(plan.rows, texts, strict=True):
            for position in range(row.start, len(text)):
                self.write(row.block_table, text, position)
        self.computed += sum(row.tokens for row in plan.rows)
        for row, text in zip(plan.rows, texts, strict=True):
            self.read(row.block_table, text)
        drafts: list[list[int]] = [[] for _ in plan.rows]
        for step in range(max((row.depth for row in plan.rows), default=0)):
            for row, text, drawn in zip(plan.rows, texts, drafts, strict=True):
                if step >= row.depth:
                    continue
                if step:
                    text.append(drawn[-1])
                    self.write(row.block_table, text, len(text) - 1)
                    self.read(row.block_table, text)
                drawn.append(self.guess(text, row.request.seed))
        self.memory.commit(plan, drafts)
        proposed: list[list[int]] = [[] for _ in wants]
        for row, drawn in zip(plan.rows, drafts, strict=True):
            assert 0 <= len(drawn) <= min(wants[row.want][1], MOST_DRAFTS)
            proposed[row.want] = drawn
        return proposed

    def guess(self, text: Sequence[int], seed: int) -> int:
        token = continuation(text, seed)
        return token if random.Random(repr((text, seed))).random() < self.right else token + 1

    def write(self, table: Sequence[int], text: Sequence[int], position: int) -> None:
        assert position < self.positions
        self.blocks[table[position // BLOCK_TOKENS]][position % BLOCK_TOKENS] = tuple(text[: position + 1])

    def read(self, table: Sequence[int], text: Sequence[int]) -> None:
        """Attention of the last token: what lies before it is right, what lies behind it in its block is finite."""
        for position in range(len(text)):
            found = self.blocks[table[position // BLOCK_TOKENS]][position % BLOCK_TOKENS]
            assert found == tuple(text[: position + 1]), f"position {position} of {len(text)} holds something else"
        tail = self.blocks[table[(len(text) - 1) // BLOCK_TOKENS]]
        assert POISON not in tail, "a number that may be none is under the mask"


class World:
    """A scheduler whose requests continue as `continuation` says, together with a draft model."""

    def __init__(
        self,
        num_blocks: int = 64,
        max_running: int = 8,
        *,
        right: float = 0.7,
        prefix_cache: bool = True,
        positions: int = POSITIONS,
    ) -> None:
        self.cache = KVCacheManager(BlockPool(num_blocks), prefix_cache=prefix_cache)
        config = SchedulerConfig(max_running=max_running, step_tokens=64, chunk_tokens=64, classes=CLASSES)
        self.scheduler = Scheduler(config, self.cache, 512)
        self.draft = DraftDevice(num_blocks, max_running, right, positions)
        self.arrivals = 0

    def add(
        self,
        tokens: Sequence[int],
        max_tokens: int = 100_000,
        *,
        seed: int = 0,
        salt: bytes = b"",
        fork_of: Request | None = None,
    ) -> Request:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = make_request(
            f"r{self.arrivals}", tokens, arrival=self.arrivals, params=params, seed=seed, salt=salt, fork_of=fork_of
        )
        self.arrivals += 1
        self.scheduler.add(request)
        return request

    def ready(self) -> list[Request]:
        """Those that can have drafts: all their tokens but the last are computed."""
        return [each for each in self.scheduler.running if each.computed == len(each.tokens) - 1]

    def step(self, drafts: int = 0) -> None:
        """A step of the target. As many blocks as fit are taken for drafts, and given back."""
        plan = self.scheduler.schedule()
        if plan is None:
            return
        for row in plan.rows:
            self.cache.grow(row.request, row.start + row.tokens + drafts)
        results = [
            RowResult(token=continuation(row.request.tokens, row.request.seed) if row.samples else None)
            for row in plan.rows
        ]
        self.scheduler.commit(plan, StepResult(tuple(results)))
        for row in plan.rows:
            if row.request.phase is Phase.RUNNING:
                self.cache.trim(row.request)
        self.scheduler.check()

    def run_until_ready(self, request: Request) -> None:
        while request not in self.ready():
            self.step()

    def lag(self, request: Request) -> int:
        return self.draft.memory.lag(request)


def prompt(length: int, salt: int = 0) -> list[int]:
    return [10 + (7 * salt + position * position) % 89 for position in range(length)]


@pytest.mark.parametrize("seed", range(60))
def test_what_is_read_was_written_for_it(seed: int) -> None:
    """Any order of arrivals with common beginnings, forks, steps, proposals, preemptions and aborts; a small pool."""
    rng = random.Random(seed)
    world = World(rng.choice([14, 24, 64]), rng.choice([2, 5]), prefix_cache=rng.random() < 0.9)
    world.draft.right = rng.choice([0.3, 0.9, 1.0])
    proposed = 0
    for _ in range(250):
        requests = list(world.scheduler.running)
        event = rng.random()
        if event < 0.15 and world.arrivals < 40:
            head = prompt(16 * rng.randint(0, 4), rng.randint(0, 1))
            tokens = head + prompt(rng.choice([1, 9, 15, 16, 17, 33]), rng.randint(0, 1))
            salt = rng.choice([b"", b"", b"tenant"])
            parent = world.add(tokens, rng.choice([3, 30, 100]), seed=rng.randint(0, 2), salt=salt)
            for _ in range(rng.choice([0, 0, 0, 2])):
                world.add(tokens, 20, seed=rng.randint(3, 9), salt=salt, fork_of=parent)
        elif event < 0.19 and requests:
            world.scheduler.preempt(rng.choice(requests).id)
        elif event < 0.22 and requests:
            world.scheduler.abort(rng.choice(requests).id)
        elif event < 0.65:
            ready = [request for request in world.ready() if rng.random() < 0.8]
            rng.shuffle(ready)
            wants = [(request, rng.choice([1, 2, 4, 8, 16])) for request in ready]
            drafts = world.draft.propose(wants, rng.choice([16, 20, 64, 512]))
            proposed += sum(map(len, drafts))
            world.step(rng.randint(0, 16))
        else:
            world.step(rng.randint(0, 16))
    assert proposed > 100, "the draft model was hardly asked"


def test_drafts_that_come_true_are_not_computed_again() -> None:
    world = World(right=1.0)
    request = world.add(prompt(20))
    world.run_until_ready(request)
    assert world.lag(request) == 20  # the answer's first token is the last one
    drafts = world.draft.propose([(request, 4)])[0]
    assert world.draft.computed == 21
    for _ in range(5):
        world.step(4)
    assert request.tokens[21:25] == drafts
    assert world.lag(request) == 1  # the last draft was drawn and not computed
    world.draft.propose([(request, 4)])
    assert world.draft.computed == 21 + 2


def test_after_a_draft_that_does_not_come_true_one_token_is_to_be_computed() -> None:
    world = World(right=0.0)
    request = world.add(prompt(20))
    world.run_until_ready(request)
    for step in range(40):
        world.draft.propose([(request, 4)])
        assert world.draft.computed == 21 + step
        world.step(4)
        assert world.lag(request) == 0


@pytest.mark.parametrize("right", [0.0, 1.0])
@pytest.mark.parametrize("length", [15, 16, 17])
def test_full_depth_at_the_border_of_a_block(length: int, right: float) -> None:
    """Where the target has no block for drafts yet, they are drafted all the same."""
    world = World(right=right)
    request = world.add(prompt(length - 1))
    world.run_until_ready(request)
    assert len(request.tokens) == length
    for _ in range(20):
        assert len(world.draft.propose([(request, MOST_DRAFTS)])[0]) == MOST_DRAFTS
        world.step()


def test_a_prefix_that_the_draft_computed_is_hit_with_the_target() -> None:
    """The slot's previous request does not matter."""
    world = World()
    for salt in (0, 1, 2):
        first = world.add(prompt(50 - salt, salt), max_tokens=4)
        world.run_until_ready(first)
        world.draft.propose([(first, 2)])
        while world.scheduler.has_work:
            world.step()
        second = world.add(prompt(50 - salt, salt), max_tokens=4)
        world.run_until_ready(second)
        hit = (49 - salt) // BLOCK_TOKENS * BLOCK_TOKENS
        assert (second.cached_tokens, world.lag(second)) == (hit, 50 - salt - hit)
        world.scheduler.abort(second.id)


def test_nothing_is_computed_past_the_positions_of_the_draft_model() -> None:
    """`DraftDevice` checks where it writes."""
    world = World(right=0.0, positions=40)
    request = world.add(prompt(30))
    world.run_until_ready(request)
    lengths = []
    while len(request.tokens) < 50:
        lengths.append((len(request.tokens), len(world.draft.propose([(request, 4)])[0])))
        world.step()
    assert lengths == [(tokens, max(0, min(4, 41 - tokens))) for tokens in range(31, 50)]


def test_a_prefix_that_only_the_target_computed_is_caught_up() -> None:
    world = World()
    for _ in range(2):
        request = world.add(prompt(50), max_tokens=4)
        world.run_until_ready(request)
        while world.scheduler.has_work:
            world.step()
    request = world.add(prompt(50))
    world.run_until_ready(request)
    assert (request.cached_tokens, world.lag(request)) == (48, 50)
    assert world.draft.propose([(request, 2)])[0]


def test_after_a_preemption_the_whole_blocks_are_there_still() -> None:
    world = World(right=0.0)
    request = world.add(prompt(60))
    world.run_until_ready(request)
    world.draft.propose([(request, 2)])
    world.step()
    world.scheduler.preempt(request.id)
    world.run_until_ready(request)
    assert world.lag(request) == len(request.tokens) - 1 - 48


def test_blocks_that_others_filled_meanwhile_count_as_unknown() -> None:
    world = World(num_blocks=8, right=0.0)
    request = world.add(prompt(60))
    world.run_until_ready(request)
    world.draft.propose([(request, 2)])
    world.scheduler.abort(request.id)
    other = world.add(prompt(100, salt=3), max_tokens=2)
    world.run_until_ready(other)
    world.draft.propose([(other, 2)], catch_up_tokens=512)
    world.step()
    again = world.add(prompt(60))
    world.run_until_ready(again)
    assert world.lag(again) > 60 - 48, "some of its blocks were taken"
    assert world.draft.propose([(again, 2)])[0]


def test_forks_compute_their_common_prompt_once() -> None:
    world = World()
    parent = world.add(prompt(70))
    forks = [world.add(prompt(70), seed=seed, fork_of=parent) for seed in (1, 2, 3)]
    world.run_until_ready(parent)
    world.run_until_ready(forks[-1])
    wants = [(request, 2) for request in (parent, *forks)]
    drafts = world.draft.propose(wants, catch_up_tokens=512)
    assert [bool(each) for each in drafts] == [True, False, False, False], "the others wait for the common blocks"
    computed = world.draft.computed
    assert all(world.draft.propose(wants, catch_up_tokens=512))
    of_parent = 2  # a draft is not the request's token before the next step
    assert world.draft.computed - computed <= of_parent + sum(len(each.tokens) - 64 for each in forks)


def test_catching_up_is_bounded_and_ends() -> None:
    world = World()
    requests = [world.add(prompt(100, salt)) for salt in range(3)]
    for request in requests:
        world.run_until_ready(request)
    rounds, computed, drafted = 1, 0, []
    while not all(drafted := world.draft.propose([(request, 3) for request in requests], catch_up_tokens=40)):
        ordinary = ORDINARY_TOKENS * sum(map(bool, drafted))
        assert world.draft.computed - computed <= 40 + ordinary
        computed = world.draft.computed
        world.step()
        rounds += 1
    assert 300 // 40 < rounds < 20
