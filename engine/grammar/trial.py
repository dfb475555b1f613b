"""A process in which grammars are tried out first: whatever one of them takes, it can be killed."""

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.grammar import worker
from engine.grammar.refusals import reason_of
from engine.grammar.spec import GrammarRefused, GrammarSpec
from engine.grammar.vocabulary import LibraryVocabulary

MEMORY_BYTES = 1 << 30
"""Address space of the process, which has a fifth of that before its first grammar."""

_START_SECONDS = 60.0
"""For importing the library and opening the tokenizer: half a second, if the machine has nothing else to do."""


class TrialProcessFailed(RuntimeError):
    """The process could not be started: no grammar can be compiled at the moment."""


class TrialProcess:
    """Tries one grammar after another, each within a limit of time and memory. One thread at a time uses it."""

    def __init__(self, vocabulary: LibraryVocabulary, seconds: float) -> None:
        """
        Raises:
            TrialProcessFailed: it does not come up.
        """
        self._seconds = seconds
        # Not `-m`: that would import the engine. One thread: no pool of them counts against the memory.
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(worker.__file__))],
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
        }
        if self._ask(setup, _START_SECONDS) is None:
            raise TrialProcessFailed("the process that tries grammars out does not come up")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def translated(self, spec: GrammarSpec) -> str:
        """The grammar in the library's own form, which is then known to be harmless. Ends the process where it is not.

        Raises:
            GrammarRefused: it is malformed, cannot be enforced, matches nothing or takes too much.
        """
        answer = self._ask({"kind": spec.kind.value, "source": spec.source}, self._seconds)
        if answer is None:
            raise GrammarRefused(f"it takes over {self._seconds:g} s or {MEMORY_BYTES >> 20} MiB to compile")
        if "refused" in answer:
            raise GrammarRefused(reason_of(answer["refused"]))
        return str(answer["grammar"])

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
            sink.write(worker.encode(message))
            sink.flush()
            answer = worker.receive(source)
        except (OSError, ValueError):
            answer = None
        finally:
            timer.cancel()
        if answer is None:
            self.close()
        return answer
