"""POST /v1/messages/count_tokens: the length of a prompt in tokens."""

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gateway.formats.anthropic.schema import parse_count
from gateway.generation.counted import count_request
from gateway.generation.prompt_encoding import encode, prompts_of, require_tokenizable, text_chars
from gateway.generation.session_turn import SESSION_HEADER
from gateway.generation.stages import Stages
from gateway.generation.text_pool import TextLane
from gateway.http.errors import invalid
from gateway.http.json_body import read_json
from gateway.http.request_state import request_state
from gateway.http.responses import send_body


class CountTokens:
    """An ASGI endpoint. It counts with the tokenizer and template of the model that routing would choose now. It bills
    nothing and counts as one request against limits."""

    def __init__(self, stages: Stages) -> None:
        self._services = stages.services
        self._max_json_depth = stages.settings.max_json_depth
        self._classes = stages.classes
        self._routes = stages.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = request_state(scope).caller()
        if SESSION_HEADER in Headers(scope=scope):
            raise invalid(
                SESSION_HEADER,
                "Sessions are not supported when counting tokens.",
                "unsupported_parameter",
            )
        request = parse_count(await read_json(scope, receive, self._max_json_depth))
        route = self._routes.route(request, caller, self._classes.serving(caller.tier, None))
        model, [prompt] = self._services.engine.models[route.served], prompts_of(request)
        require_tokenizable(request.prompt_param, text_chars(prompt), model.max_model_len)
        headers = await count_request(self._services, self._classes, caller, model)
        lane = TextLane(self._services.texts, caller.tenant_id, receive)
        [tokens] = await encode([prompt], model.text, lane)
        await send_body(send, 200, orjson.dumps({"input_tokens": len(tokens)}), headers)
