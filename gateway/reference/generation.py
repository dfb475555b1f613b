"""Schemas of the bodies of chat and completions."""

from engine.request import MAX_CHOICES, MAX_SEED, MAX_STOP_STRINGS, MAX_TOP_LOGPROBS
from gateway.formats.openai.chat_messages import EFFORTS, REFUSED_IN_MESSAGE, ROLES
from gateway.formats.openai.chat_schema import REFUSED_CHAT
from gateway.formats.openai.completion_schema import REFUSED_COMPLETION
from gateway.formats.openai.hints import HINTS, MAX_METADATA, MAX_METADATA_VALUE_CHARS
from gateway.formats.openai.sampling import MAX_TOKEN_ID, MAX_TOKENS
from gateway.formats.openai.structured import REFUSED_STRUCTURED
from gateway.formats.openai.tool_schema import MAX_DESCRIPTION_CHARS, MAX_TOOLS
from gateway.http.bounds import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_CHOICES_PER_REQUEST,
    MAX_COMPLETION_LOGPROBS,
    MAX_GUIDED_CHOICES,
    MAX_MESSAGES,
    MAX_PROMPTS,
    MAX_REGEX_CHARS,
    MAX_STOP_CHARS,
    MAX_STOP_TOKEN_IDS,
    MAX_TEMPLATE_VARIABLES,
)
from gateway.http.session_ids import SESSION_ID_PATTERN
from gateway.reference.parts import (
    ANY_OBJECT,
    NULL,
    Schema,
    asked,
    boolean,
    choice,
    integer,
    listed,
    number,
    one_of,
    ref,
    refused,
    text,
)

MODEL = text("A served model, an alias or `auto`.", minLength=1)
TOKEN_IDS = listed(integer(0, MAX_TOKEN_ID))
JSON_SCHEMA = one_of(ANY_OBJECT, {"type": "boolean"}, text(), about="A JSON schema, or a string that contains one.")
NAME = text(pattern="^[A-Za-z0-9_-]{1,64}$")
METADATA = {
    "type": "object",
    "additionalProperties": text(maxLength=MAX_METADATA_VALUE_CHARS),
    "maxProperties": MAX_METADATA,
}
HINT_MEMBERS: dict[str, Schema] = {
    **{name: text("Changes nothing.", maxLength=most) for name, most in HINTS.items()},
    "metadata": METADATA,
}
SESSION_ID = text("The conversation that the message continues.", pattern=f"^{SESSION_ID_PATTERN}$")
SERVICE_TIER = text("At most the tier of the key: `auto`, `default`, `flex`, `priority` or a service class.")

GUIDED: dict[str, Schema] = {
    "json": JSON_SCHEMA,
    "regex": text(minLength=1, maxLength=MAX_REGEX_CHARS),
    "choice": listed(text(minLength=1), 1, MAX_GUIDED_CHOICES),
    "grammar": text("A grammar in EBNF or Lark.", minLength=1),
}

TRUNCATION: dict[str, Schema] = {
    "truncate_prompt_tokens": integer(-1, MAX_TOKENS, "Tokens of the prompt that are kept; -1: what the window holds."),
    "truncation_side": choice("left", "right"),
}

SAMPLING: dict[str, Schema] = {
    "min_tokens": integer(0, MAX_TOKENS),
    "temperature": number(0, 2, "The model's own default if absent."),
    "top_p": number(0, 1),
    "top_k": integer(-1, MAX_TOKEN_ID, "0 or -1: all tokens."),
    "min_p": number(0, 1),
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "repetition_penalty": number(0),
    "logit_bias": {"type": "object", "additionalProperties": number(), "description": "Token id -> bias."},
    "seed": integer(-MAX_SEED - 1, MAX_SEED, "The same text for the same seed, in any batch."),
    "stop": one_of(
        text(minLength=1, maxLength=MAX_STOP_CHARS),
        listed(text(minLength=1, maxLength=MAX_STOP_CHARS), 0, MAX_STOP_STRINGS),
    ),
    "stop_token_ids": TOKEN_IDS | {"maxItems": MAX_STOP_TOKEN_IDS},
    "ignore_eos": boolean(),
    "n": integer(1, MAX_CHOICES),
    "allowed_token_ids": TOKEN_IDS | {"maxItems": MAX_ALLOWED_TOKEN_IDS},
    "bad_words": listed(text(minLength=1, maxLength=MAX_STOP_CHARS), 0, MAX_BAD_WORDS),
    "skip_special_tokens": boolean(),
    "spaces_between_special_tokens": boolean(),
    "include_stop_str_in_output": boolean(),
    "response_format": ref("ResponseFormat"),
    "structured_outputs": asked({}, GUIDED | {"json_object": boolean()} | refused(REFUSED_STRUCTURED)),
    **{f"guided_{name}": schema for name, schema in GUIDED.items()},
    "stream": boolean("Server-sent events."),
    "stream_options": asked(
        {},
        {"include_usage": boolean(), "continuous_usage_stats": boolean(), "include_obfuscation": boolean()},
    ),
    "return_token_ids": boolean(),
    "prompt_logprobs": integer(0, MAX_TOP_LOGPROBS),
    "echo": boolean("The answer begins with the prompt's text."),
    "service_tier": SERVICE_TIER,
    **TRUNCATION,
    **HINT_MEMBERS,
}
"""Optional members of both bodies."""

