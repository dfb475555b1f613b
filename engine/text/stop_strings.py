"""Finds stop strings in streamed text with an Aho-Corasick automaton (Aho and Corasick 1975)."""

import re
from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """Passes text through until a stop string is complete, holding back only text that may become one.

    The result does not depend on how the text was split: the stop string that completes first wins; of several that end
    at the same character, the longest. The held text is the longest suffix that is a proper prefix of some stop string.

    A node of the automaton is such a prefix. `_depth`: its length. `_fallback`: the node of its longest proper suffix
    that is also a prefix. `_complete`: the longest stop string that the node ends with.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`include`: the matched stop string is part of the output.

        Raises:
            ValueError: there is no stop string, or an empty one.
        """
        if not stops or not all(stops):
            raise ValueError("stop strings must not be empty")
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._complete: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._fallback = [0] * len(self._next)
        self._link()
        self._first_characters = re.compile("[" + "".join(re.escape(char) for char in self._next[0]) + "]")
        self._include = include
        self._node = 0
        self._held = ""
        self.matched: str | None = None

    def _insert(self, stop: str) -> None:
        node = 0
        for depth, char in enumerate(stop, 1):
            if char not in self._next[node]:
                self._next[node][char] = len(self._next)
                self._next.append({})
                self._depth.append(depth)
                self._complete.append(None)
            node = self._next[node][char]
        self._complete[node] = stop

    def _link(self) -> None:
        waiting = deque(self._next[0].values())
        while waiting:
            node = waiting.popleft()
            if self._complete[node] is None:
                self._complete[node] = self._complete[self._fallback[node]]
            for char, child in self._next[node].items():
                self._fallback[child] = self._step(self._fallback[node], char)
                waiting.append(child)

    def _step(self, node: int, char: str) -> int:
        while char not in self._next[node]:
            if node == 0:
                return 0
            node = self._fallback[node]
        return self._next[node][char]

    def feed(self, text: str) -> str:
        """The text that is final. Returns nothing once `matched` is set."""
        if self.matched is not None:
            return ""
        position = len(self._held)
        text = self._held + text
        node = self._node
        while position < len(text):
            if node == 0:
                start = self._first_characters.search(text, position)
                if start is None:
                    break
                position = start.start()
            node = self._step(node, text[position])
            position += 1
            stop = self._complete[node]
            if stop is not None:
                self.matched = stop
                self._held = ""
                return text[: position if self._include else position - len(stop)]
        self._node = node
        kept = len(text) - self._depth[node]
        self._held = text[kept:]
        return text[:kept]

    def release(self) -> str:
        """The held text, at the end of input."""
        held, self._held, self._node = self._held, "", 0
        return held
