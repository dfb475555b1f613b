"""GET and DELETE /v1/sessions/{id}: the stored history of a tenant's session."""

from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from gateway.http.errors import APIError
from gateway.http.request_state import request_state
from gateway.http.responses import send_body
from gateway.http.session_ids import is_session_id
from gateway.sessions import SessionKey, Sessions, StoredHistory
from gateway.sessions.history import Message


class OneSession:
    """An ASGI endpoint. Another tenant's session is not found."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises: APIError, 404; SessionStoreAway; UnreadableHistory for GET."""
        id = scope["path_params"]["id"]
        if not is_session_id(id):
            raise _not_found()
        key = SessionKey(request_state(scope).caller().tenant_id, id)
        answer = await (self._delete(key) if scope["method"] == "DELETE" else self._read(key))
        await send_body(send, 200, orjson.dumps(answer))

    async def _read(self, key: SessionKey) -> dict[str, Any]:
        stored = await self._sessions.read(key)
        if stored is None:
            raise _not_found()
        return _wire(key.session_id, stored)

    async def _delete(self, key: SessionKey) -> dict[str, Any]:
        if not await self._sessions.delete(key):
            raise _not_found()
        return {"id": key.session_id, "object": "session.deleted", "deleted": True}


def _wire(id: str, stored: StoredHistory) -> dict[str, Any]:
    """`turns`: number of turns in `messages`. `dropped_turns`: earlier turns, kept only in the summary."""
    history = stored.history
    return {
        "id": id,
        "object": "session",
        "turns": len(history.turns),
        "dropped_turns": history.dropped_turns,
        "summary": history.summary,
        "expires_in_s": stored.expires_in_ms // 1000,
        "stored_bytes": stored.bytes,
        "messages": [_message(each) for each in (*history.system, *history.messages)],
    }


def _message(message: Message) -> dict[str, Any]:
    """The message as the API has it: arguments of tool calls are a JSON string."""
    if "tool_calls" not in message:
        return dict(message)
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        arguments = orjson.dumps(function["arguments"]).decode()
        calls.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": calls}


def _not_found() -> APIError:
    return APIError(404, "Session not found.", code="session_not_found")