_FUNCTION = asked(
    {"name": NAME},
    {
        "description": text(maxLength=MAX_DESCRIPTION_CHARS),
        "parameters": ANY_OBJECT | {"description": "The JSON schema of the arguments."},
        "strict": boolean("Arguments are held to the schema with and without it."),
    },
)
_NAMED_FUNCTION = asked({"type": choice("function"), "function": asked({"name": text(minLength=1)})})
_ALLOWED_TOOLS = asked(
    {
        "type": choice("allowed_tools"),
        "allowed_tools": asked({"mode": choice("auto", "required"), "tools": listed(_NAMED_FUNCTION, 1, MAX_TOOLS)}),
    }
)
CONVERSATION: dict[str, Schema] = {
    "add_generation_prompt": boolean(),
    "continue_final_message": boolean("The answer continues the last message."),
    "reasoning_effort": choice(*EFFORTS),
    "chat_template_kwargs": {
        "type": "object",
        "additionalProperties": one_of(text(), number(), boolean()),
        "maxProperties": MAX_TEMPLATE_VARIABLES,
    },
}
MESSAGES = listed(ref("Message"), 1, MAX_MESSAGES)
TOOLS: dict[str, Schema] = {
    "tools": listed(asked({"type": choice("function"), "function": _FUNCTION}), 0, MAX_TOOLS),
    "tool_choice": one_of(choice("none", "auto", "required"), _NAMED_FUNCTION, _ALLOWED_TOOLS),
    "parallel_tool_calls": boolean(),
}
OLDER_TOOLS: dict[str, Schema] = {
    "functions": listed(_FUNCTION, 0, MAX_TOOLS, "The older form of `tools`, which cannot be given with it."),
    "function_call": one_of(
        choice("none", "auto"), asked({"name": text(minLength=1)}), about="The older form of `tool_choice`."
    ),
}
_CALLED = asked({"name": text(minLength=1)}, {"arguments": text("A JSON object.")})
_CALL = asked(
    {
        "id": text(minLength=1),
        "type": choice("function"),
        "function": _CALLED,
    }
)
_OF_MESSAGES: dict[str, Schema] = {
    "content": one_of(
        text(),
        listed(
            one_of(
                asked({"type": choice("text"), "text": text()}),
                asked({"type": choice("refusal"), "refusal": text()}),
            ),
            1,
        ),
        about="Required, except in an assistant's message with calls or a refusal.",
    ),
    "name": text("Required with the role `function`."),
    "refusal": text("Of an assistant's message without content."),
    "function_call": _CALLED | {"description": "Of an assistant's message, in place of `tool_calls`."},
    "tool_call_id": text("Required with the role `tool`."),
    "tool_calls": listed(_CALL, 0, MAX_MESSAGES, "Of an assistant's message."),
    "reasoning_content": text("Of an assistant's message."),
    "reasoning": text("The same."),
}
_NAMED_SCHEMA = asked({"name": NAME, "schema": JSON_SCHEMA}, {"description": text(maxLength=4096), "strict": boolean()})
PROMPTS = one_of(text(), listed(text(), 1, MAX_PROMPTS), TOKEN_IDS | {"minItems": 1}, listed(TOKEN_IDS, 1, MAX_PROMPTS))

COMPONENTS: dict[str, Schema] = {
    "Message": asked(
        {"role": choice(*ROLES)},
        _OF_MESSAGES | refused({name: REFUSED_IN_MESSAGE[name] for name in REFUSED_IN_MESSAGE.keys() - _OF_MESSAGES}),
    ),
    "ResponseFormat": one_of(
        asked({"type": choice("text", "json_object")}, {"json_schema": NULL}),
        asked({"type": choice("json_schema"), "json_schema": _NAMED_SCHEMA}),
    ),
    "ChatCompletionRequest": asked(
        {"model": MODEL, "messages": MESSAGES},
        {
            "max_completion_tokens": integer(1, MAX_TOKENS),
            "max_tokens": integer(1, MAX_TOKENS, "The older name of `max_completion_tokens`."),
            "logprobs": boolean(),
            "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
            "session_id": SESSION_ID,
            **CONVERSATION,
            **TOOLS,
            **OLDER_TOOLS,
            **SAMPLING,
            **refused(REFUSED_CHAT),
        },
    ),
    "CompletionRequest": asked(
        {"model": MODEL, "prompt": PROMPTS},
        {
            "max_tokens": integer(0, MAX_TOKENS, "16 if absent; 0 is allowed with `echo`."),
            "logprobs": integer(0, MAX_COMPLETION_LOGPROBS),
            "best_of": integer(1, MAX_CHOICES_PER_REQUEST),
            "suffix": text("Text after the completion."),
            "add_special_tokens": boolean(),
            **SAMPLING,
            **refused(REFUSED_COMPLETION),
        },
    ),
}
