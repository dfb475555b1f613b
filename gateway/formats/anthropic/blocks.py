"""Content blocks of messages and of the system prompt, as a conversation in the form that chat templates read.

Messages of one role in a row are one turn, as Anthropic has it. Of an assistant's blocks, text becomes the message's
content, `tool_use` its calls, `thinking` its `reasoning_content`, which a template shows where its model wants it;
`redacted_thinking` nobody here can read, and it is left out. A user's `tool_result` becomes a message of the tool's.
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
"""Claude Code begins its system prompt with such a line. It is about the client, not for the model, and another one in
each request: no two prompts would share a prefix, and none would hit the prefix cache."""

_Turn = dict[str, Any]
"""A message whose content is a list of texts."""


def take_conversation(fields: Fields, variables: Mapping[str, bool]) -> Conversation:
    """`system` and `messages`. Where an assistant has the last word, the answer goes on with it.

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
    """A string, or an array of text blocks. Empty ones say nothing and are left out."""
    texts = [value] if isinstance(value, str) else map(_take_text, _blocks(value, path, ("text",)))
    return [text for text in texts if text]


def _system_texts(fields: Fields) -> list[str]:
    value = fields.take("system")
    texts = [] if value is None else take_texts(value, fields.path("system"))
    return [text for text in map(_without_client_line, texts) if text]


def _without_client_line(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_CLIENT_LINE) else text


def _turns(fields: Fields) -> Iterator[_Turn]:
    """What one message of the body becomes: several where tools' results are in it."""
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
        block.nested("cache_control")  # a hint: every prefix is cached
        yield block


def _take_text(block: Fields) -> str:
    text = block.take("text")
    if text is None:
        raise missing(block.path("text"))
    block.finish({"citations": ([],)})
    return as_string(text, block.path("text"))


def _take_thinking(block: Fields) -> str:
    """The signature says that a text is Anthropic's own. There are none here, and none is looked at."""
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
    """A failure is told to the model in words, as templates have no other way to say it."""
    call_id = block.required_string("tool_use_id")
    content = block.take("content")
    texts = [] if content is None else take_texts(content, block.path("content"))
    if block.boolean("is_error", False):
        texts = ["\n".join(["Error:", *texts])]
    block.finish({"toolset_name": ()})
    return {"role": "tool", "tool_call_id": call_id, "content": texts}


def _append(turns: list[_Turn], turn: _Turn) -> None:
    """Behind the others, or to the last of them where the same one goes on."""
    if turn["role"] not in ("user", "assistant") or not turns or turns[-1]["role"] != turn["role"]:
        turns.append(turn)
        return
    for name in ("content", "tool_calls", "reasoning_content"):
        if name in turn:
            turns[-1].setdefault(name, []).extend(turn[name])


def _goes_on(turns: list[_Turn], path: str) -> bool:
    """Whether the last turn is the beginning of the answer. One that says nothing is taken away."""
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
    """As templates like it best: one text as a string, several as parts."""
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
