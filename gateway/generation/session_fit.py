"""Fits a session's conversation to the context window of a model: all turns, or the newest."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from engine.text.least_tokens import TooManyTokens
from engine.text.processor import TextProcessor
from gateway.generation.prompt_encoding import encode
from gateway.generation.request import Conversation
from gateway.generation.session_summary import Summary
from gateway.generation.text_pool import TextLane
from gateway.http.errors import ClientGone, invalid, longer_than_window
from gateway.sessions import History
from gateway.sessions.history import Message
from gateway.sessions.policy import Cut
from gateway.sessions.window import ContextWindow, Size, turns_to_drop

Summarise = Callable[[str | None, Sequence[Message]], Awaitable[Summary]]
"""Writes a summary of the former summary and the messages that are dropped."""

_log = structlog.get_logger("turnpike.sessions")


@dataclass(frozen=True, slots=True)
class Shown:
    """The conversation as a model is given it.

    `history` includes the new messages. `token_ids`: its prompt; None if it has more tokens than the window, at least
    `size.tokens`. `cut`: how it was made to fit; None if it fits whole. `summary`: the one written for that, if any."""

    history: History
    token_ids: Sequence[int] | None
    size: Size
    cut: Cut | None = None
    summary: Summary | None = None


class Fitter:
    """Fits one conversation to one model. `droppable`: how many of its oldest turns may be dropped. `like`: the
    conversation that says how to render it. Text that has more than `most_tokens` tokens is not tokenised."""

    def __init__(
        self,
        joined: History,
        droppable: int,
        like: Conversation,
        text: TextProcessor,
        lane: TextLane,
        most_tokens: int | None,
    ) -> None:
        self._lane = lane
        self._most_tokens = most_tokens
        self._joined = joined
        self._droppable = droppable
        self._like = like
        self._text = text
        self._tried: dict[int, Shown] = {}

    async def fit(self, window: ContextWindow, summarise: Summarise | None, *, whole: bool) -> Shown:
        """The whole conversation if it is within the window's limit; otherwise without its oldest turns, and with a
        summary of them if `summarise` writes one that fits. The caller checks the result against the model's window.

        Raises:
            APIError: 400, the new messages are larger than a session may be; or `whole` is set and turns would have to
                be dropped.
            ClientGone: the client disconnected while the summary was written.
        """
        everything = await self._without(0)
        if everything.size.within(window.limit):
            return everything
        if whole and everything.size.tokens > window.limit.tokens:
            raise invalid("messages", "The session is longer than the model's window.", "context_length_exceeded")
        dropped = await turns_to_drop(self._droppable, window, self._size_without)
        shown = await self._without(dropped)
        if shown.size.bytes > window.limit.bytes:
            raise invalid("messages", "The messages are larger than a session may be.", "session_too_large")
        if shown.token_ids is None:
            raise longer_than_window("messages", self._most_tokens or 0, f"at least {shown.size.tokens}")
        if not dropped:
            return shown
        if summarise is None:
            return replace(shown, cut=Cut.SLIDING)
        return await self._summed_up(dropped, window, summarise) or replace(shown, cut=Cut.SUMMARY_FAILED)

    async def _summed_up(self, dropped: int, window: ContextWindow, summarise: Summarise) -> Shown | None:
        """The conversation with a summary in place of its first `dropped` turns. None: none was written, or it does not
        fit."""
        gone = [message for turn in self._joined.turns[:dropped] for message in turn]
        try:
            summary = await summarise(self._joined.summary, gone)
        except ClientGone:
            raise
        except Exception as error:  # of any kind: the turn continues without it
            _log.warning("no summary of a session's oldest turns", reason=type(error).__name__)
            return None
        shown = await self._show(self._joined.without(dropped, summary.text))
        if not shown.size.within(window.limit):
            return None
        return replace(shown, cut=Cut.SUMMARY, summary=summary)

    async def _size_without(self, turns: int) -> Size:
        return (await self._without(turns)).size

    async def _without(self, turns: int) -> Shown:
        if turns not in self._tried:
            self._tried[turns] = await self._show(self._joined.without(turns))
        return self._tried[turns]

    async def _show(self, history: History) -> Shown:
        prompt, size_bytes = replace(self._like, messages=history.prompt), len(history.to_json())
        try:
            [token_ids] = await encode([prompt], self._text, self._lane, most_tokens=self._most_tokens)
        except TooManyTokens as error:
            return Shown(history, None, Size(error.at_least, size_bytes))
        return Shown(history, token_ids, Size(len(token_ids), size_bytes))
