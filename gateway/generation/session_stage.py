"""Sessions: the stored conversation is prepended to a chat, and the turn is appended to it afterwards.

A turn has three steps: `SessionStage.joined` before the model is selected, `SessionStage.prepare` for a selected model,
as the window is counted in its tokens, and `SessionTurn.keep` when the answer has ended well. A turn that fails leaves
the session unchanged.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from starlette.datastructures import Headers
from starlette.types import Scope

from gateway.config.settings import Settings
from gateway.generation.context import Client
from gateway.generation.engine_client import ServedModel
from gateway.generation.pipeline import Pipeline
from gateway.generation.prepare import PreparedPrompt, prepared
from gateway.generation.prompt_encoding import encoded, most_tokens_of, prompts_of
from gateway.generation.request import Conversation, GenerationRequest
from gateway.generation.services import Services
from gateway.generation.session_summary import Summariser
from gateway.generation.session_turn import SESSION_HEADER, SessionTurn
from gateway.generation.text_pool import TextLane
from gateway.http.errors import invalid
from gateway.http.session_ids import require_session_id
from gateway.sessions import SessionKey
from gateway.sessions.policy import SessionWindow
from gateway.sessions.window import ContextWindow
from gateway.tenancy.records import Principal


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
            turn = SessionTurn.begun(session_id, opened, conversation)
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
        """The prompts in the model's tokens. A session's turn is fitted to `context_tokens`, the model's context window
        for this client. `may_fall_back`: as `context.Prepare` has it.

        Raises:
            APIError: as `encoded` and `prepared`; 400, the messages are larger than a session may be.
            ClientGone: the client disconnected.
        """
        lane = TextLane(self._texts, client.principal.tenant_id, client.receive)
        most_tokens = most_tokens_of(request, context_tokens)
        if turn is None:
            token_ids = await encoded(request, model.text, lane, window=context_tokens, most_tokens=most_tokens)
        else:
            window = ContextWindow.of(context_tokens, request.params.max_tokens, self._max_bytes)
            wants_summary = (client.principal.policies.session.window or self._window) is SessionWindow.SUMMARY
            summarise = self._summariser.of(model, client) if wants_summary else None
            shown = await turn.fit(model, window, summarise, lane, most_tokens=most_tokens, whole=may_fall_back)
            assert shown.token_ids is not None
            token_ids = [shown.token_ids]
        return prepared(request, token_ids, model, context_tokens)


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
