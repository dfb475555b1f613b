"""One turn of a session: its conversation, fitted to the model that answers, and the answer that is stored."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.generation.engine_client import ServedModel
from gateway.generation.request import Conversation
from gateway.generation.session_fit import Fitter, Shown, Summarise
from gateway.generation.session_summary import Summary
from gateway.generation.text_pool import TextLane
from gateway.sessions import History, OpenTurn
from gateway.sessions.history import Message
from gateway.sessions.window import ContextWindow
from gateway.speech.message import as_message
from gateway.speech.output_parser import ParsedDelta
from gateway.speech.pieces import ParsedMessage, Piece

SESSION_HEADER = "x-turnpike-session"


@dataclass(slots=True)
class SessionTurn:
    """One turn of a session. `droppable`: how many of the turns in `joined` were stored; the others are new. `like`:
    the conversation of the request, which says how to render it."""

    id: str
    joined: History
    droppable: int
    like: Conversation
    _open: OpenTurn
    _shown: Shown | None = field(default=None, init=False)
    _pieces: list[Piece] = field(default_factory=list, init=False)
    _summaries: dict[int, Summary] = field(default_factory=dict, init=False)
    kept: bool | None = field(default=None, init=False)

    @classmethod
    def begun(cls, id: str, turn: OpenTurn, conversation: Conversation) -> "SessionTurn":
        joined = turn.history.with_messages(conversation.messages)
        droppable = end = 0
        for each in joined.turns:
            end += len(each)
            droppable += end <= len(turn.history.messages)
        return cls(id, joined, droppable, conversation, turn)

    @property
    def shown(self) -> Shown:
        assert self._shown is not None, "a session's turn is fitted to its model before it is answered"
        return self._shown

    async def fit(
        self,
        model: ServedModel,
        window: ContextWindow,
        summarise: Summarise | None,
        lane: TextLane,
        *,
        most_tokens: int | None,
        whole: bool,
    ) -> Shown:
        """Fit the conversation to a model. The last model that it is fitted to answers."""

        async def summarise_once(former: str | None, gone: Sequence[Message]) -> Summary:
            """Once for each set of dropped turns, whichever model needs it, as a summary is billed."""
            assert summarise is not None
            if len(gone) not in self._summaries:
                self._summaries[len(gone)] = await summarise(former, gone)
            return self._summaries[len(gone)]

        fitter = Fitter(self.joined, self.droppable, self.like, model.text, lane, most_tokens)
        self._shown = await fitter.fit(window, None if summarise is None else summarise_once, whole=whole)
        return self._shown

    def on_outputs(self, outputs: Sequence[ParsedDelta]) -> None:
        """Keep the pieces of the answer. There is one choice."""
        for output in outputs:
            self._pieces += output.pieces

    async def keep(self) -> None:
        """Store the turn, once its answer has ended well and is billed. If that fails, `kept` is False and the client
        still gets its answer."""
        history = self.shown.history.with_answer(as_message(ParsedMessage.of(self._pieces)))
        self.kept = await self._open.keep(history, self.shown.cut)

    def headers(self) -> dict[str, str]:
        """Response headers: the session, its stored turns in the prompt, and the dropped ones. `-kept` is there once
        the answer has ended."""
        history = self.shown.history
        shown_turns = self.droppable - (history.dropped_turns - self.joined.dropped_turns)
        headers = {
            SESSION_HEADER: self.id,
            f"{SESSION_HEADER}-turns": str(shown_turns),
            f"{SESSION_HEADER}-dropped-turns": str(history.dropped_turns),
        }
        if self.shown.cut is not None:
            headers[f"{SESSION_HEADER}-window"] = self.shown.cut.value
        if self.shown.summary is not None:
            headers[f"{SESSION_HEADER}-summary-id"] = self.shown.summary.request_id
        if self.kept is not None:
            headers[f"{SESSION_HEADER}-kept"] = "true" if self.kept else "false"
        return headers
