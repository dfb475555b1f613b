"""Compiles grammar specs to matchers over one model's vocabulary."""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from llguidance import LLMatcher, LLTokenizer

from engine.errors import EngineError
from engine.grammar import sandbox_program
from engine.grammar.error_messages import message_for_author
from engine.grammar.grammar_cache import GrammarCache
from engine.grammar.matcher import Bitmask, GrammarFailed, GrammarMatcher
from engine.grammar.sandbox import CheckedGrammar, CompileSandbox, SandboxExited
from engine.grammar.sandbox_pool import SandboxPool, StartSandbox
from engine.grammar.spec import GrammarKind, GrammarRefused, GrammarSpec
from engine.grammar.tenant_queues import TenantQueues
from engine.grammar.unsupported_schema import unsupported_keyword
from engine.grammar.vocabulary import LibraryVocabulary

COMPILE_SECONDS = 5.0
"""Timeout of one compilation, in seconds. Grammars in practical use take milliseconds."""

MAX_CONCURRENT = 2
"""Grammars compiled at a time. With two, one that runs into its timeout does not block all others."""

MAX_WAITING = 64
"""Grammars of one tenant that may be queued. Ordinary ones take about a second together."""

MAX_CACHE_BYTES = 256 << 20
"""Memory bound of the grammar cache of each model, in bytes."""


class CompiledGrammar:
    """A grammar compiled for a vocabulary; creates matchers. Safe to use from several threads.

    `size_bytes`: memory of the compiled grammar.
    """

    def __init__(self, matcher: LLMatcher, size_bytes: int) -> None:
        self._pristine = matcher
        self.size_bytes = size_bytes

    def matcher(self) -> GrammarMatcher:
        """A new matcher at the start of the text."""
        return _LibraryMatcher(self._pristine.deep_copy())


@dataclass(eq=False, slots=True)
class _Job:
    """A grammar to compile. It is queued for each tenant that asks for it, and compiled once."""

    spec: GrammarSpec
    outcome: Future[CompiledGrammar] = field(default_factory=Future)
    tenants: set[str] = field(default_factory=set)
    started: bool = False


