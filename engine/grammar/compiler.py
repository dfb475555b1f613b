"""From what a caller asks for to matchers over one model's vocabulary."""

import json
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from llguidance import LLMatcher, LLTokenizer

from engine.grammar import worker
from engine.grammar.matcher import GrammarFailed, GrammarMatcher, Words
from engine.grammar.refusals import reason_of
from engine.grammar.spec import GrammarKind, GrammarRefused, GrammarSpec
from engine.grammar.trial import TrialProcess
from engine.grammar.unsound import unsound_keyword
from engine.grammar.vocabulary import LibraryVocabulary
from engine.request import EngineError

COMPILE_SECONDS = 5.0
"""What a grammar may take to compile. Those in use take milliseconds."""

_AT_ONCE = 2
"""Grammars that are compiled at a time: one that takes its whole time holds up no other."""

_KEPT = 256
"""Grammars, and refusals, that are remembered."""


class CompiledGrammar:
    """A grammar over a vocabulary. It deals out matchers; it is no matcher itself. Safe to use from threads."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._pristine = matcher

    def matcher(self) -> GrammarMatcher:
        """One that stands at the beginning."""
        return _LibraryMatcher(self._pristine.deep_copy())


class GrammarCompiler:
    """Compiles grammars for one model, away from whoever asks: each is tried out in another process first, and only
    what has proved harmless there is compiled here, on a thread, without the interpreter's lock.

    What was compiled or refused lately is remembered. Processes and threads come with the first grammar.
    """

    def __init__(self, vocabulary: Callable[[], LibraryVocabulary], *, seconds: float = COMPILE_SECONDS) -> None:
        self._vocabulary = vocabulary
        self._seconds = seconds
        self._lock = threading.Lock()
        self._kept: OrderedDict[GrammarSpec, Future[CompiledGrammar]] = OrderedDict()
        self._idle: deque[TrialProcess] = deque()
        self._busy: set[TrialProcess] = set()
        self._opened: tuple[LibraryVocabulary, LLTokenizer] | None = None
        self._opening = threading.Lock()
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="turnpike-grammar")
        self._closed = False

    def compile(self, spec: GrammarSpec) -> "Future[CompiledGrammar]":
        """A grammar, at once where it is known. Not to be cancelled: others may wait for the same.

        Raises, from the result:
            GrammarRefused: it cannot be enforced.
            TrialProcessFailed: nothing can be compiled at the moment.
        """
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
            known = self._kept.get(spec)
            if known is not None and not _failed(known):
                self._kept.move_to_end(spec)
                return known
            future = self._kept[spec] = self._threads.submit(self._compile, spec)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return future

    def close(self) -> None:
        """End its processes and threads; who still waits for a grammar is cancelled. Idempotent."""
        with self._lock:
            self._closed = True
            busy = list(self._busy)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in busy:
            process.kill()
        while self._idle:
            self._idle.popleft().close()

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        if spec.kind is GrammarKind.JSON_SCHEMA and (keyword := unsound_keyword(json.loads(spec.source))):
            raise GrammarRefused(f'unsupported keyword: "{keyword}", where it asks for more than "required" names')
        vocabulary, tokenizer = self._open()
        with self._borrowed(vocabulary) as process:
            grammar = process.translated(spec)
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=worker.limits())
        fault = worker.fault_of(matcher)
        if fault is not None:
            raise GrammarRefused(reason_of(fault))
        return CompiledGrammar(matcher)

    @contextmanager
    def _borrowed(self, vocabulary: LibraryVocabulary) -> Iterator[TrialProcess]:
        """A process for the time of the block. One that was killed in it does not come back."""
        process = self._idle_process() or TrialProcess(vocabulary, self._seconds)
        with self._lock:
            self._busy.add(process)
        try:
            yield process
        finally:
            with self._lock:
                self._busy.discard(process)
                returned = process.alive and not self._closed
                if returned:
                    self._idle.append(process)
            if not returned:
                process.close()

    def _idle_process(self) -> TrialProcess | None:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    return process
                process.close()
        return None

    def _open(self) -> tuple[LibraryVocabulary, LLTokenizer]:
        with self._opening:
            if self._opened is None:
                vocabulary = self._vocabulary()
                eos_token_ids = list(vocabulary.eos_token_ids)
                tokenizer = worker.open_tokenizer(vocabulary.tokenizer_json, vocabulary.vocab_size, eos_token_ids)
                self._opened = vocabulary, tokenizer
            return self._opened


class _LibraryMatcher:
    """A `GrammarMatcher`."""

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

    def allow(self, words: Words) -> None:
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():
            raise GrammarFailed(self._matcher.get_error())


def _failed(future: "Future[CompiledGrammar]") -> bool:
    """Whether it ended in a way that says nothing about the grammar."""
    if not future.done():
        return False
    return future.cancelled() or not isinstance(future.exception(), GrammarRefused | None)
