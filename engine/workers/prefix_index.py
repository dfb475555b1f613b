"""A client's knowledge of the prefix cache of a worker: what the worker says, and what was sent to it."""

from collections import Counter, OrderedDict
from collections.abc import Container, Iterable, Sequence

from engine.config import BLOCK_TOKENS
from engine.memory.hashing import block_hash
from engine.memory.request_hashes import extras_of
from engine.runtime.submission import Submission
from engine.workers.messages import Prefixes
from engine.workers.prefix_events import short_hash, unpack_hashes

CHUNK_TOKENS = 64
"""Prefixes that were sent are known in steps of this many tokens: four KV blocks."""
MAX_HASHED_BLOCKS = 1024
"""Blocks of a prompt that are looked up: about 2 ms where all are cached. The rest of a longer one is estimated by what
was sent."""


class PrefixIndex:
    """The prefixes of the last `capacity_tokens` tokens that were sent, in chunks. Least recently used ones go first.

    It knows what one client has sent, and nothing of evictions: an estimate, for a worker that does not say what it
    holds. Prefixes of different salts or adapters are different. Not thread-safe.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = max(capacity_tokens // CHUNK_TOKENS, 1)
        self._chunks: OrderedDict[int, None] = OrderedDict()

    def cached_tokens(self, keys: Sequence[int]) -> int:
        """The length of the longest known prefix, of a prompt with these `prefix_keys`."""
        return CHUNK_TOKENS * _leading(keys, self._chunks)

    def add(self, keys: Sequence[int]) -> None:
        """A prompt with these keys was sent."""
        for key in reversed(keys):  # the beginning is the most recently used: without it the rest is useless
            self._chunks[key] = None
            self._chunks.move_to_end(key)
        while len(self._chunks) > self._capacity:
            self._chunks.popitem(last=False)


class UnansweredPrefixes:
    """The prefixes of requests that were sent and have no token yet: they will be cached, and the worker cannot say so
    yet. Not thread-safe."""

    def __init__(self) -> None:
        self.cached_tokens_of: Counter[str] = Counter()
        """By class: tokens of their prompts that are in the worker's cache."""
        self._sent: dict[str, tuple[Sequence[int], str, int]] = {}
        """By request id: keys, class and cached tokens."""
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._sent)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sent

    def add(self, request_id: str, keys: Sequence[int], service_class: str = "", cached_tokens: int = 0) -> None:
        """A request whose prompt has these `prefix_keys` is sent, and `cached_tokens` of it are cached."""
        self.drop(request_id)
        self._sent[request_id] = keys, service_class, cached_tokens
        self._counts.update(keys)
        self.cached_tokens_of[service_class] += cached_tokens

    def drop(self, request_id: str) -> None:
        """It has a token, or is over. Idempotent."""
        if request_id not in self._sent:
            return
        keys, service_class, cached_tokens = self._sent.pop(request_id)
        self.cached_tokens_of[service_class] -= cached_tokens
        for key in keys:
            if self._counts[key] == 1:
                del self._counts[key]
            else:
                self._counts[key] -= 1

    def retain(self, requests: Container[str]) -> None:
        """Drop those that are not among the requests."""
        for request_id in [each for each in self._sent if each not in requests]:
            self.drop(request_id)

    def cached_tokens(self, keys: Sequence[int]) -> int:
        """As `PrefixIndex.cached_tokens`."""
        return CHUNK_TOKENS * _leading(keys, self._counts)

    def check(self) -> None:
        """Assert the invariants."""
        sent = self._sent.values()
        assert self._counts == Counter(key for keys, _, _ in sent for key in keys), "prefixes are miscounted"
        for name, count in self.cached_tokens_of.items():
            assert count == sum(cached for _, each, cached in sent if each == name), "cached tokens are miscounted"


