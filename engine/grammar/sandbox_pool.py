"""A pool of sandbox processes, reused while grammars keep coming."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from engine.grammar.sandbox import CheckedGrammar, CompileSandbox
from engine.grammar.spec import GrammarSpec
from engine.grammar.vocabulary import LibraryVocabulary


class Sandbox(Protocol):
    """A `CompileSandbox`, or a fake of it."""

    @property
    def alive(self) -> bool: ...

    def check(self, spec: GrammarSpec) -> CheckedGrammar: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


class StartSandbox(Protocol):
    """Starts a sandbox; raises `SandboxFailed`."""

    def __call__(self, vocabulary: LibraryVocabulary, seconds: float) -> Sandbox: ...


class SandboxPool:
    """Lends each sandbox process to one thread at a time. An idle process exits by itself after `IDLE_SECONDS`."""

    def __init__(self, seconds: float, start: StartSandbox = CompileSandbox) -> None:
        """`seconds`: timeout of one compilation."""
        self._seconds, self._start = seconds, start
        self._lock = threading.Lock()
        self._idle: list[Sandbox] = []
        self._busy: list[Sandbox] = []
        self._closed = False

    @contextmanager
    def borrow(self, vocabulary: LibraryVocabulary) -> Iterator[Sandbox]:
        """A process for the duration of the block. A process that ended in the block is not returned to the pool.

        Raises:
            SandboxFailed: no process can be started.
        """
        process = self._take_idle() or self._start(vocabulary, self._seconds)
        with self._lock:
            self._busy.append(process)
            if self._closed:
                process.kill()
        try:
            yield process
        finally:
            with self._lock:
                self._busy.remove(process)
                returned = process.alive and not self._closed
                if returned:
                    self._idle.append(process)
            if not returned:
                process.close()

    def close(self) -> None:
        """Kill all processes; pending calls get no answer. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for process in self._busy:
                process.kill()
        for process in idle:
            process.close()

    def _take_idle(self) -> Sandbox | None:
        """The most recently used idle process, so that surplus ones reach their idle timeout."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    return process
                process.close()
        return None