class GrammarCompiler:
    """Compiles grammars for one model off the calling thread. Each grammar is compiled in a sandbox process first; only
    one that stayed within its limits there is compiled in this process, on a pool thread without the GIL.

    Tenants take turns: see `TenantQueues`. Recent results and refusals are cached. Processes and threads start with the
    first grammar.
    """

    def __init__(
        self,
        vocabulary: Callable[[], LibraryVocabulary],
        *,
        seconds: float = COMPILE_SECONDS,
        cached_bytes: int = MAX_CACHE_BYTES,
        executor: Executor | None = None,
        start_sandbox: StartSandbox = CompileSandbox,
    ) -> None:
        """`vocabulary` is called once, with the first grammar. `seconds` is the timeout of one compilation,
        `cached_bytes` the memory bound of the cache. `executor` has `MAX_CONCURRENT` threads and is closed with the
        compiler."""
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._cache = GrammarCache(cached_bytes)
        self._jobs: dict[Future[CompiledGrammar], _Job] = {}
        """Jobs that have not finished."""
        self._queues: TenantQueues[_Job] = TenantQueues(MAX_WAITING)
        self._sandboxes = SandboxPool(seconds, start_sandbox)
        self._opened: tuple[LibraryVocabulary, LLTokenizer] | None = None
        self._opening = threading.Lock()
        self._executor = executor or ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="turnpike-grammar")
        self._closed = False

    @property
    def cached_bytes(self) -> int:
        """Memory of the cached grammars, in bytes."""
        return self._cache.total_bytes

    def compile(self, spec: GrammarSpec, tenant: str = "") -> "Future[CompiledGrammar]":
        """The compiled grammar, from the cache where possible. The future may be shared by several callers, so none of
        them may cancel it.

        Raises:
            QueueFull: too many grammars of the tenant are queued.
        Raises, from the result:
            GrammarRefused: the grammar cannot be enforced.
            SandboxFailed: no sandbox process can be started.
        """
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
            known = self._cache.find(spec)
            job = _Job(spec) if known is None else self._jobs.get(known)
            if job is not None and not job.started and tenant not in job.tenants:
                self._queues.add(tenant, job)
                job.tenants.add(tenant)
            if job is None:
                assert known is not None
                return known
            if known is None:
                self._jobs[job.outcome] = job
                self._cache.put(spec, job.outcome)
            started = self._start_jobs()
        self._submit(started)
        return job.outcome

    def close(self) -> None:
        """Stop the processes and threads, and cancel queued compilations. Idempotent."""
        with self._lock:
            self._closed = True
            waiting = self._queues.clear()
        for job in waiting:
            job.outcome.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._sandboxes.close()

    def _start_jobs(self) -> list[tuple[str, _Job]]:
        """The jobs whose turn it is, marked as started. Called with the lock held."""
        started: list[tuple[str, _Job]] = []
        while self._queues.running < MAX_CONCURRENT and (turn := self._queues.start()) is not None:
            tenant, job = turn
            if job.started:
                self._queues.end(tenant)  # it was started in another tenant's turn
            else:
                job.started = True
                started.append(turn)
        return started

    def _submit(self, started: Sequence[tuple[str, _Job]]) -> None:
        """Hand jobs to the executor. Called without the lock, since an executor may run a job inside `submit`."""
        for tenant, job in started:
            try:
                submitted = self._executor.submit(self._run, tenant, job)
            except RuntimeError:  # the executor is closed
                job.outcome.cancel()
            else:
                submitted.add_done_callback(partial(_give_up_with, job.outcome))

    def _run(self, tenant: str, job: _Job) -> None:
        """Compile a grammar and start the jobs that follow it."""
        compiled: CompiledGrammar | None = None
        error: BaseException | None = None
        is_wanted = job.outcome.set_running_or_notify_cancel()
        try:
            compiled = self._compile(job.spec) if is_wanted else None
        except BaseException as raised:
            error = raised
        with self._lock:
            self._queues.end(tenant)
            del self._jobs[job.outcome]
            if compiled is not None:
                self._cache.record_size(job.spec, job.outcome, compiled.size_bytes)
            started = [] if self._closed else self._start_jobs()
        if compiled is not None:
            job.outcome.set_result(compiled)
        elif is_wanted:
            job.outcome.set_exception(error)
        self._submit(started)

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        if spec.kind is GrammarKind.JSON_SCHEMA and (keyword := unsupported_keyword(json.loads(spec.source))):
            raise GrammarRefused(f'unsupported keyword: "{keyword}" above the number of "required" properties')
        vocabulary, tokenizer = self._open()
        checked = self._check_in_sandbox(spec, vocabulary)
        matcher = LLMatcher(tokenizer, checked.grammar, log_level=0, limits=sandbox_program.limits())
        fault = sandbox_program.fault_of(matcher)
        if fault is not None:
            raise GrammarRefused(message_for_author(fault))
        return CompiledGrammar(matcher, checked.size_bytes)

    def _check_in_sandbox(self, spec: GrammarSpec, vocabulary: LibraryVocabulary) -> CheckedGrammar:
        while True:
            with self._sandboxes.borrow(vocabulary) as process:
                try:
                    return process.check(spec)
                except SandboxExited:
                    continue  # the process exited when idle: take another one

    def _open(self) -> tuple[LibraryVocabulary, LLTokenizer]:
        with self._opening:
            if self._opened is None:
                vocabulary = self._vocabulary()
                eos_token_ids = list(vocabulary.eos_token_ids)
                tokenizer = sandbox_program.open_tokenizer(
                    vocabulary.tokenizer_json, vocabulary.vocab_size, eos_token_ids
                )
                self._opened = vocabulary, tokenizer
            return self._opened


def _give_up_with(outcome: Future[CompiledGrammar], submitted: Future[None]) -> None:
    """Cancel the waiters of a job that the executor cancelled."""
    if submitted.cancelled():
        outcome.cancel()


class _LibraryMatcher:
    """A `GrammarMatcher` over llguidance's `LLMatcher`."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self.taken = 0

    def accept(self, tokens: Sequence[int]) -> int:
        accepted = self._matcher.try_consume_tokens(list(tokens))
        self.taken += accepted
        return accepted

    def rollback(self, tokens: int) -> None:
        if tokens:
            self._matcher.rollback(tokens)
            self.taken -= tokens

    def fill_bitmask(self, bitmask: Bitmask) -> None:
        self._matcher.unsafe_compute_mask_ptr(bitmask.ctypes.data, bitmask.nbytes)
        if self._matcher.is_error():
            raise GrammarFailed(self._matcher.get_error())
