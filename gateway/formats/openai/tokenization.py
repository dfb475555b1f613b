"""POST /v1/tokenize and /v1/detokenize, in vLLM's format."""

from dataclasses import replace

import orjson
from starlette.types import Receive, Scope, Send

from gateway.formats.openai.chat_messages import take_conversation
from gateway.formats.openai.logprobs import token_label
from gateway.formats.openai.prompt_schema import token_ids
from gateway.formats.openai.tool_schema import take_tools
from gateway.generation.counted import count_request
from gateway.generation.lookup import find_named
from gateway.generation.prompt_encoding import encode, require_tokenizable, text_chars
from gateway.generation.remote_prompt import RemotePrompt
from gateway.generation.request import Prompt
from gateway.generation.stages import Stages
from gateway.generation.text_pool import TextLane
from gateway.http.bounds import MAX_DETOKENIZED_TOKENS
from gateway.http.errors import invalid
from gateway.http.fields import Fields, as_array, missing
from gateway.http.json_body import read_json
from gateway.http.request_state import request_state
from gateway.http.responses import send_body


class Tokenize:
    """An ASGI endpoint: `prompt`, or `messages` and `tools` as in chat, to token ids."""

    def __init__(self, stages: Stages) -> None:
        self._services = stages.services
        self._names = stages.names
        self._classes = stages.classes
        self._max_json_depth = stages.settings.max_json_depth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = await read_json(scope, receive, self._max_json_depth)
        model_name = fields.required_string("model")
        prompt = _take_prompt(fields)
        with_bos = fields.boolean("add_special_tokens", True)
        with_strings = fields.boolean("return_token_strs", False)
        fields.finish({})
        if not with_bos and not isinstance(prompt, str):
            raise invalid("add_special_tokens", "'add_special_tokens' is only allowed with 'prompt'.")
        caller = request_state(scope).caller()
        model = find_named(self._names, self._services.engine, self._services.adapters, model_name, caller)
        param = "prompt" if isinstance(prompt, str) else "messages"
        require_tokenizable(param, text_chars(prompt), model.max_model_len)
        headers = await count_request(self._services, self._classes, caller, model)
        lane = TextLane(self._services.texts, caller.tenant_id, receive)
        [tokens] = await encode([prompt], model.text, lane, add_special_tokens=with_bos)
        if isinstance(tokens, RemotePrompt):
            tokens = tokens.require_ids()
        label = model.text.tokenizer.token_bytes

        def written() -> bytes:
            answer = {
                "count": len(tokens),
                "max_model_len": model.max_model_len,
                "tokens": tokens,
                "token_strs": [token_label(label(token)) for token in tokens] if with_strings else None,
            }
            return orjson.dumps(answer)

        await send_body(send, 200, await lane.run(len(tokens), written), headers)


class Detokenize:
    """An ASGI endpoint: `tokens` to `prompt`, including special tokens."""

    def __init__(self, stages: Stages) -> None:
        self._services = stages.services
        self._names = stages.names
        self._classes = stages.classes
        self._max_json_depth = stages.settings.max_json_depth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = await read_json(scope, receive, self._max_json_depth)
        model_name = fields.required_string("model")
        items = fields.take("tokens")
        if items is None:
            raise missing("tokens")
        tokens = token_ids(as_array(items, "tokens", MAX_DETOKENIZED_TOKENS), "tokens")
        fields.finish({})
        caller = request_state(scope).caller()
        model = find_named(self._names, self._services.engine, self._services.adapters, model_name, caller)
        if max(tokens) >= model.vocab_size:
            raise invalid(
                "tokens", f"Invalid 'tokens': a token id is out of vocabulary. The model has {model.vocab_size} tokens."
            )

        headers = await count_request(self._services, self._classes, caller, model)

        def written() -> bytes:
            return orjson.dumps({"prompt": model.text.decode(tokens, skip_special_tokens=False)})

        lane = TextLane(self._services.texts, caller.tenant_id, receive)
        await send_body(send, 200, await lane.run(len(tokens), written), headers)


def _take_prompt(fields: Fields) -> Prompt:
    prompt = fields.string("prompt")
    if prompt is None:
        conversation, use = take_conversation(fields), take_tools(fields)
        return conversation if use is None else replace(conversation, tools=use.shown)
    if fields.take("messages") is not None:
        raise invalid("messages", "'prompt' and 'messages' cannot be used together.")
    return prompt
