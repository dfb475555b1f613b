"""Converts content blocks of messages and of the system prompt to a conversation in the form that chat templates read.

Consecutive messages of one role are one turn, as in Anthropic's API. An assistant's text blocks become the message's
content, `tool_use` its tool calls, and `thinking` its `reasoning_content`, which the template may show.
`redacted_thinking` is encrypted and dropped. A user's `tool_result` becomes a message of the role `tool`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.generation.request import Conversation
from gateway.http.bounds import MAX_MESSAGES
from gateway.http.errors import invalid
from gateway.http.fields import Fields, as_array, as_string, empty_array, missing, unsupported_value, wrong_type

MAX_BLOCKS = MAX_MESSAGES
_MAX_SHOWN_TYPE_CHARS = 64

_CLIENT_LINE = "x-anthropic-billing-header:"
"""First line of Claude Code's system prompt. It describes the client and differs in each request, so it is removed:
with it, no two prompts would share a prefix in the prefix cache."""

_Turn = dict[str, Any]
"""A message whose content is a list of texts."""


def take_conversation(fields: Fields, variables: Mapping[str, bool]) -> Conversation:
    """`system` and `messages`. The answer continues a final assistant message.

    Raises: APIError.
    """
    system = _system_texts(fields)
    turns = [{"role": "system", "content": system}] if system else []
    items = fields.array("messages", MAX_MESSAGES)
    if items is None:
        raise missing("messages")
    if not items:
        raise empty_array("messages")
    for position, item in enumerate(items):
        for turn in _turns(Fields(item, f"messages[{position}]")):
            _append(turns, turn)
    goes_on = _goes_on(turns, f"messages[{len(items) - 1}]")
    return Conversation(
        messages=tuple(map(_message, turns)),
        add_generation_prompt=not goes_on,
        continue_final_message=goes_on,
        variables=variables,
    )


def take_texts(value: object, path: str) -> list[str]:
    """The texts of a string or an array of text blocks, without empty ones."""
    texts = [value] if isinstance(value, str) else map(_take_text, _blocks(value, path, ("text",)))
    return [text for text in texts if text]


def _system_texts(fields: Fields) -> list[str]:
    value = fields.take("system")
    texts = [] if value is None else take_texts(value, fields.path("system"))
    return [text for text in map(_without_client_line, texts) if text]


def _without_client_line(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_CLIENT_LINE) else text


def _turns(fields: Fields) -> Iterator[_Turn]:
    """The turns of one message of the body: several where it has tool results."""
    role = fields.required_string("role")
    content = fields.take("content")
    path = fields.path("content")
    if content is None:
        raise missing(path)
    fields.finish({})
    match role:
        case "user":
            yield from _user_turns(content, path)
        case "assistant":
            yield _assistant_turn(content, path)
        case "system":
            yield {"role": role, "content": take_texts(content, path)}
        case _:
            raise unsupported_value(fields.path("role"), role, ("user", "assistant", "system"))


def _user_turns(content: object, path: str) -> Iterator[_Turn]:
    if isinstance(content, str):
        yield {"role": "user", "content": [content]}
        return
    if content == []:
        raise empty_array(path)
    for block in _blocks(content, path, ("text", "tool_result")):
        if block.kind == "text":
            yield {"role": "user", "content": [_take_text(block)]}
        else:
            yield _tool_result(block)


def _assistant_turn(content: object, path: str) -> _Turn:
    if isinstance(content, str):
        return {"role": "assistant", "content": [content]}
    turn: _Turn = {"role": "assistant", "content": []}
    for block in _blocks(content, path, ("text", "tool_use", "thinking", "redacted_thinking")):
        match block.kind:
            case "text":
                turn["content"].append(_take_text(block))
            case "tool_use":
                turn.setdefault("tool_calls", []).append(_take_call(block))
            case "thinking":
                turn.setdefault("reasoning_content", []).append(_take_thinking(block))
            case _:
                _take_redacted(block)
    return turn


class _Block(Fields):
    """A content block whose type has been taken."""

    __slots__ = ("kind",)

    def __init__(self, value: object, path: str, kinds: tuple[str, ...]) -> None:
        super().__init__(value, path)
        self.kind = self.required_string("type")
        if self.kind not in kinds:
            message = (
                f"Content blocks of type '{self.kind[:_MAX_SHOWN_TYPE_CHARS]}' are not supported by this server. "
                f"Supported types are: {', '.join(kinds)}."
            )
            raise invalid(self.path("type"), message, "unsupported_parameter")


def _blocks(value: object, path: str, kinds: tuple[str, ...]) -> Iterator[_Block]:
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of blocks", value)
    for position, item in enumerate(as_array(value, path, MAX_BLOCKS)):
        block = _Block(item, f"{path}[{position}]", kinds)
        block.nested("cache_control")  # a hint: all prefixes are cached
        yield block


def _take_text(block: Fields) -> str:
    text = block.take("text")
    if text is None:
        raise missing(block.path("text"))
    block.finish({"citations": ([],)})
    return as_string(text, block.path("text"))


def _take_thinking(block: Fields) -> str:
    """The text. The signature proves that it is from Anthropic's own models; it is ignored."""
    block.string("signature")
    thinking = block.take("thinking")
    if thinking is None:
        raise missing(block.path("thinking"))
    block.finish({})
    return as_string(thinking, block.path("thinking"))