class HeldBlocks:
    """The short hashes of the blocks that a worker says it holds. Not thread-safe.

    `is_complete`: it has said so of all blocks, as of `PUBLISH_SECONDS` ago; else it is sending them, or does not.
    """

    def __init__(self) -> None:
        self.hashes: set[int] = set()
        self.is_complete = False
        self._next = (0, 0)
        """The epoch and the number of the next message."""
        self._broken: int | None = None
        """The epoch in which a message was lost: the worker was asked for another."""

    def receive(self, message: Prefixes) -> bool:
        """Take in a message. False: one before it is lost, and the worker is to begin again."""
        if message.number and message.epoch == self._broken:
            return True  # on its way when the worker was asked for another epoch
        if not message.number or (message.epoch, message.number) != self._next:
            self._clear()
        if message.number and (message.epoch, message.number) != self._next:
            self._broken = message.epoch
            return False
        self.hashes.update(unpack_hashes(message.stored))
        self.hashes.difference_update(unpack_hashes(message.evicted))
        self.is_complete |= message.complete
        self._next = message.epoch, message.number + 1
        return True

    def _clear(self) -> None:
        """Nothing is known."""
        self.hashes = set()
        self.is_complete = False


class PromptPrefix:
    """The prefixes of a prompt, as the indexes know them. Hashes are computed up to the first block that no worker
    holds."""

    def __init__(self, submission: Submission) -> None:
        adapter = None if submission.adapter is None else submission.adapter.digest
        self.keys = prefix_keys(submission.token_ids, submission.salt, adapter)
        self._submission = submission
        self._extras = extras_of(submission.salt, adapter)
        self._hashes: list[bytes] = []
        self._short: list[int] = []

    def held_tokens(self, held: HeldBlocks) -> int:
        """The length of the longest prefix that a worker holds."""
        count = 0
        most = min(len(self._submission.token_ids) // BLOCK_TOKENS, MAX_HASHED_BLOCKS)
        while count < most and self._short_hash(count) in held.hashes:
            count += 1
        return BLOCK_TOKENS * count

    @property
    def max_held_tokens(self) -> int:
        """The maximum of `held_tokens`."""
        return BLOCK_TOKENS * MAX_HASHED_BLOCKS

    def _short_hash(self, block: int) -> int:
        if block == len(self._hashes):
            tokens = self._submission.token_ids[block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS]
            parent, extras = (self._hashes[-1], ()) if block else (None, self._extras)
            self._hashes.append(block_hash(parent, tokens, extras))
            self._short.append(short_hash(self._hashes[-1]))
        return self._short[block]


class KnownPrefixes:
    """All that a client knows of the prefix cache of one model on one worker. Not thread-safe."""

    def __init__(self, capacity_tokens: int) -> None:
        """`capacity_tokens`: of the worker's KV memory."""
        self.held = HeldBlocks()
        self.sent = PrefixIndex(capacity_tokens)
        self.unanswered = UnansweredPrefixes()

    def cached_tokens(self, prompt: PromptPrefix) -> int:
        """The length of the longest prefix of a prompt that is cached, or will be when the prompt is computed."""
        held_tokens = prompt.held_tokens(self.held)
        cached_tokens = max(held_tokens, self.unanswered.cached_tokens(prompt.keys))
        if self.held.is_complete and held_tokens < prompt.max_held_tokens:
            return cached_tokens
        return max(cached_tokens, self.sent.cached_tokens(prompt.keys))

    def add(self, request_ids: Iterable[str], prompt: PromptPrefix, service_class: str, cached_tokens: int) -> None:
        """The choices of this prompt are sent, of which `cached_tokens` are cached. Only the first one needs them."""
        self.sent.add(prompt.keys)
        for number, request_id in enumerate(request_ids):
            self.unanswered.add(request_id, prompt.keys, service_class, 0 if number else cached_tokens)


def prefix_keys(token_ids: Sequence[int], salt: bytes, adapter: str | None) -> list[int]:
    """A key for each prefix of a prompt that ends with a chunk, each from the one before it."""
    key, keys = hash((salt, adapter)), []
    for start in range(0, len(token_ids) - CHUNK_TOKENS + 1, CHUNK_TOKENS):
        key = hash((key, *token_ids[start : start + CHUNK_TOKENS]))
        keys.append(key)
    return keys


def _leading(keys: Sequence[int], known: "OrderedDict[int, None] | Counter[int]") -> int:
    return next((count for count, key in enumerate(keys) if key not in known), len(keys))
