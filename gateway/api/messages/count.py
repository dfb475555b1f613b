"""POST /v1/messages/count_tokens: how long a prompt would be, without an answer."""

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gateway.api.errors import invalid
from gateway.api.exchange import exchange_of
from gateway.api.json_body import read_json
from gateway.api.messages.schema import parse_count
from gateway.api.prepare import encode, prompts_of
from gateway.api.responses import send_body
from gateway.api.session_stage import SESSION_HEADER
from gateway.api.stages import Stages


class CountTokens:
    """An ASGI endpoint. It counts in the tokens and by the template of the model that would answer now; nothing is
    generated, held or billed."""

    def __init__(self, stages: Stages) -> None:
        self._engine = stages.services.engine
        self._max_json_depth = stages.settings.max_json_depth
        self._classes = stages.classes
        self._routes = stages.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = exchange_of(scope).caller()
        if SESSION_HEADER in Headers(scope=scope):
            raise invalid(
                SESSION_HEADER, "Only what is in the body is counted, not a session.", "unsupported_parameter"
            )
        request = parse_count(await read_json(scope, receive, self._max_json_depth))
        route = self._routes.route(request, caller, self._classes.serving(caller.tier, None))
        [tokens] = await encode(prompts_of(request), self._engine.models[route.served].text)
        await send_body(send, 200, orjson.dumps({"input_tokens": len(tokens)}))
