"""A process in which grammars are tried out first: whatever one of them takes, it can be killed."""

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from engine.grammar import sandbox_program
from engine.grammar.error_messages import message_for_author
from engine.grammar.spec import GrammarRefused, GrammarSpec
from engine.grammar.vocabulary import LibraryVocabulary

MEMORY_BYTES = 1 << 30
"""Address space of the process, which has a fifth of that before its first grammar."""

_END_SECONDS = 1.0
"""For what has closed its output to be gone."""

MAX_GRAMMAR_BYTES = 60 << 20
"""What a grammar counts for where its memory cannot be measured: as many lexer states as it may have."""

IDLE_SECONDS = 60
"""How long a process waits for its next grammar before it ends."""

_START_SECONDS = 60.0
"""For importing the library and opening the tokenizer: half a second, if the machine has nothing else to do."""


class SandboxFailed(RuntimeError):
    """The process could not be started: no grammar can be compiled at the moment."""


class SandboxExited(RuntimeError):
    """The process had nothing to do for so long that it ended."""


class CheckedGrammar(NamedTuple):
    """A grammar in the library's own form, which is known to be harmless, and the memory that it takes compiled."""

    grammar: str
    size_bytes: int


class CompileSandbox:
    """Tries one grammar after another, each within a limit of time and memory. One thread at a time uses it."""

    def __init__(self, vocabulary: LibraryVocabulary, seconds: float, *, idle_seconds: float = IDLE_SECONDS) -> None:
        """
        Raises:
            SandboxFailed: it does not come up.
        """
        self._seconds = seconds
        # Not `-m`: that would import the engine. One thread: no pool of them counts against the memory.
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
            raise SandboxFailed("the process that tries grammars out does not come up")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def check(self, spec: GrammarSpec) -> CheckedGrammar:
        """Ends the process where the grammar takes too much.

        Raises:
            GrammarRefused: it is malformed, cannot be enforced, matches nothing or takes too much.
            SandboxExited: there is another process to be asked.
        """
        answer = self._ask({"kind": spec.kind.value, "source": spec.source}, self._seconds)
        if answer is None and self._process.returncode == 0:
            raise SandboxExited
        if answer is None:
            raise GrammarRefused(f"it takes over {self._seconds:g} s or {MEMORY_BYTES >> 20} MiB to compile")
        if "refused" in answer:
            raise GrammarRefused(message_for_author(answer["refused"]))
        size_bytes = answer["bytes"]
        return CheckedGrammar(str(answer["grammar"]), MAX_GRAMMAR_BYTES if size_bytes is None else size_bytes)

    def kill(self) -> None:
        """End it, whatever it is at; whoever waits for its answer has none. Idempotent; any thread may call."""
        self._process.kill()

    def close(self) -> None:
        """Kill it and leave nothing of it. Idempotent; for the thread that uses it."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stdin):
            assert pipe is not None
            with suppress(OSError):  # what was not written yet
                pipe.close()

    def _ask(self, message: object, seconds: float) -> Any:
        """Its answer; None where there is none in time, and the process has ended."""
        source, sink = self._process.stdout, self._process.stdin
        assert source is not None
        assert sink is not None
        timer = threading.Timer(seconds, self._process.kill)  # ends a read that would wait, and a write
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
        """One that ended by itself has its own status, which a kill would take the place of."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