def _take_redacted(block: Fields) -> None:
    block.string("data")
    block.finish({})


def _take_call(block: Fields) -> dict[str, Any]:
    call_id, name = block.required_string("id"), block.required_string("name")
    arguments = block.take("input")
    if arguments is None:
        raise missing(block.path("input"))
    if not isinstance(arguments, dict):
        raise wrong_type(block.path("input"), "an object", arguments)
    block.finish({"caller": ({"type": "direct"},), "toolset_name": ()})
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool_result(block: Fields) -> _Turn:
    """A `tool` turn. Templates have no member for a failure, so its text begins with "Error:"."""
    call_id = block.required_string("tool_use_id")
    content = block.take("content")
    texts = [] if content is None else take_texts(content, block.path("content"))
    if block.boolean("is_error", False):
        texts = ["\n".join(["Error:", *texts])]
    block.finish({"toolset_name": ()})
    return {"role": "tool", "tool_call_id": call_id, "content": texts}


def _append(turns: list[_Turn], turn: _Turn) -> None:
    """Append a turn, or extend the last one if it has the same role."""
    if turn["role"] not in ("user", "assistant") or not turns or turns[-1]["role"] != turn["role"]:
        turns.append(turn)
        return
    for name in ("content", "tool_calls", "reasoning_content"):
        if name in turn:
            turns[-1].setdefault(name, []).extend(turn[name])


def _goes_on(turns: list[_Turn], path: str) -> bool:
    """Whether the answer continues the last turn. An empty assistant turn is removed."""
    last = turns[-1]
    if last["role"] != "assistant":
        return False
    if "tool_calls" in last:
        raise invalid(
            path,
            f"{path}: a final assistant message must not contain tool_use without its tool_result.",
        )
    text = "".join(last["content"])
    if not text:
        turns.pop()
        if not turns:
            raise invalid("messages", "messages must contain at least one message to answer.")
        return False
    last["content"] = [text]
    return True


def _message(turn: _Turn) -> Mapping[str, Any]:
    """A turn as a message: one text is a string, several are parts."""
    texts = [text for text in turn["content"] if text]
    content: str | list[dict[str, str]] | None
    if len(texts) > 1:
        content = [{"type": "text", "text": text} for text in texts]
    elif texts:
        content = texts[0]
    else:
        content = None if "tool_calls" in turn else ""
    message = turn | {"content": content}
    if "reasoning_content" in turn:
        message["reasoning_content"] = "\n".join(turn["reasoning_content"])
    return message
