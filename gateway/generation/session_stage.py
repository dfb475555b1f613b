"""Sessions: the stored conversation is prepended to a chat, and the turn is appended to it afterwards.

A turn has three steps: `SessionStage.joined` before the model is selected, `SessionStage.prepare` for a selected model,
as the window is counted in its tokens, and `SessionTurn.keep` when the answer has ended well. A turn that fails leaves
the session unchanged.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from starlette.datastructures import Headers
from starlette.types import Scope

from gateway.config.settings import Settings
from gateway.generation.context import Client
from gateway.generation.engine_client import ServedModel
from gateway.generation.lengths import require_tokenizable
from gateway.generation.pipeline import Pipeline
from gateway.generation.prepare import PreparedPrompt, limited, prepare, prompts_of, text_chars
from gateway.generation.request import Conversation, GenerationRequest
from gateway.generation.services import Services
from gateway.generation.session_fit import Fitter, Shown, Summarise
from gateway.generation.session_summary import Summariser, Summary
from gateway.generation.text_pool import TextLane
from gateway.http.errors import invalid
from gateway.http.session_ids import require_session_id
from gateway.sessions import History, OpenTurn, SessionKey
from gateway.sessions.history import Message
from gateway.sessions.policy import SessionWindow
from gateway.sessions.window import ContextWindow
from gateway.speech.message import as_message
from gateway.speech.output_parser import ParsedDelta
from gateway.speech.pieces import ParsedMessage, Piece
from gateway.tenancy.records import Principal

SESSION_HEADER = "x-turnpike-session"


@dataclass(slots=True)
class SessionTurn:
    """One turn of a session. `droppable`: how many of the turns in `joined` were stored; the others are new."""

    id: str
    joined: History
    droppable: int
    _open: OpenTurn
    _shown: Shown | None = field(default=None, init=False)
    _pieces: list[Piece] = field(default_factory=list, init=False)
    _summaries: dict[int, Summary] = field(default_factory=dict, init=False)
    kept: bool | None = field(default=None, init=False)

    @classmethod
    def begun(cls, id: str, turn: OpenTurn, new: Sequence[Message]) -> "SessionTurn":
        joined = turn.history.with_messages(new)
        droppable = end = 0
        for each in joined.turns:
            end += len(each)
            droppable += end <= len(turn.history.messages)
        return cls(id, joined, droppable, turn)

    @property
    def shown(self) -> Shown:
        assert self._shown is not None, "a session's turn is fitted to its model before it is answered"
        return self._shown

    async def fit(
        self,
        like: Conversation,
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

        fitter = Fitter(self.joined, self.droppable, like, model.text, lane, most_tokens)
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


class SessionStage:
    """Opens the turns of requests that name a session, and prepares their prompts."""

    def __init__(self, services: Services, settings: Settings, pipeline: Pipeline) -> None:
        self._sessions = services.sessions
        self._texts = services.texts
        self._summariser = Summariser(services.engine, services.texts, settings, pipeline)
        self._max_bytes = settings.session_max_bytes
        self._window = settings.session_window

    @asynccontextmanager
    async def joined(
        self, request: GenerationRequest, scope: Scope, caller: Principal
    ) -> AsyncIterator[tuple[GenerationRequest, SessionTurn | None]]:
        """The request with the session's conversation prepended, and its turn; None for the turn if it names no
        session.

        Raises:
            APIError: 400, the request cannot use a session.
            SessionBusy, SessionStoreAway, UnreadableHistory: as `Sessions.turn`.
        """
        session_id = _session_id(request, Headers(scope=scope).get(SESSION_HEADER))
        if session_id is None:
            yield request, None
            return
        conversation = _conversation(request)
        async with self._sessions.turn(SessionKey(caller.tenant_id, session_id)) as opened:
            turn = SessionTurn.begun(session_id, opened, conversation.messages)
            whole = replace(conversation, messages=turn.joined.prompt)
            yield replace(request, prompts=(whole,), session_id=session_id), turn

    async def prepare(
        self,
        request: GenerationRequest,
        turn: SessionTurn | None,
        client: Client,
        model: ServedModel,
        context_tokens: int,
        may_fall_back: bool,
    ) -> list[PreparedPrompt]:
        """As `prepare.prepare`, with a session's turn fitted to `context_tokens`, the model's context window for this
        client. `may_fall_back`: as `context.Prepare` has it.

        Raises:
            APIError, ChatTemplateError: as `prepare`; 400, the messages are larger than a session may be.
            ClientGone: the client disconnected.
        """
        lane = TextLane(self._texts, client.principal.tenant_id, client.receive)
        if turn is None:
            return await prepare(request, model, context_tokens, lane)
        window = ContextWindow.of(context_tokens, request.params.max_tokens, self._max_bytes)
        wants_summary = (client.principal.session_window or self._window) is SessionWindow.SUMMARY
        summarise = self._summariser.of(model, client) if wants_summary else None
        most_tokens = None
        if request.truncation is None:
            most_tokens = context_tokens
        else:
            require_tokenizable(request.prompt_param, max(map(text_chars, request.prompts)), context_tokens)
        shown = await turn.fit(
            _conversation(request), model, window, summarise, lane, most_tokens=most_tokens, whole=may_fall_back
        )
        assert shown.token_ids is not None
        return limited(request, [shown.token_ids], model, context_tokens)


def _session_id(request: GenerationRequest, stated: str | None) -> str | None:
    """The session id of the body or the header.

    Raises:
        APIError: 400, they differ, or the request cannot use a session.
    """
    if stated is not None:
        require_session_id(stated, SESSION_HEADER)
        if request.session_id not in (None, stated):
            raise invalid("session_id", f"session_id and the header {SESSION_HEADER} differ.")
    session_id = request.session_id if stated is None else stated
    if session_id is None:
        return None
    if request.prompt_param != "messages":
        raise invalid(SESSION_HEADER, "Only chats have sessions.", "unsupported_parameter")
    if request.params.n > 1:
        raise invalid("n", "n must be 1 in a session, which goes on with one answer.", "unsupported_parameter")
    if not _conversation(request).add_generation_prompt:
        raise invalid(
            "add_generation_prompt", "A session's turn ends with an answer of its own.", "unsupported_parameter"
        )
    return session_id


def _conversation(request: GenerationRequest) -> Conversation:
    [prompt] = prompts_of(request)
    assert isinstance(prompt, Conversation)
    return prompt
