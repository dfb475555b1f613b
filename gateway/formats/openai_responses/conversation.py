"""Converts items to the messages that chat templates read."""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

import orjson

from gateway.formats.openai_responses.items import INCOMPLETE, Item, full_name

_SYSTEM_ROLES = ("system", "developer")


def conversation_of(instructions: str | None, items: Sequence[Item]) -> tuple[dict[str, Any], ...]:
    """The messages, starting with one system message of `instructions` and all leading system items: few templates
    accept two system messages."""
    messages = _messages_of(items)
    if instructions is None:
        return tuple(messages)
    lead = list(takewhile(lambda message: message["role"] in _SYSTEM_ROLES, messages))
    texts = [instructions, *(_text_of(message["content"]) for message in lead)]
    return ({"role": "system", "content": "\n\n".join(texts)}, *messages[len(lead) :])


def unshown_chars(items: Iterable[Item]) -> int:
    """Characters of these items that are not part of a prompt: summaries of reasoning that is present, reasoning that
    no assistant message or call follows, and arguments of calls that were cut off."""
    unshown = pending = 0
    for item in items:
        match item["type"]:
            case "reasoning":
                content, summary = _chars(item["content"]), _chars(item["summary"])
                unshown += summary if item["content"] else 0
                pending += content if item["content"] else summary
            case "message" if item["role"] != "assistant":
                unshown, pending = unshown + pending, 0
            case "function_call" if item["status"] == INCOMPLETE:
                unshown += len(item["arguments"])
            case "message" | "function_call":
                pending = 0
    return unshown + pending


def _chars(parts: Iterable[dict[str, str]]) -> int:
    return sum(len(part["text"]) for part in parts)


def _messages_of(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Messages from items. A call joins the assistant message before it, and reasoning the one after it. Calls that
    were cut off are dropped."""
    messages: list[dict[str, Any]] = []
    reasoning: list[str] = []
    for item in items:
        match item["type"]:
            case "reasoning":
                reasoning.append("".join(part["text"] for part in item["content"] or item["summary"]))
            case "message":
                messages.append({"role": item["role"], "content": _content(item)})
                _reasoned(messages[-1], reasoning)
            case "function_call" if item["status"] != INCOMPLETE:
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                messages[-1].setdefault("tool_calls", []).append(_call_of(item))
                _reasoned(messages[-1], reasoning)
            case "function_call_output":
                text = _text_of(item["output"])
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": text})
    return messages


def _reasoned(message: dict[str, Any], reasoning: list[str]) -> None:
    """Move the pending reasoning to an assistant message, as `reasoning_content`; drop it before any other message."""
    if message["role"] == "assistant" and any(reasoning):
        former = [message["reasoning_content"]] if "reasoning_content" in message else []
        message["reasoning_content"] = "\n".join([*former, *reasoning])
    reasoning.clear()


def _content(item: Item) -> str | list[dict[str, str]]:
    texts = [part["text"] for part in item["content"]]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _text_of(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _call_of(item: Item) -> dict[str, Any]:
    """A tool call of a message. Its arguments are an object, which templates print."""
    name = full_name(item.get("namespace"), item["name"])
    function = {"name": name, "arguments": orjson.loads(item["arguments"] or b"{}")}
    return {"id": item["call_id"], "type": "function", "function": function}
