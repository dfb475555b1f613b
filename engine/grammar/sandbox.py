"""Compiles grammars in a child process that can be killed, to bound their time and memory."""

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from engine.grammar import sandbox_program
from engine.grammar.error_messages import message_for_author
from engine.grammar.spec import GrammarRefused, GrammarSpec, SandboxFailed
from engine.grammar.vocabulary import LibraryVocabulary

MEMORY_BYTES = 1 << 30
"""Address space of the sandbox process, in bytes. About a fifth of it is used before the first grammar."""

_END_SECONDS = 1.0
"""Time for a process that has closed its output to exit."""

MAX_GRAMMAR_BYTES = 60 << 20
"""Assumed size of a grammar where memory cannot be measured: the maximum number of lexer states."""

IDLE_SECONDS = 60
"""Time without a request after which a sandbox process exits."""

_START_SECONDS = 60.0
"""Timeout of the start: importing the library and opening the tokenizer, about half a second on an idle machine."""


class SandboxExited(RuntimeError):
    """The sandbox process had been idle and exited before it took the request."""


class CheckedGrammar(NamedTuple):
    """A grammar in llguidance's own format that compiled within the limits, and its memory once compiled."""

    grammar: str
    size_bytes: int


class CompileSandbox:
    """A process that compiles one grammar after another, each within a time and a memory limit. Used by one thread at a
    time."""

    def __init__(self, vocabulary: LibraryVocabulary, seconds: float, *, idle_seconds: float = IDLE_SECONDS) -> None:
        """`seconds` bounds one compilation; the process exits after `idle_seconds` without a request.

        Raises:
            SandboxFailed: the process does not start.
        """
        self._seconds = seconds
        # Not `-m`, which would import the engine. One rayon thread, as thread stacks count as address space.
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(sandbox_program.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"RAYON_NUM_THREADS": "1"},
        )
        setup = {
            "tokenizer": vocabulary.tokenizer_json,
            "vocab_size": vocabulary.vocab_size,
            "eos_token_ids": list(vocabulary.eos_token_ids),
            "memory_bytes": MEMORY_BYTES,
            "seconds": int(seconds) + 1,
            "idle_seconds": idle_seconds,
        }
        if self._ask(setup, _START_SECONDS) is None:
            raise SandboxFailed("the sandbox process for grammars does not start")

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def check(self, spec: GrammarSpec) -> CheckedGrammar:
        """Compile a grammar in the process. One that exceeds a limit ends the process.

        Raises:
            GrammarRefused: the grammar is malformed, cannot be enforced, matches nothing or exceeds a limit.
            SandboxExited: the process was idle and has exited; ask another one.
        """
        answer = self._ask({"kind": spec.kind.value, "source": spec.source}, self._seconds)
        if answer is None and self._process.returncode == 0:
            raise SandboxExited
        if answer is None:
            raise GrammarRefused(
                f"the grammar is too complex: compiling it takes over {self._seconds:g} s or {MEMORY_BYTES >> 20} MiB"
            )
        if "refused" in answer:
            raise GrammarRefused(message_for_author(answer["refused"]))
        size_bytes = answer["bytes"]
        return CheckedGrammar(str(answer["grammar"]), MAX_GRAMMAR_BYTES if size_bytes is None else size_bytes)

    def kill(self) -> None:
        """Kill the process; a pending `check` gets no answer. Idempotent, callable from any thread."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process, reap it and close its pipes. Idempotent; called by the thread that uses it."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stdin):
            assert pipe is not None
            with suppress(OSError):  # unwritten data cannot be flushed
                pipe.close()

    def _ask(self, message: object, seconds: float) -> Any:
        """The answer to a message; None if it did not arrive in time, in which case the process has ended."""
        source, sink = self._process.stdout, self._process.stdin
        assert source is not None
        assert sink is not None
        timer = threading.Timer(seconds, self._process.kill)  # unblocks the read or write below
        timer.daemon = True
        timer.start()
        try:
            sink.write(sandbox_program.encode(message))
            sink.flush()
            answer = sandbox_program.receive(source)
        except (OSError, ValueError):
            answer = None
        finally:
            timer.cancel()
        if answer is None:
            self._wait_for_end()
            self.close()
        return answer

    def _wait_for_end(self) -> None:
        """Wait briefly for a process that exits by itself, so that its own exit status is not replaced by that of a
        kill."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
