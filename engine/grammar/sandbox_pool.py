"""Processes in which grammars are tried out, kept for the next one while there is one soon."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from engine.grammar.sandbox import CheckedGrammar, CompileSandbox
from engine.grammar.spec import GrammarSpec
from engine.grammar.vocabulary import LibraryVocabulary


class Sandbox(Protocol):
    """A `CompileSandbox`, or what stands in for one."""

    @property
    def alive(self) -> bool: ...

    def check(self, spec: GrammarSpec) -> CheckedGrammar: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


class StartSandbox(Protocol):
    def __call__(self, vocabulary: LibraryVocabulary, seconds: float) -> Sandbox: ...


class SandboxPool:
    """A process is lent to one thread at a time. One that is not lent ends by itself after a while."""

    def __init__(self, seconds: float, start: StartSandbox = CompileSandbox) -> None:
        """`seconds`: what one grammar may take."""
        self._seconds, self._start = seconds, start
        self._lock = threading.Lock()
        self._idle: list[Sandbox] = []
        self._busy: list[Sandbox] = []
        self._closed = False

    @contextmanager
    def borrow(self, vocabulary: LibraryVocabulary) -> Iterator[Sandbox]:
        """A process for the time of the block. One that ended in it does not come back.

        Raises:
            SandboxFailed: none comes up.
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
        """End all of them; who still waits for an answer has none. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for process in self._busy:
                process.kill()
        for process in idle:
            process.close()

    def _take_idle(self) -> Sandbox | None:
        """The one that was used last, so that others end."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    return process
                process.close()
        return None
