"""Items: the input and output of a response. They are parsed strictly into the form that responses return.

Input, output and stored items share this form, which has every member that OpenAI's types require. The id of an input
item is set when its response is stored.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.http.bounds import MAX_ARGUMENTS_NESTING, MAX_MESSAGES
from gateway.http.errors import APIError, invalid
from gateway.http.fields import Fields, as_array, as_string, empty_array, missing, unsupported_value, wrong_type
from gateway.http.json_body import InnerJSON

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallName:
    """The function of a call, by name and namespace."""

    name: str
    namespace: str | None = None

    def members(self) -> dict[str, str]:
        return {"name": self.name} if self.namespace is None else {"namespace": self.namespace, "name": self.name}


def full_name(namespace: str | None, name: str) -> str:
    """The unique name of a function in the prompt."""
    return name if namespace is None else f"{namespace}__{name}"


REFERENCE = "item_reference"
COMPLETED = "completed"
INCOMPLETE = "incomplete"

_ROLES = ("user", "assistant", "system", "developer")
_STATUSES = ("in_progress", COMPLETED, INCOMPLETE)
_MAX_SHOWN_CHARS = 64
_MAX_ID_CHARS = 256
_MAX_NAME_CHARS = 128
_PART_TYPES = ("input_text", "output_text", "refusal")


def take_items(fields: Fields) -> list[Item]:
    """`input`: items, or a string that is one user message. `ResponseTurn` resolves references.

    Raises:
        APIError: 400, naming the member.
    """
    value = fields.take("input")
    if value is None:
        raise missing("input")
    if isinstance(value, str):
        return [_message_item("user", [value])]
    if not isinstance(value, list):
        raise wrong_type("input", "a string or an array of items", value)
    inner = InnerJSON()
    return [_read(item, f"input[{i}]", inner) for i, item in enumerate(as_array(value, "input", MAX_MESSAGES))]


def _read(value: object, path: str, inner: InnerJSON) -> Item:
    given = Fields(value, path)
    kind = given.string("type")
    if kind is None:
        # `type` is optional for messages, which have a role, and for references.
        kind = "message" if isinstance(value, dict) and value.get("role") is not None else REFERENCE
    if kind == "function_call":
        item = _function_call(given, inner)
    elif kind in _READERS:
        item = _READERS[kind](given)
    else:
        message = f"Items of type '{kind[:_MAX_SHOWN_CHARS]}' are not supported by this server."
        raise invalid(given.path("type"), message, "unsupported_parameter")
    given.finish(_REFUSED)
    return item


_REFUSED: Mapping[str, tuple[object, ...]] = {"async": (False,), "caller": ()}
"""Members of OpenAI's items that are not supported, each with its neutral values."""


def _message(given: Fields) -> Item:
    role = given.required_string("role")
    if role not in _ROLES:
        raise unsupported_value(given.path("role"), role, _ROLES)
    path, content = given.path("content"), given.take("content")
    if content is None:
        raise missing(path)
    texts = [content] if isinstance(content, str) else _part_texts(content, path)
    given.string("id")
    given.string("phase")
    return _message_item(role, texts, _status(given))


def _message_item(role: str, texts: list[str], status: str = COMPLETED) -> Item:
    parts: list[dict[str, Any]] = [{"type": "input_text", "text": text} for text in texts]
    if role == "assistant":
        parts = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []} for text in texts]
    return {"type": "message", "status": status, "role": role, "content": parts}


def _function_call(given: Fields, inner: InnerJSON) -> Item:
    name = CallName(given.required_string("name", _MAX_NAME_CHARS), given.string("namespace", _MAX_NAME_CHARS))
    item = {
        "type": "function_call",
        "status": _status(given),
        "call_id": given.required_string("call_id", _MAX_ID_CHARS),
        **name.members(),
        "arguments": given.string("arguments") or "{}",
    }
    given.string("id")
    if item["status"] != INCOMPLETE:
        path = given.path("arguments")
        try:
            arguments = inner.parse(item["arguments"].encode(), MAX_ARGUMENTS_NESTING)
        except APIError:
            raise invalid(path, f"Invalid '{path}': expected a string that contains a JSON object.") from None
        if not isinstance(arguments, dict):
            raise invalid(path, f"Invalid '{path}': expected a string that contains a JSON object.")
    return item


def _function_call_output(given: Fields) -> Item:
    path, output = given.path("output"), given.take("output")
    if output is None:
        raise missing(path)
    if not isinstance(output, str):
        output = [{"type": "input_text", "text": text} for text in _part_texts(output, path)]
    given.string("id")
    call_id = given.required_string("call_id", _MAX_ID_CHARS)
    return {"type": "function_call_output", "status": _status(given), "call_id": call_id, "output": output}


def _reasoning(given: Fields) -> Item:
    """A reasoning item. Encrypted content is from another server and dropped."""
    given.string("id")
    given.string("encrypted_content")
    return {
        "type": "reasoning",
        "status": _status(given),
        "summary": _spoken(given, "summary", "summary_text"),
        "content": _spoken(given, "content", "reasoning_text"),
    }


def _reference(given: Fields) -> Item:
    return {"type": REFERENCE, "id": given.required_string("id")}


_READERS: Mapping[str, Callable[[Fields], Item]] = {
    "message": _message,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
    REFERENCE: _reference,
}


def _status(given: Fields) -> str:
    status = given.string("status")
    if status is None:
        return COMPLETED
    if status not in _STATUSES:
        raise unsupported_value(given.path("status"), status, _STATUSES)
    return status


def _part_texts(value: object, path: str) -> list[str]:
    """The text of each part. Annotations and log-probabilities of an earlier answer are dropped."""
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of parts", value)
    if not value:
        raise empty_array(path)
    texts = []
    for i, item in enumerate(as_array(value, path, MAX_MESSAGES)):
        part = Fields(item, f"{path}[{i}]")
        kind = part.required_string("type")
        if kind not in _PART_TYPES:
            message = (
                f"Content parts of type '{kind[:_MAX_SHOWN_CHARS]}' are not supported by this server: only text is."
            )
            raise invalid(part.path("type"), message, "unsupported_parameter")
        texts.append(_text(part, "refusal" if kind == "refusal" else "text"))
        part.take("annotations")
        part.take("logprobs")
        part.finish({})
    return texts


def _spoken(given: Fields, name: str, kind: str) -> list[dict[str, str]]:
    """Parts of reasoning, all of one kind."""
    parts = []
    for i, item in enumerate(given.array(name, MAX_MESSAGES) or []):
        part = Fields(item, f"{given.path(name)}[{i}]")
        stated = part.required_string("type")
        if stated != kind:
            raise unsupported_value(part.path("type"), stated, (kind,))
        parts.append({"type": kind, "text": _text(part, "text")})
        part.finish({})
    return parts


def _text(part: Fields, name: str) -> str:
    """A string, which may be empty."""
    text = part.take(name)
    if text is None:
        raise missing(part.path(name))
    return as_string(text, part.path(name))
